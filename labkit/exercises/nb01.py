"""The exercises of notebook 01: layers and losses, a model, training on ranks."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit import nn
from labkit.exercises import wraps
from labkit.exercises.exercise import Case, Exercise, Outcome, both_dtypes
from labkit.nn import flat as nn_flat
from labkit.nn import ops
from labkit.nn.ops import linear, relu


def _softmax_cases() -> Sequence[Case]:
    rng = np.random.default_rng(5)
    small, large, far = np.array([[0.0, 1, 2]]), np.array([[1000.0, 1001, 1002]]), np.array([[0.0, 1000, 5]])
    batches = {
        "1 sample, 3 classes": (small, [1]),
        "3 samples, 3 classes": (rng.normal(size=(3, 3)), [2, 0, 1]),
        "5 samples, 10 classes": (rng.normal(size=(5, 10)), [9, 0, 0, 3, 5]),
        "logits near 1000": (large, [1]),
        "a logit 1000 below the largest": (far, [0]),
        "a row of logits near 0, another near 1000": (np.concatenate([small, large]), [2, 0]),
        "a row of logits near 0, another near -1000": (np.concatenate([small, -large]), [2, 0]),
    }
    return [case for name, (z, y) in batches.items() for case in both_dtypes(name, z, np.array(y))]


SHAPES = {"W1": (64, 32), "b1": (32,), "W2": (32, 10), "b2": (10,)}


MLP = f"""\
import math
import numpy as np
from labkit.nn.ops import linear, linear_backward, relu, relu_backward
from labkit.nn.ops import softmax_cross_entropy, softmax_cross_entropy_backward
from labkit.nn.flat import views
SHAPES = {SHAPES}
"""


P = sum(map(math.prod, SHAPES.values()))


def initial(dtype: Any) -> np.ndarray:
    """Return the parameters that all cases start from. Shape: (P,)."""
    return (0.3 * np.random.default_rng(7).normal(size=P)).astype(dtype)


def samples(n: int, seed: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return x (n, 64) and labels (n,)."""
    rng = np.random.default_rng((n, seed))
    return rng.normal(size=(n, 64)).astype(dtype), rng.integers(10, size=n)


def whole(params: np.ndarray, x: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the loss and the flat gradient that labkit's own model finds."""
    model = nn.mlp(hidden=32, dtype=params.dtype.type)
    model.params[...] = params
    loss = model.loss_and_gradient(x, labels)
    return loss, model.grads.copy()


# Exercise 1.1


def mean_squared_error_backward(pred, target):
    """Return the gradient of the mean squared error with respect to pred. Shapes: all (N, O)."""
    return (pred - target) * (2 / pred.size)


def _error_cases() -> Sequence[Case]:
    cases = []
    for n, o in (1, 1), (4, 1), (3, 3), (5, 2):
        rng = np.random.default_rng(n)
        cases += both_dtypes(f"N = {n}, O = {o}", rng.normal(size=(n, o)), rng.normal(size=(n, o)))
    return cases


MEAN_SQUARED_ERROR_BACKWARD = Exercise(
    reference=mean_squared_error_backward,
    title="Through the loss",
    difficulty=1,
    minutes=5,
    cases=_error_cases,
    expected=lambda case: [ops.mean_squared_error_backward(*case.arguments[0])],
    mistakes={
        "the mean is forgotten: divide by the number of entries, pred.size": {"(2 / pred.size)": "2"},
        "this divides by the samples only; the mean is over all entries, pred.size": {
            "pred.size": "len(target)"
        },
        "the sign is wrong: predicted minus true": {"pred - target": "target - pred"},
        "the factor 2 of the derivative of a square is missing": {"(2 / pred.size)": "(1 / pred.size)"},
        "… dtype": {"(2 / pred.size)": "np.float64(2 / pred.size)"},
        "… shape": {"(pred - target) * (2 / pred.size)": "np.mean(2 * (pred - target))"},
    },
    hints=(
        "Each entry of pred appears in one term of the loss. Differentiate that term.",
        "The derivative of u² is 2u, and the mean divides by pred.size.",
    ),
)


# Exercise 1.2


def linear_backward(dy, x, w):
    """Return the gradients (dx, dw, db). Shapes: dy (N, O), x (N, I), w (I, O)."""
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def _linear_cases() -> Sequence[Case]:
    cases = []
    for n, i, o in (1, 1, 1), (3, 3, 3), (5, 4, 3):
        rng = np.random.default_rng(n)
        arrays = [rng.normal(size=shape) for shape in ((n, o), (n, i), (i, o))]
        cases += both_dtypes(f"N = {n}, I = {i}, O = {o}", *arrays)
    return cases


LINEAR_BACKWARD = Exercise(
    reference=linear_backward,
    title="Through a linear layer",
    difficulty=2,
    minutes=10,
    cases=_linear_cases,
    expected=lambda case: [ops.linear_backward(*case.arguments[0])],
    mistakes={
        "db sums over the outputs. The bias acts on every sample: sum over the samples": {
            "dy.sum(axis=0)": "dy.sum(axis=1)"
        },
        "db is the mean over the samples; the loss has divided by their number already: take the sum": {
            "dy.sum(axis=0)": "dy.mean(axis=0)"
        },
        "dw is transposed: it needs the shape of w": {"x.T @ dy": "dy.T @ x"},
        "dx and dw are swapped: return (dx, dw, db)": {"dy @ w.T, x.T @ dy": "x.T @ dy, dy @ w.T"},
        "… ValueError: matmul": {"dy @ w.T": "dy @ w"},
        "… dtype": {"dy.sum(axis=0)": "dy.sum(axis=0, dtype=np.float64)"},
    },
    hints=(
        "Each gradient has the shape of its array: dx that of x, dw that of w, db (O,).",
        "There is one way only to multiply dy (N, O) with w or x, transposed or not, to get each shape.",
        "dx = dy @ w.T and dw = x.T @ dy. A bias acts on every sample, so db is a sum over axis 0.",
    ),
)


# Exercise 1.3


def softmax_cross_entropy(z, labels):
    """Return the mean of -log softmax(z)[label], one number. Shapes: z (N, K), labels (N,) in 0 … K-1."""
    shifted = z - z.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.mean(log_p[np.arange(len(labels)), labels]))


def _cross_entropy(case: Case) -> Sequence[Any]:
    ((z, labels),) = case.arguments
    each = [np.logaddexp.reduce(row) - row[label] for row, label in zip(z.astype(float), labels, strict=True)]
    return [float(np.mean(each))]


SOFTMAX_CROSS_ENTROPY = Exercise(
    reference=softmax_cross_entropy,
    title="A loss for classes that never overflows",
    difficulty=3,
    minutes=10,
    cases=_softmax_cases,
    expected=_cross_entropy,
    tolerance=1e-5,  # float32 logits
    mistakes={
        "this is the sum over the samples; take the mean": {"-np.mean": "-np.sum"},
        "the sign is wrong: the loss is minus the logarithm of a probability": {"-np.mean": "np.mean"},
        "this averages over all classes; pick the logarithm at the label of each sample": {
            "log_p[np.arange(len(labels)), labels]": "log_p"
        },
        "log of a p that is 0: compute log p as z - max - log(sum(exp(z - max))), without p": """
def softmax_cross_entropy(z, labels):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.mean(np.log(p[np.arange(len(labels)), labels]))
""",
        "the maximum of the whole array is subtracted, so other samples underflow to log 0: subtract "
        "the maximum of each row": """
def softmax_cross_entropy(z, labels):
    shifted = z - z.max()
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -np.mean(log_p[np.arange(len(labels)), labels])
""",
        "the maximum of the whole array is subtracted, so other samples underflow to 0 / 0: subtract "
        "the maximum of each row": """
def softmax_cross_entropy(z, labels):
    p = np.exp(z - z.max())
    p /= p.sum(axis=1, keepdims=True)
    return -np.mean(np.log(p[np.arange(len(labels)), labels]))
""",
        "without a shift, exp overflows and the loss is nan: subtract the maximum of each row": """
def softmax_cross_entropy(z, labels):
    p = np.exp(z)
    p /= p.sum(axis=1, keepdims=True)
    return -np.mean(np.log(p[np.arange(len(labels)), labels]))
""",
        "without a shift, exp overflows and the loss is inf: subtract the maximum of each row": {
            "z - z.max(axis=1, keepdims=True)": "z"
        },
    },
    hints=(
        "log p = z - log(sum(exp(z))) in each row; keepdims=True keeps the shape (N, 1) for subtraction.",
        "Subtract each row's own maximum from z first: it changes no probability.",
        "log_p[np.arange(len(labels)), labels] picks one logarithm for each sample.",
    ),
)


# Exercise 1.4


def softmax_cross_entropy_backward(z, labels):
    """Return the gradient with respect to z. Shapes: z (N, K), labels (N,); result (N, K)."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    gradient = e / e.sum(axis=1, keepdims=True)
    gradient[np.arange(len(labels)), labels] -= 1
    return gradient / len(labels)


SOFTMAX_CROSS_ENTROPY_BACKWARD = Exercise(
    reference=softmax_cross_entropy_backward,
    title="Predicted minus true",
    difficulty=2,
    minutes=10,
    cases=_softmax_cases,
    expected=lambda case: [ops.softmax_cross_entropy_backward(*case.arguments[0])],
    mistakes={
        "the mean is forgotten: divide by the number of samples": {
            "return gradient / len(labels)": "return gradient"
        },
        "this divides by all entries; the mean of the loss is over the samples": {
            "/ len(labels)": "/ gradient.size"
        },
        "the sign is wrong: predicted minus true": {"return gradient": "return -gradient"},
        "this is p / N; subtract 1 from p at the label of each sample first": {
            "    gradient[np.arange(len(labels)), labels] -= 1\n": ""
        },
        "`[:, labels]` subtracts 1 in whole columns; index with [np.arange(N), labels]": {
            "[np.arange(len(labels)), labels]": "[:, labels]"
        },
        "without a shift, exp overflows: subtract the maximum of each row before exp": {
            "z - z.max(axis=1, keepdims=True)": "z"
        },
        "the maximum of the whole array is subtracted, so other samples become 0 / 0: subtract the "
        "maximum of each row": {"z.max(axis=1, keepdims=True)": "z.max()"},
        "… changes its argument": {
            "    e = np.exp(z - z.max(axis=1, keepdims=True))": (
                "    z -= z.max(axis=1, keepdims=True)\n    e = np.exp(z)"
            )
        },
        "… dtype": {
            "gradient[np.arange(len(labels)), labels] -= 1": (
                "gradient = gradient - np.eye(z.shape[1])[labels]"
            )
        },
    },
    hints=(
        "Compute the probabilities p first, with the shift by each row's maximum.",
        "p[np.arange(N), labels] is one entry for each sample: subtract 1 there.",
        "The loss is a mean over N samples, so divide by N at the end.",
    ),
)


# Exercise 1.5


def relu_backward(dy, x):
    """Return the gradient of relu with respect to its input x; 0 where x is 0. Shapes: all the same."""
    return dy * (x > 0)


def _relu_cases() -> Sequence[Case]:
    rng = np.random.default_rng(6)
    x = np.array([[-1.0, 0.0, 2.0]])
    return [
        *both_dtypes("x = [[-1, 0, 2]]", np.array([[3.0, 5.0, -7.0]]), x),
        *both_dtypes("4 samples, 3 units", rng.normal(size=(4, 3)), rng.normal(size=(4, 3))),
        *both_dtypes("5 values, all below 0", rng.normal(size=5), -np.ones(5)),
    ]


RELU_BACKWARD = Exercise(
    reference=relu_backward,
    title="Through a ReLU",
    difficulty=1,
    minutes=5,
    cases=_relu_cases,
    expected=lambda case: [ops.relu_backward(*case.arguments[0])],
    mistakes={
        "dy passes where x is 0; use 0 there": {"x > 0)": "x >= 0)"},
        "the mask comes from dy; it has to come from x, the input of the forward pass": {
            "(x > 0)": "(dy > 0)"
        },
        "this is the derivative of relu alone; multiply it by dy": {
            "dy * (x > 0)": "(x > 0).astype(x.dtype)"
        },
        "dy is multiplied by x; its slope above 0 is 1": {"(x > 0)": "np.maximum(x, 0)"},
        "… changes its argument": {"return dy * (x > 0)": "dy[x <= 0] = 0\n    return dy"},
    },
    hints=(
        "The slope of relu is 1 above 0 and 0 below.",
        "`x > 0` is an array of True and False, which multiply like 1 and 0.",
    ),
)


# Exercise 1.6


def views(flat, shapes):
    """Return the parts of `flat` (n,) by name, in the order of `shapes`, as views of the given shapes.

    `shapes` maps names to shapes, such as {"W": (64, 10), "b": (10,)}; their sizes add up to n.
    """
    parts, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        parts[name] = flat[start:stop].reshape(shape)
        start = stop
    return parts


def _view_cases() -> Sequence[Case]:
    shapes = [{"W": (3, 4), "b": (4,)}, {"W": (2, 2), "scale": (), "K": (2, 1, 3)}]
    return [
        Case(f"shapes {of}", ((np.arange(sum(map(math.prod, of.values())), dtype=float), of),))
        for of in shapes
    ]


def _parts(case: Case, memory: str) -> Sequence[Any]:
    ((flat, shapes),) = case.arguments
    parts = {name: [part.copy(), memory] for name, part in nn_flat.views(flat, shapes).items()}
    return [parts]


VIEWS = Exercise(
    reference=views,
    title="Views into one flat array",
    difficulty=2,
    minutes=10,
    prelude="import math\nimport numpy as np",
    cases=_view_cases,
    digest=wraps.with_memory,
    expected=lambda case: _parts(case, "view"),
    mistakes={
        "the parts are copies, so writing to them does not reach flat: slices and reshape make views": {
            "flat[start:stop]": "np.array(flat[start:stop])"
        },
        "every part starts at entry 0; the next part starts where the last one stops": {
            "        start = stop\n": ""
        },
        "… shape": {".reshape(shape)": ""},
        "… IndexError": {"math.prod(shape)": "shape[0] * (shape[1] if len(shape) > 1 else 1)"},
    },
    hints=(
        "Keep the position where the next part starts. A part has math.prod(shape) entries.",
        "flat[start:stop] is a view, and so is its reshape(shape).",
    ),
)


# Exercise 1.7


def mlp_gradient(params, x, labels):
    """Return (loss, grads) of a network linear → relu → linear with the softmax cross-entropy.

    Shapes: params and grads (P,), flat, with the parts SHAPES; x (N, 64); labels (N,).
    """
    p = views(params, SHAPES)
    hidden = linear(x, p["W1"], p["b1"])
    active = relu(hidden)
    z = linear(active, p["W2"], p["b2"])

    grads = np.zeros_like(params)
    g = views(grads, SHAPES)
    dz = softmax_cross_entropy_backward(z, labels)
    dactive, g["W2"][...], g["b2"][...] = linear_backward(dz, active, p["W2"])
    dhidden = relu_backward(dactive, hidden)
    _, g["W1"][...], g["b1"][...] = linear_backward(dhidden, x, p["W1"])
    return softmax_cross_entropy(z, labels), grads


def _mlp_cases() -> Sequence[Case]:
    return [
        Case(f"N = {n}, {dtype.__name__}", ((initial(dtype), *samples(n, 3, dtype)),))
        for n in (1, 6)
        for dtype in (np.float64, np.float32)
    ]


MLP_GRADIENT = Exercise(
    reference=mlp_gradient,
    title="A whole network",
    difficulty=4,
    minutes=20,
    prelude=MLP,
    tolerance=1e-5,  # float32 parameters
    cases=_mlp_cases,
    expected=lambda case: [whole(*case.arguments[0])],
    mistakes={
        'the gradient is 0: `g["W1"] = …` puts a new array into the dictionary; write into the view, '
        '`g["W1"][...] = …`': {"[...]": ""},
        "relu is missing in the forward pass and in the backward pass": {
            "relu(hidden)": "hidden",
            "relu_backward(dactive, hidden)": "dactive",
        },
        "relu_backward is missing: the gradients of W1 and b1 ignore which units were 0": {
            "relu_backward(dactive, hidden)": "dactive"
        },
        "the gradient of W2 uses the units before relu; the second layer's input is after it": {
            "linear_backward(dz, active,": "linear_backward(dz, hidden,"
        },
        "… ValueError: could not broadcast": {"(dhidden, x,": "(dhidden, active,"},
    },
    hints=(
        "Forward: hidden = linear(x, W1, b1), active = relu(hidden), z = linear(active, W2, b2).",
        "Backward, in reverse order: softmax_cross_entropy_backward, linear_backward, relu_backward, "
        "linear_backward. Each gets the input that its layer had in the forward pass.",
        'g = views(grads, SHAPES), and then g["W2"][...] = dw2 writes into grads.',
    ),
)


# Exercise 1.8


def average_gradients(comm, grads, samples):
    """Leave in grads, on every rank, the mean gradient over the samples of all ranks.

    Shapes: grads (P,), this rank's mean gradient over its number of `samples`; changed in place. A rank
    without samples brings zeros. Nothing is returned.
    """
    total = comm.allreduce(samples)
    weighted = grads * grads.dtype.type(samples / total)
    comm.Allreduce(weighted, grads)


def _average_cases() -> Sequence[Case]:
    """Return cases with unequal numbers of samples; a rank without samples has a gradient of zeros."""
    cases = []
    for dtype in np.float32, np.float64:
        for counts in (1, 3), (4,), (5, 2, 0), (1, 2, 3, 4), (2, 2, 2):
            each = [
                np.multiply(np.random.default_rng((rank, n)).normal(size=7), n > 0).astype(dtype)
                for rank, n in enumerate(counts)
            ]
            label = f"p = {len(counts)}, samples by rank {counts}, {dtype.__name__}"
            cases.append(Case(label, tuple(zip(each, counts, strict=True))))
    return cases


def _mean(case: Case) -> Sequence[Any]:
    grads, counts = zip(*case.arguments, strict=True)
    mean = np.average(np.array(grads, float), axis=0, weights=counts)
    return [mean.astype(grads[0].dtype)] * case.ranks


AVERAGE_GRADIENTS = Exercise(
    reference=average_gradients,
    title="The mean over the samples of all ranks",
    difficulty=3,
    minutes=10,
    on_ranks=True,
    cases=_average_cases,
    expected=_mean,
    result_in=0,
    mistakes={
        "grads is unchanged: `grads = …` only gives the name to another array; write into it, "
        "`grads[...] = …`": """
def average_gradients(comm, grads, samples):
    total = comm.allreduce(samples)
    grads = comm.allreduce(grads * samples) / total
""",
        "this is the mean of the ranks' means; weight each rank by its samples": """
def average_gradients(comm, grads, samples):
    comm.Allreduce(grads.copy(), grads)
    grads /= comm.size
""",
        "this is the sum of the ranks' gradients; it has no weights": """
def average_gradients(comm, grads, samples):
    comm.Allreduce(grads.copy(), grads)
""",
        "this is the weighted sum; divide by the samples of all ranks": """
def average_gradients(comm, grads, samples):
    comm.Allreduce(grads * samples, grads)
""",
        "each rank has its own weighted gradient; the sum over the ranks is missing": """
def average_gradients(comm, grads, samples):
    grads *= samples / comm.allreduce(samples)
""",
        "… never joined": {"    weighted": "    if samples == 0:\n        return\n    weighted"},
    },
    hints=(
        "Multiply by this rank's weight, samples / all samples; then add up over the ranks.",
        "comm.allreduce(samples) is the number of samples of all ranks.",
        "`comm.Allreduce(weighted, grads)` leaves the sum of all ranks' `weighted` in grads.",
    ),
)


# Exercise 1.9


def training_step(comm, params, x, labels, lr):
    """Take one step of gradient descent on the samples of all ranks; return their mean loss before the step.

    Shapes: params (P,), equal on all ranks; changed in place. x (N, 64) and labels (N,) are this rank's
    samples; N may be 0. Every rank returns the same loss.
    """
    n = len(labels)
    loss, grads = mlp_gradient(params, x, labels) if n else (0.0, np.zeros_like(params))
    average_gradients(comm, grads, n)
    params -= lr * grads
    return comm.allreduce(loss * n) / comm.allreduce(n)


STEP = "\n\n".join([MLP, inspect.getsource(mlp_gradient), inspect.getsource(average_gradients)])


def _step_cases() -> Sequence[Case]:
    return [
        Case(
            f"p = {len(counts)}, samples by rank {counts}, {dtype.__name__}",
            tuple((initial(dtype), *samples(n, rank, dtype), 0.5) for rank, n in enumerate(counts)),
        )
        for dtype in (np.float64, np.float32)
        for counts in ((2, 5), (4,), (3, 0, 1), (1, 2, 3, 4))
    ]


def _gathered(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the params and the samples of all ranks together."""
    params, xs, labels, _ = zip(*case.arguments, strict=True)
    return params[0].astype(float), np.concatenate(xs).astype(float), np.concatenate(labels)


def _step_look(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    """Check the parameters after the step, which the function does not return."""
    params, x, labels = _gathered(case)
    lr, mean = case.arguments[0][3], whole(params, x, labels)[1]
    own = [whole(params, x.astype(float), y)[1] if len(y) else 0 * params for _, x, y, _ in case.arguments]
    for rank, outcome in enumerate(outcomes):
        step = params - outcome.arguments[0]
        near = 1e-9 if outcome.arguments[0].dtype == np.float64 else 1e-5
        mistakes = {
            "": lr * mean,
            "params are unchanged: `params = …` makes a new array; use `params -= …`": 0 * mean,
            "params moved along the gradient, which raises the loss; subtract lr * grads": -lr * mean,
            "the step is the gradient itself; multiply it by lr": mean,
            "the step follows this rank's own gradient; average the gradients before it": lr * own[rank],
            "the step is the mean of the ranks' means; weight each by its samples": lr * np.mean(own, axis=0),
        }
        texts = (text for text, wrong in mistakes.items() if np.allclose(step, wrong, rtol=0, atol=near))
        if text := next(texts, "the loss is right, but params did not move by -lr * mean gradient"):
            return f"rank {rank}: {text}"
    return None


TRAINING_STEP = Exercise(
    reference=training_step,
    title="One training step on all ranks",
    difficulty=3,
    minutes=15,
    on_ranks=True,
    prelude=STEP,
    tolerance=1e-5,  # float32 samples
    cases=_step_cases,
    expected=lambda case: [whole(*_gathered(case))[0]] * case.ranks,
    may_change=(0,),
    look=_step_look,
    mistakes={
        "this is the loss of this rank's samples; return the mean over the samples of all ranks": {
            "comm.allreduce(loss * n) / comm.allreduce(n)": "loss"
        },
        "this is the mean of the ranks' losses; weight each by its number of samples": {
            "(loss * n) / comm.allreduce(n)": "(loss) / comm.size"
        },
        "this is the sum of the ranks' losses; weight each by its samples / all samples": {
            "(loss * n) / comm.allreduce(n)": "(loss)"
        },
        "… params are unchanged": {"params -= lr * grads": "params = params - lr * grads"},
        "… raises the loss": {"params -=": "params +="},
        "… multiply it by lr": {"params -= lr * ": "params -= "},
        "… this rank's own gradient": {
            "    average_gradients(comm, grads, n)\n": "",
            "lr * grads\n": "lr * grads\n    average_gradients(comm, grads, n)\n",
        },
        "… the mean of the ranks' means": {"grads, n)": "grads, 1)"},
        "… never joined": {"    loss, grads": "    if n == 0:\n        return 0.0\n    loss, grads"},
        "… nan": {" if n else (0.0, np.zeros_like(params))": ""},
    },
    hints=(
        "Loss and gradient of this rank's samples, average_gradients, the step, the mean loss.",
        "The collectives are in average_gradients and in the mean loss. Every rank calls both, in the "
        "same order, outside any `if`.",
        "The mean loss is comm.allreduce(loss * n) / comm.allreduce(n), as for the gradient.",
    ),
)
