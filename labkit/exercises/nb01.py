"""The exercises of notebook 01: layers and losses, a model, training on ranks."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit import nn
from labkit.checks.compare import difference
from labkit.checks.exercise import Case, Exercise, Outcome
from labkit.exercises import wraps
from labkit.exercises.cases import both_dtypes, calls, normal, weighted_mean
from labkit.nn import flat as nn_flat
from labkit.nn import ops
from labkit.nn.ops import linear, relu
from labkit.text import counted


def _softmax_cases() -> Iterator[Case]:
    small, large, far = np.array([[0.0, 1, 2]]), np.array([[1000.0, 1001, 1002]]), np.array([[0.0, 1000, 5]])
    for label, (z, labels) in {
        "1 sample, 3 classes": (small, [1]),
        "3 samples, 3 classes": (*normal(5, (3, 3)), [2, 0, 1]),
        "5 samples, 10 classes": (*normal(5, (5, 10)), [9, 0, 0, 3, 5]),
        "logits near 1000": (large, [1]),
        "a logit 1000 below the largest": (far, [0]),
        "a row of logits near 0, another near 1000": (np.concatenate([small, large]), [2, 0]),
        "a row of logits near 0, another near -1000": (np.concatenate([small, -large]), [2, 0]),
    }.items():
        yield from both_dtypes(label, (z, np.array(labels)))


# Exercise 1.1
def linear_backward(dy, x, w):
    """Return the gradients (dx, dw, db). Shapes: dy (N, O), x (N, I), w (I, O)."""
    dx = dy @ w.T
    dw = x.T @ dy
    db = dy.sum(axis=0)
    return dx, dw, db


def _linear_cases() -> Iterator[Case]:
    for n, i, o in (1, 1, 1), (3, 3, 3), (5, 4, 3):
        yield from both_dtypes(f"N = {n}, I = {i}, O = {o}", tuple(normal(n, (n, o), (n, i), (i, o))))


LINEAR_BACKWARD = Exercise(
    reference=linear_backward,
    cases=_linear_cases,
    expected=lambda case: [ops.linear_backward(*case.arguments[0])],
    without_loops=True,
    mistakes={
        "db sums over the outputs. The bias acts on every sample: sum over the samples": {
            "dy.sum(axis=0)": "dy.sum(axis=1)"
        },
        "db is the mean over the samples; the loss has divided by their number already: take the sum": {
            "dy.sum(axis=0)": "dy.mean(axis=0)"
        },
        "dw is transposed: it needs the shape of w": {"x.T @ dy": "dy.T @ x"},
        "dx and dw are swapped: return (dx, dw, db)": {"return dx, dw, db": "return dw, dx, db"},
        "all three gradients are N·O times too large: dy holds the factor of the mean already": {
            "return dx, dw, db": "return dx * dy.size, dw * dy.size, db * dy.size"
        },
        "… dtype": {"dy.sum(axis=0)": "dy.sum(axis=0, dtype=np.float64)"},
    },
    hints=(
        "Each gradient has the shape of its array: dx that of x, dw that of w, db (O,).",
        "Add up over every prediction that the entry stands in: dw[i, o] is the sum over n of x[n, i] * "
        "dy[n, o], and so an entry of a matrix product. For x it is a sum over the outputs.",
        "dx = dy @ w.T and dw = x.T @ dy. A bias acts on every sample, so db is a sum over axis 0.",
    ),
)


# Exercise 1.2
def fit_linear(x, y, steps, lr):
    """Train a linear layer by gradient descent on the mean squared error; return its (w, b).

    Both start at 0 and have the dtype of x. Shapes: x (N, I), y (N, O), w (I, O), b (O,).
    """
    w = np.zeros((x.shape[1], y.shape[1]), x.dtype)
    b = np.zeros(y.shape[1], x.dtype)
    for _ in range(steps):
        dy = (x @ w + b - y) * (2 / y.size)
        _, dw, db = linear_backward(dy, x, w)
        w -= lr * dw
        b -= lr * db
    return w, b


def _fit_cases() -> Iterator[Case]:
    for n, i, o, steps in (3, 2, 1, 1), (4, 2, 3, 1), (5, 3, 2, 4):
        label = f"N = {n}, I = {i}, O = {o}, {counted(steps, 'step')}"
        yield from both_dtypes(label, (*normal(n, (n, i), (n, o)), steps, 0.1))
    yield Case("N = 3, I = 2, O = 3, 0 steps", ((*normal(1, (3, 2), (3, 3)), 0, 0.1),))
    yield Case("N = 4, I = 2, O = 1, 3 steps, lr = 1e-5", ((*normal(1, (4, 2), (4, 1)), 3, 1e-5),))
    yield Case("N = 4, I = 2, O = 1, 3 steps, lr = 5", ((*normal(1, (4, 2), (4, 1)), 3, 5.0),))


ERROR = "(x @ w + b - y) * (2 / y.size)"
FIT_LINEAR = Exercise(
    reference=fit_linear,
    prelude="import numpy as np\nfrom labkit.nn.ops import linear_backward",
    cases=_fit_cases,
    mistakes={
        "the mean is forgotten: divide by the number of entries, y.size": {"(2 / y.size)": "2"},
        "this divides by the samples only; the mean is over all entries, y.size": {"y.size)": "len(y))"},
        "the loss rises, a sign is wrong: take predicted minus true, and subtract the step": {"-=": "+="},
        "the factor 2 of the derivative of a square is missing": {"(2 / y.size)": "(1 / y.size)"},
        "the step is the gradient itself; multiply it by lr": {"lr * ": ""},
        "b does not move; it has a gradient, too": {"        b -= lr * db\n": ""},
        "this is one step; take `steps` of them": {"range(steps)": "range(1)"},
        "every step takes the gradient of the start; predict anew in each step": {
            f"    for _ in range(steps):\n        dy = {ERROR}": (
                f"    dy = {ERROR}\n    for _ in range(steps):"
            )
        },
    },
    hints=(
        "Four things in each step: predict, differentiate the loss, call linear_backward, move w and b.",
        "The derivative of u² is 2u, and the mean divides by the number of entries: "
        "dy = (pred - y) * (2 / y.size).",
        "w -= lr * dw and b -= lr * db. np.zeros(shape, x.dtype) keeps float32.",
    ),
)


# Exercise 1.3
def softmax_cross_entropy(z, labels):
    """Return (loss, dz): the mean of -log softmax(z)[label], one number, and its gradient.

    Shapes: z and dz (N, K), labels (N,) in 0 … K-1.
    """
    shifted = z - z.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    at_label = np.arange(len(labels)), labels
    dz = np.exp(log_p)
    dz[at_label] -= 1
    return float(-np.mean(log_p[at_label])), dz / len(labels)


FROM_P = """
def softmax_cross_entropy(z, labels):
    p = np.exp({})
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(p[rows, labels]))
    p[rows, labels] -= 1
    return loss, p / len(labels)
"""
SOFTMAX_CROSS_ENTROPY = Exercise(
    reference=softmax_cross_entropy,
    cases=_softmax_cases,
    expected=lambda case: [
        (ops.softmax_cross_entropy(*argument), ops.softmax_cross_entropy_backward(*argument))
        for argument in case.arguments
    ],
    tolerance=1e-5,  # float32 logits
    mistakes={
        "loss is the sum over the samples; take the mean": {"-np.mean": "-np.sum"},
        "loss has the wrong sign: it is minus the logarithm of a probability": {"-np.mean": "np.mean"},
        "loss averages over all classes; pick the logarithm at the label of each sample": {
            "np.mean(log_p[at_label])": "np.mean(log_p)"
        },
        "log of a p that is 0: compute log p as z - max - log(sum(exp(z - max))), without p": FROM_P.format(
            "z - z.max(axis=1, keepdims=True)"
        ),
        "the maximum of the whole array is subtracted, so other samples underflow to log 0: subtract "
        "the maximum of each row": {"z.max(axis=1, keepdims=True)": "z.max()"},
        "the maximum of the whole array is subtracted, so other samples underflow to 0 / 0: subtract "
        "the maximum of each row": FROM_P.format("z - z.max()"),
        "without a shift, exp overflows and the loss is nan: subtract the maximum of each row": FROM_P.format(
            "z"
        ),
        "without a shift, exp overflows and the loss is inf: subtract the maximum of each row": {
            "z - z.max(axis=1, keepdims=True)": "z"
        },
        "dz: the mean is forgotten: divide by the number of samples": {"dz / len(labels)": "dz"},
        "dz is divided by all entries; the mean of the loss is over the samples": {
            "dz / len(labels)": "dz / dz.size"
        },
        "dz has the wrong sign: predicted minus true": {", dz / len(labels)": ", -dz / len(labels)"},
        "dz is p / N; subtract 1 from p at the label of each sample first": {"    dz[at_label] -= 1\n": ""},
        "`dz[:, labels]` subtracts 1 in whole columns; index with [np.arange(N), labels]": {
            "dz[at_label]": "dz[:, labels]"
        },
        "… dtype": {"dz[at_label] -= 1": "dz = dz - np.eye(z.shape[1])[labels]"},
    },
    hints=(
        "Subtract each row's own maximum from z first: it changes no probability. keepdims=True keeps (N, "
        "1).",
        "log p = z - log(sum(exp(z))) in each row, and log_p[np.arange(len(labels)), labels] picks one for "
        "each sample. The gradient is p, minus 1 at the label, divided by N.",
        "p is np.exp(log_p): subtract 1 at the same places that you have picked from.",
    ),
)


SHAPES = {"W1": (64, 64), "b1": (64,), "W2": (64, 10), "b2": (10,)}
MLP = f"""\
import math
import numpy as np
from labkit.nn.ops import linear, linear_backward, relu
from labkit.nn.flat import views
SHAPES = {str(SHAPES).replace("'", '"')}


{inspect.getsource(softmax_cross_entropy)}"""


# Exercise 1.4
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


def look_at_parts(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    expected, got = nn_flat.views(*case.arguments[0]), outcomes[0].result
    is_dict = isinstance(got, dict) and "apart" in got
    wrong = difference(got["parts"] if is_dict else got, expected, 0.0)
    if wrong:
        yield wrong
    elif got["apart"]:
        names = ", ".join(map(repr, got["apart"]))
        yield f"writing to {names} does not reach flat: a slice with reshape is a view, flat[k] is not"


VIEWS = Exercise(
    reference=views,
    prelude="import math\nimport numpy as np",
    cases=calls(
        views,
        (np.arange(16.0), {"W": (3, 4), "b": (4,)}),
        (np.arange(11.0), {"W": (2, 2), "scale": (), "K": (2, 1, 3)}),
        (np.arange(5, dtype=np.float32), {"W": (2, 2), "none": (0, 3), "b": (1,)}),
    ),
    digest=wraps.with_memory,
    look=look_at_parts,
    mistakes={
        "… does not reach flat": {"flat[start:stop]": "np.array(flat[start:stop])"},
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


# Exercise 1.5
def mlp_gradient(params, x, labels):
    """Return (loss, grads) of a network linear → relu → linear with the softmax cross-entropy.

    Shapes: params and grads (P,), flat, with the parts SHAPES; x (N, 64); labels (N,).
    """
    p = views(params, SHAPES)
    hidden = linear(x, p["W1"], p["b1"])
    active = relu(hidden)
    loss, dz = softmax_cross_entropy(linear(active, p["W2"], p["b2"]), labels)

    grads = np.zeros_like(params)
    g = views(grads, SHAPES)
    dactive, g["W2"][...], g["b2"][...] = linear_backward(dz, active, p["W2"])
    dhidden = dactive * (hidden > 0)
    _, g["W1"][...], g["b1"][...] = linear_backward(dhidden, x, p["W1"])
    return loss, grads


def _mlp_cases() -> Iterator[Case]:
    for n, zero, suffix in (1, 0, ""), (6, 0, ""), (3, 9, ", nine hidden units at 0"):
        params, x = normal(n, nn_flat.size(SHAPES), (n, 64))
        params *= 0.3
        params[: 65 * 64].reshape(65, 64)[:, :zero] = 0  # in W1 and b1
        yield from both_dtypes(f"N = {n}{suffix}", (params, x, np.arange(n) * 7 % 10))


def _mlp(case: Case) -> Sequence[Any]:
    """Return the loss and the flat gradient that labkit's own model finds."""
    ((params, x, labels),) = case.arguments
    model = nn.mlp(dtype=params.dtype.type)
    model.params[...] = params
    loss = model.loss_and_gradient(x, labels)
    return [(loss, model.grads.copy())]


MLP_GRADIENT = Exercise(
    reference=mlp_gradient,
    prelude=MLP,
    tolerance=1e-5,  # float32 parameters
    cases=_mlp_cases,
    expected=_mlp,
    mistakes={
        'the gradient is 0: `g["W1"] = …` puts a new array into the dictionary; write into the view, '
        '`g["W1"][...] = …`': {"[...]": ""},
        "relu is missing in the forward pass and in the backward pass": {
            "relu(hidden)": "hidden",
            "dactive * (hidden > 0)": "dactive",
        },
        "the backward pass of relu is missing: the gradients of W1 and b1 ignore which units were 0": {
            "dactive * (hidden > 0)": "dactive"
        },
        "relu: the gradient passes where its input is 0; use 0 there": {"hidden > 0": "hidden >= 0"},
        "relu: the mask comes from the gradient; it has to come from the input of relu": {
            "hidden > 0": "dactive > 0"
        },
        "relu: this is the slope alone; multiply the gradient by it": {
            "dactive * (hidden > 0)": "(hidden > 0).astype(hidden.dtype)"
        },
        "relu: the gradient is multiplied by relu's output; its slope above 0 is 1": {
            "dactive * (hidden > 0)": "dactive * active"
        },
        "the gradient of W2 uses the units before relu; the second layer's input is after it": {
            "linear_backward(dz, active,": "linear_backward(dz, hidden,"
        },
        "the gradient of W1 uses the hidden units; the first layer's input is x": {
            "(dhidden, x,": "(dhidden, active,"
        },
    },
    hints=(
        "Forward: hidden = linear(x, W1, b1), active = relu(hidden), z = linear(active, W2, b2).",
        "Backward, in reverse order: softmax_cross_entropy gives dz, then linear_backward, relu's slope (1 "
        "where its input was above 0, otherwise 0) times the gradient, linear_backward. Each layer needs the "
        "input that it had in the forward pass.",
        'g = views(grads, SHAPES), and then g["W2"][...] = dw2 writes into grads.',
    ),
)


# Exercise 1.6
def average_gradients(comm, grads, samples):
    """Leave in grads, on every rank, the mean gradient over the samples of all ranks.

    Shapes: grads (P,), this rank's mean gradient over its number of `samples`; changed in place. A rank
    that has no samples contributes a gradient of zeros. Nothing is returned.
    """
    total = comm.allreduce(samples)
    weighted = grads * grads.dtype.type(samples / total)
    comm.Allreduce(weighted, grads)


def _average_cases() -> Iterator[Case]:
    for counts in (1, 3), (4,), (5, 2, 0), (1, 2, 3, 4), (2, 2, 2):
        arguments = ((normal(rank, 7)[0] * (n > 0), n) for rank, n in enumerate(counts))
        yield from both_dtypes(f"samples by rank {counts}", *arguments)


AVERAGE_GRADIENTS = Exercise(
    reference=average_gradients,
    cases=_average_cases,
    expected=weighted_mean,
    result_in=0,
    mistakes={
        "grads is unchanged: neither `return` nor a new array of the same name reaches the caller's; write "
        "into it, `grads[...] = …`": {"comm.Allreduce(weighted, grads)": "grads = comm.allreduce(weighted)"},
        "this is the mean of the ranks' means; weight each rank by its samples": {
            "samples / total": "1 / comm.size"
        },
        "this is the sum of the ranks' gradients; it has no weights": {"samples / total": "1"},
        "this is the weighted sum; divide by the samples of all ranks": {"samples / total": "samples"},
        "each rank has its own weighted gradient; the sum over the ranks is missing": {
            "comm.Allreduce(weighted, grads)": "grads[...] = weighted"
        },
    },
    hints=(
        "Multiply by this rank's weight, samples / all samples; then add up over the ranks.",
        "comm.allreduce(samples) is the number of samples of all ranks.",
        "`comm.Allreduce(weighted, grads)` leaves the sum of all ranks' `weighted` in grads.",
    ),
)


# Exercise 1.7
def train_epoch(comm, params, batches, gradient, average, update):  # noqa: PLR0917
    """Take a step with each batch; return the mean loss over the samples of all ranks.

    `batches` holds this rank's part (x, labels) of each batch; a part may be empty. The three functions are
    the parts of a step: gradient(params, x, labels) returns the mean loss and its gradient, which has the
    shape of `params`; average(comm, grads, samples) replaces grads by the weighted mean over all ranks;
    and update(params, grads) moves the parameters in place.
    """
    total, seen = 0.0, 0
    for x, labels in batches:
        samples = len(labels)
        loss, grads = gradient(params, x, labels) if samples else (0.0, np.zeros_like(params))
        average(comm, grads, samples)
        update(params, grads)
        total += loss * samples
        seen += samples
    return comm.allreduce(total) / comm.allreduce(seen)


def _epoch_cases() -> Iterator[Case]:
    functions = wraps.loss_and_gradient, wraps.average, wraps.descend
    even = (1, 2), (2, 2), (3, 1), (4, 1)
    for sizes in ((2,), (5,)), ((4, 2),), ((3, 1), (0, 2), (1, 0)), ((2, 1), (0, 0), (3, 2)), even:
        batches = [
            [tuple(normal((rank, n), (n, 3), n)) for n in sizes_of_rank]
            for rank, sizes_of_rank in enumerate(sizes)
        ]
        arguments = ((np.arange(3.0), batches_of_rank, *functions) for batches_of_rank in batches)
        yield from both_dtypes(f"local batches by rank {sizes}", *arguments)


def _epoch(case: Case) -> tuple[float, np.ndarray]:
    """Return the mean loss and the params, from global batches on one rank in float64."""
    params, total, seen = case.arguments[0][0].astype(float), 0.0, 0
    for parts in zip(*(arguments[1] for arguments in case.arguments), strict=True):
        x, labels = (np.concatenate(part).astype(float) for part in zip(*parts, strict=True))
        loss, grads = wraps.loss_and_gradient(params, x, labels)
        wraps.descend(params, grads)
        total, seen = total + loss * len(labels), seen + len(labels)
    return total / seen, params.astype(case.arguments[0][0].dtype)


TRAIN_EPOCH = Exercise(
    reference=train_epoch,
    tolerance=1e-5,  # float32 samples
    cases=_epoch_cases,
    expected=lambda case: [_epoch(case)] * case.ranks,
    result_in=(None, 0),
    mistakes={
        "this is the loss of this rank's samples; take the mean over the samples of all ranks": {
            "comm.allreduce(total) / comm.allreduce(seen)": "total / max(seen, 1)"
        },
        "this is the mean of the ranks' losses; weight each by its number of samples": {
            "comm.allreduce(total) / comm.allreduce(seen)": "comm.allreduce(total / max(seen, 1)) / comm.size"
        },
        "this is the sum of the losses of all samples; divide by the samples of all ranks": {
            " / comm.allreduce(seen)": ""
        },
        "this is the mean of the steps' losses; a step with few samples counts less": {
            "total += loss * samples": (
                "everywhere = comm.allreduce(samples)\n"
                "        total += comm.allreduce(loss * samples) / everywhere"
            ),
            "seen += samples": "seen += 1",
        },
        "this is the loss of the last step; return the mean over all steps": {
            "total += loss * samples": "total = loss * samples",
            "seen += samples": "seen = samples",
        },
        "the step follows this rank's own gradient; average the gradients before it": {
            "        average(comm, grads, samples)\n        update(params, grads)": (
                "        update(params, grads)\n        average(comm, grads, samples)"
            ),
        },
        "the step is the mean of the ranks' means; weight each by its samples": {"samples)": "1)"},
        "a rank with an empty part gets nan: `gradient` does not work on 0 samples. There, the loss is 0.0 "
        "and the gradient np.zeros_like(params)": {" if samples else (0.0, np.zeros_like(params))": ""},
        "the parameters never move: call update(params, grads) in each step": {
            "        update(params, grads)\n": ""
        },
        "the loss is right, but params did not move in place: do not copy them": {
            "    total, seen": "    params = params.copy()\n    total, seen"
        },
        "… the ranks hang": {
            "        loss, grads": "        if samples == 0:\n            continue\n        loss, grads"
        },
    },
    hints=(
        "In each step, compute the loss and the gradient of this rank's part, average the gradients over the "
        "ranks, and update the parameters. Add up what the mean loss of the epoch needs.",
        "Every rank calls `average` in every step, outside any `if`. A rank without samples passes "
        "np.zeros_like(params) and 0.",
        "Each loss is a mean: add up loss * samples, and the samples. At the end, comm.allreduce sums both "
        "over the ranks.",
    ),
)


QUESTIONS = {
    "01-suspects": "A sums db over the outputs in place of the samples; B takes the mean over the samples; "
    "C returns dw transposed; D has dx and dw exchanged. In E all three are 9 times too large, so the "
    "error is in what they share: the mean's factor, 1 over the 9 entries of pred, is lost.",
    "01-learning-rate": "Each step is N·O times too large, as with a learning rate N·O times as large: the "
    "loss jumps or overflows. You would be tempted to lower the learning rate until training works. But "
    "then the right one depends on the batch size, and changes whenever you split the batch over ranks.",
    "01-weights": "Only in steps whose batch does not divide evenly over the ranks: with four ranks in the "
    "last one of each epoch, where they have 8, 8, 7 and 7 samples. The difference is small, and the loss "
    "and the accuracy are as before. You notice it only by comparing with one rank: its parameters, as the "
    "last assertions of the training cell do, or its gradient.",
    "01-bonus-1": "Twice as many: dw = x^T dy and dx = dy w^T are matrix products of N I O multiplications "
    "each, and the forward pass is one of them. db needs only additions. So a training step costs about "
    "three forward passes; the first layer does not need its dx.",
    "01-bonus-2": "Above 2 / λ, where λ is the largest eigenvalue of the matrix of second derivatives of "
    "the loss, here of 2/N times X^T X (with a column of ones in X for the bias): 7.2, so above 0.28. The "
    "inputs lie between 0 and 1, so a step in the direction in which all weights and the bias grow "
    "together changes all predictions. With inputs shifted to mean 0, the largest eigenvalue is 2, the "
    "bias's own, and the limit 1. That is one reason to normalise inputs.",
    "01-bonus-3": "A row of dz is (p - one-hot) / N. The probabilities add up to 1, and so does the "
    "one-hot row, so the difference adds up to 0. It must: adding the same constant to all logits of a "
    "row changes no probability, so the loss has slope 0 in that direction.",
    "01-bonus-4": "None is lost: a view has a stride for each dimension, and equal steps can be split into "
    "any shape (`np.shares_memory` says so). What is lost is the contiguous buffer: mpi4py refuses such an "
    "array, so you would copy it before each message. (Of rows that are cut out of a wider matrix the "
    "steps are unequal, and `reshape` copies.)",
    "01-bonus-5": "Until the backward pass, a layer keeps its input: N times as many values as it has "
    "inputs. With 64 inputs and 64 units in both hidden layers, both keep equally much. In general the "
    "layer with the wider input needs more, whatever its number of parameters.",
    "01-bonus-6": "Put the number of samples behind the weighted gradient: an array of P + 1 values, "
    "[samples * grads, samples]. One Allreduce sums both; divide the first P by the last. In float32 the "
    "count is exact up to 2^24.",
    "01-bonus-7": "None. Collect each step's loss times its samples, and the samples, in two arrays, and sum "
    "them over the ranks by one all-reduce at the end of the epoch, in place of the one for the mean "
    "loss.",
}
