"""The exercises of notebook 01 about a whole model."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit import nn
from labkit.exercises import wraps
from labkit.exercises.catalogue.nb01.layers import exercise
from labkit.exercises.exercise import Case
from labkit.nn import flat as nn_flat
from labkit.nn.ops import (
    linear,
    linear_backward,
    relu,
    relu_backward,
    softmax_cross_entropy,
    softmax_cross_entropy_backward,
)

Results = Callable[[Case], Sequence[Any]]
SHAPES = {"W1": (64, 32), "b1": (32,), "W2": (32, 10), "b2": (10,)}


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


MLP = f"""\
import math
import numpy as np
from labkit.nn.ops import linear, linear_backward, relu, relu_backward
from labkit.nn.ops import softmax_cross_entropy, softmax_cross_entropy_backward
from labkit.nn.flat import views
SHAPES = {SHAPES}
"""
P = sum(map(math.prod, SHAPES.values()))


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


def _all_from_0(case: Case) -> Sequence[Any]:
    ((flat, shapes),) = case.arguments
    return [{name: [flat[: math.prod(s)].reshape(s), "view"] for name, s in shapes.items()}]


def initial(dtype: Any) -> np.ndarray:
    """Return the parameters that all cases start from. Shape: (P,)."""
    return (0.3 * np.random.default_rng(7).normal(size=P)).astype(dtype)


def samples(n: int, seed: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return x (n, 64) and labels (n,)."""
    rng = np.random.default_rng((n, seed))
    return rng.normal(size=(n, 64)).astype(dtype), rng.integers(10, size=n)


def _mlp_cases() -> Sequence[Case]:
    return [
        Case(f"N = {n}, {dtype.__name__}", ((initial(dtype), *samples(n, 3, dtype)),))
        for n in (1, 6)
        for dtype in (np.float64, np.float32)
    ]


def whole(params: np.ndarray, x: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the loss and the flat gradient that labkit's own model finds."""
    model = nn.mlp(hidden=32, dtype=params.dtype.type)
    model.params[...] = params
    loss = model.loss_and_gradient(x, labels)
    return loss, model.grads.copy()


def _slip(wrong: str) -> Results:
    """Return a suspect: what the backward pass gives with one slip."""

    def results(case: Case) -> Sequence[Any]:
        params, x, labels = case.arguments[0]
        p = nn_flat.views(params, SHAPES)
        hidden = linear(x, p["W1"], p["b1"])
        active = hidden if wrong == "no relu forward" else relu(hidden)
        z = linear(active, p["W2"], p["b2"])
        dz = softmax_cross_entropy_backward(z, labels)
        dactive, dw2, db2 = linear_backward(dz, active, p["W2"])
        dhidden = (
            dactive if wrong in ("no relu backward", "no relu forward") else relu_backward(dactive, hidden)
        )
        _, dw1, db1 = linear_backward(dhidden, x, p["W1"])
        if wrong == "not activations":
            _, dw2, _ = linear_backward(dz, hidden, p["W2"])
        grads = np.concatenate([part.ravel() for part in (dw1, db1, dw2, db2)])
        if wrong == "not in place":
            grads[...] = 0
        return [(softmax_cross_entropy(z, labels), grads)]

    return results


EXERCISES = [
    exercise(
        views,
        "Views into one flat array",
        difficulty=2,
        minutes=10,
        prelude="import math\nimport numpy as np",
        cases=_view_cases,
        digest=wraps.with_memory,
        expected=lambda case: _parts(case, "view"),
        suspects={
            "the parts are copies, so writing to them does not reach flat: slices and reshape make "
            "views": lambda case: _parts(case, "copy"),
            "every part starts at entry 0; the next part starts where the last one stops": _all_from_0,
        },
        hints=(
            "Keep the position where the next part starts. A part has math.prod(shape) entries.",
            "flat[start:stop] is a view, and so is its reshape(shape).",
        ),
    ),
    exercise(
        mlp_gradient,
        "A whole network",
        difficulty=4,
        minutes=20,
        prelude=MLP,
        tolerance=1e-5,  # float32 parameters
        cases=_mlp_cases,
        expected=lambda case: [whole(*case.arguments[0])],
        suspects={
            'the gradient is 0: `g["W1"] = …` puts a new array into the dictionary; write into the view, '
            '`g["W1"][...] = …`': _slip("not in place"),
            "relu is missing in the forward pass and in the backward pass": _slip("no relu forward"),
            "relu_backward is missing: the gradients of W1 and b1 ignore which units were 0": _slip(
                "no relu backward"
            ),
            "the gradient of W2 uses the units before relu; the second layer's input is after it": _slip(
                "not activations"
            ),
        },
        hints=(
            "Forward: hidden = linear(x, W1, b1), active = relu(hidden), z = linear(active, W2, b2).",
            "Backward, in reverse order: softmax_cross_entropy_backward, linear_backward, relu_backward, "
            "linear_backward. Each gets the input that its layer had in the forward pass.",
            'g = views(grads, SHAPES), and then g["W2"][...] = dw2 writes into grads.',
        ),
    ),
]
