"""Convolution: the windows of an image, the forward and the backward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.nn import ops
from labkit.nn.ops.convolution import padded


def im2col(x, k, stride, pad):  # type: ignore[no-untyped-def]
    """Return one row for each position. Shapes: x (N, C, H, W); result (N·H'·W', k·k·C)."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    n, c, h, w = x.shape
    height, width = (h - k) // stride + 1, (w - k) // stride + 1
    rows = np.empty((n, height, width, k, k, c), x.dtype)
    for i in range(k):
        for j in range(k):
            seen = x[:, :, i : i + stride * height : stride, j : j + stride * width : stride]
            rows[:, :, :, i, j] = seen.transpose(0, 2, 3, 1)
    return rows.reshape(n * height * width, k * k * c)


def conv_forward(x, w, b, stride, pad):  # type: ignore[no-untyped-def]
    """Return the convolution. Shapes: x (N, C, H, W), w (K, K, C, O), b (O,); result (N, O, H', W')."""
    k, outputs = len(w), len(b)
    height = (x.shape[2] + 2 * pad - k) // stride + 1
    width = (x.shape[3] + 2 * pad - k) // stride + 1
    y = im2col(x, k, stride, pad) @ w.reshape(-1, outputs) + b
    return y.reshape(len(x), height, width, outputs).transpose(0, 3, 1, 2)


def conv_backward(dy, x, w, stride, pad):  # type: ignore[no-untyped-def]
    """Return (dx, dw, db). Shapes: dy (N, O, H', W'), x (N, C, H, W), w (K, K, C, O)."""
    n, c, h, width = x.shape
    k, outputs = len(w), w.shape[3]
    rows, w_matrix = im2col(x, k, stride, pad), w.reshape(-1, outputs)
    dy_matrix = dy.transpose(0, 2, 3, 1).reshape(-1, outputs)
    dw, db = rows.T @ dy_matrix, dy_matrix.sum(axis=0)
    drows = (dy_matrix @ w_matrix.T).reshape(n, dy.shape[2], dy.shape[3], k, k, c)
    dpadded = np.zeros((n, c, h + 2 * pad, width + 2 * pad), x.dtype)
    for i in range(k):
        for j in range(k):
            seen = dpadded[:, :, i : i + stride * dy.shape[2] : stride, j : j + stride * dy.shape[3] : stride]
            seen += drows[:, :, :, i, j].transpose(0, 3, 1, 2)
    return dpadded[:, :, pad : pad + h, pad : pad + width], dw.reshape(w.shape), db


# Samples, channels, height, width, kernel, outputs, stride, padding: the first ones hide the fewest mistakes.
SIZES = (
    ((1, 1, 3, 3), 2, 1, 1, 0),
    ((1, 2, 3, 4), 2, 3, 1, 0),
    ((2, 2, 4, 5), 3, 3, 1, 1),
    ((2, 3, 7, 6), 3, 2, 2, 1),
    ((3, 2, 6, 6), 1, 4, 3, 2),
)


def _conv_cases(names: str) -> Callable[[], Sequence[Case]]:
    """Return the cases of a function with these arguments, with digit-coded or random values."""

    def cases() -> Sequence[Case]:
        made = []
        for shape, k, outputs, stride, pad in SIZES:
            height, width = ((size + 2 * pad - k) // stride + 1 for size in shape[2:])
            for dtype in np.float64, np.float32:
                rng = np.random.default_rng(k)
                arrays = {
                    "x": rng.normal(size=shape).astype(dtype),
                    "w": rng.normal(size=(k, k, shape[1], outputs)).astype(dtype),
                    "b": rng.normal(size=outputs).astype(dtype),
                    "dy": rng.normal(size=(shape[0], outputs, height, width)).astype(dtype),
                }
                arguments = tuple(k if name == "k" else arrays[name] for name in names.split())
                label = (
                    f"x of shape {shape}, {k} × {k} kernel, stride {stride}, padding {pad}, {dtype.__name__}"
                )
                made.append(Case(label, ((*arguments, stride, pad),)))
        return made

    return cases


def _by_position(x: np.ndarray, k: int, stride: int, pad: int) -> np.ndarray:
    """Return the windows (N, H', W', C, k, k) of the padded x, one position after the other."""
    views = np.lib.stride_tricks.sliding_window_view(padded(x, pad), (k, k), axis=(2, 3))
    return views[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)


def _rows(change: Callable[..., np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of im2col: what `change` makes of the windows (N, H', W', C, k, k)."""

    def suspect(case: Case) -> Sequence[Any]:
        ((x, k, stride, pad),) = case.arguments
        windows = change(_by_position(x, k, stride, pad))
        return [windows.reshape(-1, k * k * x.shape[1])]

    return suspect


def _im2col_of(change: Callable[..., tuple[Any, ...]]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of im2col: the right rows of other arguments."""

    def suspect(case: Case) -> Sequence[Any]:
        return [im2col(*change(*case.arguments[0]))]

    return suspect


def _all_axes_padded(x: np.ndarray, k: int, stride: int, pad: int) -> tuple[Any, ...]:
    return np.pad(x, pad), k, stride, 0


def _last_missing(x: np.ndarray, k: int, stride: int, pad: int) -> tuple[Any, ...]:
    return padded(x, pad)[:, :, :-stride, :-stride], k, stride, 0


def _conv_of(change: Callable[..., tuple[Any, ...]]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of conv_forward: the convolution of other arguments."""

    def suspect(case: Case) -> Sequence[Any]:
        x, w, b, stride, pad = change(*case.arguments[0])
        return [ops.conv2d(x, w, b, stride, pad)]

    return suspect


def _channels_left_last(case: Case) -> Sequence[Any]:
    y = ops.conv2d(*case.arguments[0])
    return [np.ascontiguousarray(y.transpose(0, 2, 3, 1)).reshape(y.shape)]


def _gradients(change: Callable[..., Sequence[np.ndarray]]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of conv_backward: what `change` makes of the right (dx, dw, db) and the arguments."""

    def suspect(case: Case) -> Sequence[Any]:
        arguments = case.arguments[0]
        return [tuple(change(ops.conv2d_backward(*arguments), arguments))]

    return suspect


def _overwritten(right, arguments):  # type: ignore[no-untyped-def]
    dy, x, w, stride, pad = arguments
    dx, k = padded(np.zeros_like(x), pad), len(w)
    for i, j in np.ndindex(k, k):
        ends = i + stride * dy.shape[2], j + stride * dy.shape[3]
        from_windows = np.tensordot(dy, w[i, j], axes=(1, 1)).transpose(0, 3, 1, 2)
        dx[:, :, i : ends[0] : stride, j : ends[1] : stride] = from_windows
    return dx[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]], *right[1:]


def _with_padding(dy, x, w, stride, pad):  # type: ignore[no-untyped-def]
    return ops.conv2d_backward(dy, padded(x, pad), w, stride)[0]


def _cut_at_0(right, arguments):  # type: ignore[no-untyped-def]
    dy, x, w, stride, pad = arguments
    return _with_padding(dy, x, w, stride, pad)[:, :, : x.shape[2], : x.shape[3]], *right[1:]


def _dy_as_it_lies(right, arguments):  # type: ignore[no-untyped-def]
    dy, x, w, stride, pad = arguments
    n, outputs, height, width = dy.shape
    mixed = dy.reshape(n, height, width, outputs).transpose(0, 3, 1, 2)
    return ops.conv2d_backward(mixed, x, w, stride, pad)


def _kernel_turned(right, arguments):  # type: ignore[no-untyped-def]
    dy, x, w, stride, pad = arguments
    return ops.conv2d_backward(dy, x, w[::-1, ::-1], stride, pad)[0], *right[1:]


IM2COL = "import numpy as np\n\n\n" + inspect.getsource(im2col)


EXERCISES = [
    Exercise(
        reference=im2col,
        title="The windows of an image as a matrix",
        difficulty=3,
        minutes=15,
        cases=_conv_cases("x k"),
        expected=_rows(lambda windows: windows.transpose(0, 1, 2, 4, 5, 3)),
        suspects={
            "each row holds channel after channel. w has the order kernel row, kernel column, channel": _rows(
                lambda windows: windows
            ),
            "the columns of the result are the windows, the rows should be: transpose it": lambda case: [
                im2col(*case.arguments[0]).T
            ],
            "the padding is missing: put `pad` zeros around each image first": _im2col_of(
                lambda x, k, stride, pad: (x, k, stride, 0)
            ),
            "np.pad with one number pads samples and channels, too: pad only the last two axes": _im2col_of(
                _all_axes_padded
            ),
            "the stride is ignored: the window moves by `stride` pixels": _im2col_of(
                lambda x, k, stride, pad: (x, k, 1, pad)
            ),
            "the last windows are missing: there are (H + 2 pad - k) // stride + 1 rows of them": _im2col_of(
                _last_missing
            ),
            "the windows come column after column: go through each row of the image first": _rows(
                lambda windows: windows.transpose(0, 2, 1, 4, 5, 3)
            ),
            "kernel row and kernel column are exchanged within each window": _rows(
                lambda windows: windows.transpose(0, 1, 2, 5, 4, 3)
            ),
        },
        hints=(
            "Pad first: np.pad takes one pair (before, after) for each axis of x. Count the positions next.",
            "Make an array of shape (N, H', W', k, k, C), fill it, and reshape it at the end.",
            "x[:, :, i : i + stride * H' : stride, j : …] is what place (i, j) of the kernel sees, at all "
            "positions at once. Its axes are (N, C, H', W'); transpose(0, 2, 3, 1) puts the channels last.",
        ),
    ),
    Exercise(
        reference=conv_forward,
        title="Convolution as one matrix product",
        difficulty=2,
        minutes=10,
        cases=_conv_cases("x w b"),
        expected=lambda case: [ops.conv2d(*case.arguments[0])],
        suspects={
            "the bias is missing": _conv_of(lambda x, w, b, stride, pad: (x, w, 0 * b, stride, pad)),
            "the values are right, but in the wrong places. The product has the channels last: reshape it to "
            "(N, H', W', O), then transpose": _channels_left_last,
            "w is reshaped to (O, …), but its outputs are the last axis: w.reshape(-1, O)": _conv_of(
                lambda x, w, b, stride, pad: (
                    x,
                    w.reshape(len(b), -1).T.reshape(w.shape),
                    b,
                    stride,
                    pad,
                )
            ),
            "the padding is ignored": _conv_of(lambda x, w, b, stride, pad: (x, w, b, stride, 0)),
            "the stride is ignored": _conv_of(lambda x, w, b, stride, pad: (x, w, b, 1, pad)),
            "the kernel is turned by 180°. In deep learning it is not: y is a cross-correlation": _conv_of(
                lambda x, w, b, stride, pad: (x, w[::-1, ::-1], b, stride, pad)
            ),
        },
        hints=(
            "im2col gives the inputs of a linear layer. Which shape must w have to be its weights?",
            "im2col(x, k, stride, pad) @ w.reshape(-1, O) + b has shape (N·H'·W', O).",
            "Reshape the product to (N, H', W', O); transpose(0, 3, 1, 2) makes (N, O, H', W') of it.",
        ),
        prelude=IM2COL,
    ),
    Exercise(
        reference=conv_backward,
        title="The backward pass of a convolution",
        difficulty=4,
        minutes=25,
        cases=_conv_cases("dy x w"),
        expected=lambda case: [ops.conv2d_backward(*case.arguments[0])],
        suspects={
            "dx: a pixel in several windows got the gradient of the last one only; add with +=": _gradients(
                _overwritten
            ),
            "dx: the padding is cut off at the wrong place; the image begins at [pad, pad]": _gradients(
                _cut_at_0
            ),
            "dx is made with the kernel turned by 180°": _gradients(_kernel_turned),
            "dy.reshape(-1, O) mixes channels and positions: transpose to (N, H', W', O) first": _gradients(
                _dy_as_it_lies
            ),
            "dw is divided by the number of samples; dw is a sum": _gradients(
                lambda right, a: (right[0], right[1] / len(a[0]), right[2])
            ),
            "db is a mean; the bias acts at each position, so sum": _gradients(
                lambda right, a: (*right[:2], a[0].mean(axis=(0, 2, 3)))
            ),
            "db sums over the samples only; the bias acts at each position: sum over these, too": _gradients(
                lambda right, a: (*right[:2], a[0].sum(axis=0))
            ),
        },
        hints=(
            "The convolution is a linear layer on the rows of im2col; dw, db and the gradient of these rows "
            "are those of linear_backward (notebook 01).",
            "Bring dy to the shape of the product first: dy.transpose(0, 2, 3, 1).reshape(-1, O).",
            "dx: make zeros of the padded shape. For each place (i, j) of the kernel, add the gradient of "
            "the rows to the slice that im2col copied from: im2col's loop in the other direction, with +=.",
            "Cut the padding off at the end: [:, :, pad : pad + H, pad : pad + W].",
        ),
        prelude=IM2COL,
    ),
]
