"""The exercises of notebook 02: convolution, pooling, batch norm."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import Case, Exercise, Outcome
from labkit.exercises.cases import COLLECTIVES, Cases, both_dtypes, cast, normal
from labkit.nn import ops

# Samples, channels, height, width, kernel, outputs, stride, padding: the first ones hide the fewest mistakes.
SIZES = (
    ((1, 1, 3, 3), 2, 1, 1, 0),
    ((1, 2, 3, 4), 2, 3, 1, 0),
    ((2, 2, 4, 5), 3, 3, 1, 1),
    ((2, 3, 7, 6), 3, 2, 2, 1),
    ((3, 2, 6, 6), 1, 4, 3, 2),
    ((1, 2, 7, 8), 3, 2, 3, 0),  # two columns are left over
)


def _conv_cases(names: str) -> Cases:
    """Return the cases of a function with these arguments, before the stride and the padding."""

    def cases() -> Iterator[Case]:
        for shape, k, outputs, stride, pad in SIZES:
            height, width = ((size + 2 * pad - k) // stride + 1 for size in shape[2:])
            shapes = shape, (k, k, shape[1], outputs), outputs, (shape[0], outputs, height, width)
            arguments = {"k": k, **dict(zip(("x", "w", "b", "dy"), normal(k, *shapes), strict=True))}
            label = f"x of shape {shape}, {k} × {k} kernel, stride {stride}, padding {pad}"
            yield from both_dtypes(label, (*(arguments[name] for name in names.split()), stride, pad))

    return cases


def _norm_cases(with_dy: bool) -> Cases:
    def cases() -> Iterator[Case]:
        for shape in (3, 2, 1, 2), (2, 2, 2, 3), (4, 3, 5, 5):
            x, dy, *of_channels = normal(sum(shape), shape, shape, *[shape[1]] * 4)
            x, gamma, beta, *running = 2 + 3 * x, *np.abs(of_channels)
            yield from both_dtypes(
                f"x of shape {shape}", (dy, x, gamma) if with_dy else (x, gamma, beta, *running)
            )
        if not with_dy:
            x = np.full((2, 2, 2, 2), 0.5)
            x[:, 1] = 0.5 + 0.001 * np.arange(8).reshape(2, 2, 2)
            label = "a channel of equal entries, and one of nearly equal ones, float64"
            yield Case(label, ((x, np.ones(2), np.zeros(2), np.zeros(2), np.ones(2)),))

    return cases


def _images() -> Iterator[Case]:
    for shape, k, what in (
        ((1, 1, 2, 2), 2, "one window"),
        ((1, 1, 2, 4), 2, "two windows"),
        ((2, 3, 4, 6), 2, "random numbers"),
        ((2, 2, 4, 4), 2, "negative numbers"),
        ((2, 2, 4, 4), 2, "equal entries"),
        ((1, 2, 7, 5), 2, "a last row and column outside of the windows"),
        ((2, 1, 9, 6), 3, "windows of 3 × 3"),
    ):
        (x,) = normal(sum(shape), shape)
        x = {"negative numbers": -np.abs(x) - 1, "equal entries": np.maximum(x.round(), 0)}.get(what, x)
        yield from both_dtypes(f"{what}, x of shape {shape}", (x, k))


# Exercise 2.1
def im2col(x, k, stride, pad):
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


IM2COL = Exercise(
    reference=im2col,
    cases=_conv_cases("x k"),
    mistakes={
        "each row holds channel after channel. w has the order kernel row, kernel column, channel": {
            "width, k, k, c), x": "width, c, k, k), x",
            "[:, :, :, i, j]": "[:, :, :, :, i, j]",
        },
        "the columns of the result are the windows, the rows should be: transpose it": {
            "k * k * c)": "k * k * c).T"
        },
        "the padding is missing: put `pad` zeros around each image first": {
            "(pad, pad), (pad, pad)": "(0, 0), (0, 0)"
        },
        "np.pad with one number pads samples and channels, too: pad only the last two axes": {
            "((0, 0), (0, 0), (pad, pad), (pad, pad))": "pad"
        },
        "the stride is ignored: the window moves by `stride` pixels": {
            " // stride": "",
            "i + stride * height : stride": "i + height",
            "j + stride * width : stride": "j + width",
        },
        "the last windows are missing: there are (H + 2 pad - k) // stride + 1 rows of them": {" + 1": ""},
        "the windows come column after column: go through each row of the image first": {
            "return rows.": "return rows.transpose(0, 2, 1, 3, 4, 5)."
        },
        "kernel row and kernel column are exchanged within each window": {"i, j": "j, i"},
        "… float64, expected float32": {", x.dtype)": ")"},
    },
    hints=(
        "Pad first: np.pad takes one pair (before, after) for each axis of x. Count the positions next.",
        "Make an array of shape (N, H', W', k, k, C), fill it, and reshape it at the end.",
        "x[:, :, i : i + stride * H' : stride, j : …] is what place (i, j) of the kernel sees, at all "
        "positions at once. Its axes are (N, C, H', W'); transpose(0, 2, 3, 1) puts the channels last.",
    ),
)


WITH_IM2COL = "import numpy as np\n\n\n" + inspect.getsource(im2col)


# Exercise 2.2
def conv_forward(x, w, b, stride, pad):
    """Return the convolution. Shapes: x (N, C, H, W), w (K, K, C, O), b (O,); result (N, O, H', W')."""
    k, outputs = len(w), len(b)
    height = (x.shape[2] + 2 * pad - k) // stride + 1
    width = (x.shape[3] + 2 * pad - k) // stride + 1
    y = im2col(x, k, stride, pad) @ w.reshape(-1, outputs) + b
    return y.reshape(len(x), height, width, outputs).transpose(0, 3, 1, 2)


CONV_FORWARD = Exercise(
    reference=conv_forward,
    cases=_conv_cases("x w b"),
    expected=lambda case: [ops.conv2d(*case.arguments[0])],
    must_use=("im2col or columns_of",),  # columns_of is the bonus
    mistakes={
        "the bias is missing": {" + b\n": "\n"},
        "the values are right, but in the wrong places. The product has the channels last: reshape it "
        "to (N, H', W', O), then transpose": {
            "(len(x), height, width, outputs).transpose(0, 3, 1, 2)": "(len(x), outputs, height, width)"
        },
        "w is reshaped to (O, …), but its outputs are the last axis: w.reshape(-1, O)": {
            "w.reshape(-1, outputs)": "w.reshape(outputs, -1).T"
        },
        "the padding is ignored": {" + 2 * pad": "", "stride, pad) @": "stride, 0) @"},
        "the stride is ignored": {
            " // stride": "",
            "im2col(x, k, stride, pad)": "im2col(x, k, 1, pad)",
        },
        "the kernel is rotated by 180°. In deep learning, and in the formula above, it is not": {
            "w.reshape": "w[::-1, ::-1].reshape"
        },
    },
    hints=(
        "im2col gives the inputs of a linear layer. Which shape must w have to be its weights?",
        "im2col(x, k, stride, pad) @ w.reshape(-1, O) + b has shape (N·H'·W', O).",
        "Reshape the product to (N, H', W', O); transpose(0, 3, 1, 2) makes (N, O, H', W') of it.",
    ),
    prelude=WITH_IM2COL,
)


# Exercise 2.3
def conv_backward(dy, x, w, stride, pad):
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


CONV_BACKWARD = Exercise(
    reference=conv_backward,
    cases=_conv_cases("dy x w"),
    expected=lambda case: [ops.conv2d_backward(*case.arguments[0])],
    mistakes={
        "dx: a pixel in several windows got the gradient of the last one only; add with +=": {
            "seen +=": "seen[...] ="
        },
        "dx: the padding is cut off at the wrong place; the image begins at [pad, pad]": {
            "pad : pad + h, pad : pad + width": ":h, :width"
        },
        "dx has the weights in the wrong order: they are those of the kernel rotated by 180°. (In a "
        "convolution of dy, the kernel has to be rotated; in a product with im2col's rows, not.)": {
            "pad), w": "pad), w[::-1, ::-1]"
        },
        "dy.reshape(-1, O) mixes channels and positions: transpose to (N, H', W', O) first": {
            "dy.transpose(0, 2, 3, 1).reshape": "dy.reshape"
        },
        "dw is divided by the number of samples; dw is a sum": {"@ dy_matrix": "@ dy_matrix / n"},
        "db is a mean; the bias acts at each position, so sum": {"dy_matrix.sum": "dy_matrix.mean"},
        "db sums over the samples only; the bias acts at each position: sum over these, too": {
            "dy_matrix.sum": "dy.sum"
        },
        "… dtype float64, expected float32": {", x.dtype)": ")"},
        "… dx has shape": {"[:, :, pad : pad + h, pad : pad + width]": ""},
    },
    hints=(
        "The convolution is a linear layer on the rows of im2col; dw, db and the gradient of these rows "
        "are those of linear_backward (notebook 01).",
        "Bring dy to the shape of the product first: dy.transpose(0, 2, 3, 1).reshape(-1, O).",
        "dx: make zeros of the padded shape. For each place (i, j) of the kernel, add the gradient of "
        "the rows to the slice that im2col copied from: im2col's loop in the other direction, with +=.",
        "Cut the padding off at the end: [:, :, pad : pad + H, pad : pad + W].",
    ),
    prelude=WITH_IM2COL,
)


# Exercise 2.4
def max_pool(x, k):
    """Return (y, slope): the largest entry of each window, and the slope of y with respect to each entry.

    The slope is 1 at the largest entry of a window, of equal ones at the first in row order, and 0 elsewhere.
    Shapes: x and slope (N, C, H, W), y (N, C, H // k, W // k).
    """
    n, c, height, width = x.shape[0], x.shape[1], x.shape[2] // k, x.shape[3] // k
    windows = x[:, :, : height * k, : width * k].reshape(n, c, height, k, width, k)
    y = windows.max(axis=(3, 5))
    slope = np.zeros_like(x)
    left = np.ones(y.shape, bool)  # windows whose largest entry has not been found yet
    for i in range(k):
        for j in range(k):
            place = np.s_[:, :, i : height * k : k, j : width * k : k]
            is_maximum = left & (x[place] == y)
            slope[place] = is_maximum
            left &= ~is_maximum
    return y, slope


def _pooled(case: Case) -> Sequence[Any]:
    ((x, k),) = case.arguments
    y = ops.maxpool(x, k)
    return [(y, ops.maxpool_backward(np.ones_like(y), x, y, k))]


MAX_POOL = Exercise(
    reference=max_pool,
    cases=_images,
    expected=_pooled,
    mistakes={
        "y is the average of each window": {"return y": "return windows.mean(axis=(3, 5))"},
        "y is the first entry of each window": {"return y": "return windows[:, :, :, 0, :, 0]"},
        "y: the maximum starts from 0, so a window of negative numbers gives 0": {
            "return y": "return np.maximum(y, 0)"
        },
        "y: reshape alone does not bring a window together: its rows lie apart in memory. Use (N, C, H', "
        "k, W', k)": {"return y": "return windows.reshape(n, c, height, width, k, k).max(axis=(4, 5))"},
        "y: the maximum is taken over the windows, not within each: take axes 3 and 5": {
            "return y": "return windows.max(axis=(2, 4))"
        },
        "y: the windows overlap: they move by k, not by 1": {
            "return y": "overlapping = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))\n"
            "    return overlapping.max(axis=(4, 5))"
        },
        "… a last row and column outside": {"x[:, :, : height * k, : width * k]": "x"},
        "slope: equal entries of a window each get 1: only the first should": {
            "            left &= ~is_maximum\n": ""
        },
        "slope: equal entries share the 1. That is a subgradient, too, but here the first gets all of it": {
            "            left &= ~is_maximum\n": "",
            "    return": "    inside = slope[:, :, : height * k, : width * k]\n"
            "    equal = inside.reshape(windows.shape).sum(axis=(3, 5))\n"
            "    inside /= equal.repeat(k, axis=2).repeat(k, axis=3)\n    return",
        },
        "slope: of equal entries the last gets 1: the first should": {"in range(k)": "in reversed(range(k))"},
        "slope: every entry gets its share, as in average pooling: only the largest gets it": {
            "= is_maximum": "= 1 / k**2"
        },
        "slope: every entry gets 1: only the largest should": {"= is_maximum": "= 1"},
        "slope has the shape of the windows only: rows and columns outside of them get 0": {
            "np.zeros_like(x)": "np.zeros_like(x[:, :, : height * k, : width * k])"
        },
        "… dtype float64, expected float32": {"np.zeros_like(x)": "np.zeros(x.shape)"},
    },
    hints=(
        "Rows and columns that do not fill a window are left out: cut x first. A loop over all windows is "
        "fine.",
        "reshape(N, C, H', k, W', k) gives each window two axes of its own: y is the maximum over both. "
        "window.argmax() finds the first of equal entries, as a number 0 … k² - 1.",
        "np.unravel_index turns that number into a row and a column of the window; np.ndindex(*y.shape) goes "
        "through all windows.",
    ),
)


# Exercise 2.5
def batch_norm(x, gamma, beta, running_mean, running_var):
    """Return gamma · x̂ + beta, and move the running statistics by 0.1 of the way to those of the batch.

    Shapes: x (N, C, H, W), the others (C,); running_mean and running_var are changed in place.
    """
    mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    running_mean += 0.1 * (mean - running_mean)
    running_var += 0.1 * (var - running_var)
    mean, var = mean[:, None, None], var[:, None, None]
    return gamma[:, None, None] * (x - mean) / np.sqrt(var + 1e-5) + beta[:, None, None]


def _normalised(case: Case) -> Sequence[Any]:
    ((x, gamma, beta, *running),) = case.arguments
    of_batch = ops.batch_statistics(x)
    moved = (old + 0.1 * (new - old) for old, new in zip(running, of_batch, strict=True))
    return [(ops.batch_norm(x, gamma, beta, *of_batch), *moved)]


SHIFTED = "mean, var = mean[:, None, None], var[:, None, None]"
OVER = "mean, var = x.mean(axis={0}, keepdims=True), x.var(axis={0}, keepdims=True)"
BATCH_NORM = Exercise(
    reference=batch_norm,
    cases=_norm_cases(with_dy=False),
    expected=_normalised,
    result_in=(None, 3, 4),
    mistakes={
        "each image has statistics of its own: take them over the samples, too": {
            SHIFTED: OVER.format((2, 3))
        },
        "each pixel has statistics of its own: take them over rows and columns, too": {
            SHIFTED: OVER.format(0)
        },
        "all channels share one mean and variance: each channel has its own": {SHIFTED: OVER.format(None)},
        "the statistics are over channels, rows and columns: take samples, rows and columns": {
            SHIFTED: OVER.format((1, 2, 3))
        },
        "the variance is divided by M - 1: here it is divided by M": {"x.var(": "x.var(ddof=1, "},
        "ε is missing: a channel of equal entries divides by 0": {"var + 1e-5": "var"},
        "ε is added to σ: it belongs under the root, to the variance": {"np.sqrt(var": "(np.sqrt(var)"},
        "x - mean is divided by the variance: divide by σ, its root": {"np.sqrt(var + 1e-5)": "(var + 1e-5)"},
        "the mean is not subtracted": {"(x - mean)": "x"},
        "running_mean is unchanged: `running_mean = …` makes a new array; use `running_mean += …`": {
            "running_mean +=": "running_mean = running_mean +"
        },
        "running_mean is wrong: it becomes 0.9 of its old value plus 0.1 of the batch's": {"0.1 *": "0.9 *"},
    },
    hints=(
        "A channel is shared by axes 0, 2 and 3.",
        "Statistics of shape (C,) fit x as mean[:, None, None]; so do gamma and beta.",
        "running ← 0.9 running + 0.1 batch is running += 0.1 * (batch - running).",
    ),
)


# Exercise 2.6
def batch_norm_backward(dy, x, gamma):
    """Return (dx, dgamma, dbeta). Shapes: dy and x (N, C, H, W), gamma (C,)."""
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    sigma = np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    x_hat, m = (x - mean) / sigma, x.size // x.shape[1]
    dgamma, dbeta = (dy * x_hat).sum(axis=(0, 2, 3)), dy.sum(axis=(0, 2, 3))
    inner = dy - dbeta[:, None, None] / m - x_hat * dgamma[:, None, None] / m
    return gamma[:, None, None] / sigma * inner, dgamma, dbeta


BATCH_NORM_BACKWARD = Exercise(
    reference=batch_norm_backward,
    cases=_norm_cases(with_dy=True),
    expected=lambda case: [
        ops.batch_norm_backward(dy, x, gamma, *ops.batch_statistics(x)) for dy, x, gamma in case.arguments
    ],
    mistakes={
        "dx: mean and variance are treated as constants. Both depend on x": {
            "dy - dbeta[:, None, None] / m - x_hat * dgamma[:, None, None] / m": "dy"
        },
        "dx: the path through the mean is missing, dbeta / M": {"dbeta[:, None, None] / m - ": ""},
        "dx: the path through the variance is missing, x̂ dgamma / M": {
            "m - x_hat * dgamma[:, None, None] / m": "m"
        },
        "dx: the factor gamma is missing": {"gamma[:, None, None] / sigma * inner": "inner / sigma"},
        "dx: the sums dbeta and dgamma are not divided by M": {" / m": ""},
        "dx: M is the number of samples. A channel has N·H·W entries": {"x.size // x.shape[1]": "len(x)"},
        "dgamma is made with x: it needs the normalised x̂": {
            "inner, dgamma, dbeta": "inner, (dy * x).sum(axis=(0, 2, 3)), dbeta"
        },
        "dgamma and dbeta are means: they are sums over samples, rows and columns": {
            "inner, dgamma, dbeta": "inner, dgamma / m, dbeta / m"
        },
    },
    hints=(
        "dgamma and dbeta are sums over axes 0, 2 and 3: of dy · x̂, and of dy.",
        "dx has three terms: direct, through the mean, through the variance. The formula is above.",
        "M is x.size // C. Sums of shape (C,) need [:, None, None] to fit dy.",
    ),
)


# Exercise 2.7
def global_statistics(comm, x):
    """Return (mean, var) of each channel over all ranks. Shapes: x (N, C, H, W); result (C,), (C,)."""
    channels = x.shape[1]
    parts = np.empty(1 + 2 * channels)  # how many entries, their sum, the sum of their squares
    parts[0] = x.size / channels
    parts[1 : 1 + channels] = x.sum(axis=(0, 2, 3), dtype=np.float64)
    parts[1 + channels :] = np.square(x, dtype=np.float64).sum(axis=(0, 2, 3))
    total = np.empty_like(parts)
    comm.Allreduce(parts, total)
    mean = total[1 : 1 + channels] / total[0]
    return mean, total[1 + channels :] / total[0] - mean**2


def _statistics_cases() -> Iterator[Case]:
    for samples, offset, dtype in (
        ((2,), 0, "float64"),
        ((1, 3), 0, "float64"),
        ((2, 2), 0, "float32"),
        ((3, 1, 2), 0, "float32"),
        ((2, 0, 3, 1), 0, "float64"),
        ((4, 1, 2, 3), 300, "float32"),
    ):
        x = normal(len(samples), *((n, 3, 2, 4) for n in samples))
        label = f"{' + '.join(map(str, samples))} samples, {dtype}"
        arguments = ((offset + 2 * rank + (1 + rank) * row,) for rank, row in enumerate(x))
        yield Case(f"{label}, values near {offset}" if offset else label, cast(tuple(arguments), dtype))


def _over_all(case: Case) -> Sequence[Any]:
    whole = np.concatenate([x for (x,) in case.arguments]).astype(np.float64)
    return [(whole.mean(axis=(0, 2, 3)), whole.var(axis=(0, 2, 3)))] * case.ranks


def _look_at_calls(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    collectives = [call.least for call in outcomes[0].calls if call.name in COLLECTIVES]
    channels = case.arguments[0][0].shape[1]
    most = max(collectives, default=0)
    if most > 3 * 8 * channels * case.ranks:  # a row for each rank, at most
        yield f"{most} bytes in one message: send sums, not the local batch"
    if len(collectives) > 1:
        yield "this is collective number 2: put count, sums and squares into one array"


GLOBAL_STATISTICS = Exercise(
    reference=global_statistics,
    cases=_statistics_cases,
    look=_look_at_calls,
    expected=_over_all,
    mistakes={
        "each rank has the statistics of its own local batch: the ranks have to exchange something": {
            "comm.Allreduce(parts, total)": "total[...] = parts"
        },
        "var is the mean of the ranks' variances: it misses how far their means are apart": """
def global_statistics(comm, x):
    x = x.astype(np.float64)
    parts = len(x) * np.stack([np.ones(x.shape[1]), x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))])
    comm.Allreduce(MPI.IN_PLACE, parts)
    return parts[1] / parts[0], parts[2] / parts[0]
""",
        "each rank counts equally: weight each by its number of samples": {"parts,": "parts / parts[0],"},
        "both are plain means over the ranks; var also misses the distance of the means": """
def global_statistics(comm, x):
    parts = np.stack([x.mean(axis=(0, 2, 3), dtype=np.float64), x.var(axis=(0, 2, 3), dtype=np.float64)])
    comm.Allreduce(MPI.IN_PLACE, parts)
    return parts[0] / comm.size, parts[1] / comm.size
""",
        "the variance is divided by M - 1: here it is divided by M": {
            "total[1 + channels :] / total[0] - mean**2": (
                "(total[1 + channels :] - total[0] * mean**2) / (total[0] - 1)"
            )
        },
        "… values near 300": {
            "(1 + 2 * channels)": "(1 + 2 * channels, x.dtype)",
            ", dtype=np.float64": "",
            "total)\n": "total)\n    total = total.astype(float)\n",
        },
        "… collective number 2": {
            "    comm.Allreduce(parts, total)": (
                "    for i in range(len(parts)):\n        comm.Allreduce(parts[i : i + 1], total[i : i + 1])"
            )
        },
        "… send sums, not the local batch": """
def global_statistics(comm, x):
    x = np.concatenate(comm.allgather(x)).astype(np.float64)
    return x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
""",
    },
    hints=(
        "What do you need to know of each local batch, so that adding it up over the ranks is enough?",
        "The count, and each channel's sum and sum of squares: 1 + 2 C numbers in one float64 array.",
        "var = (sum of squares) / M - mean².",
    ),
    tolerance=1e-6,
)


QUESTIONS = {
    "02-conv-suspects": "A overwrites where it should add: of all gradients of a pixel, one is left (9s "
    "without a sum). B cuts the padding off at the wrong place: its dx is the right one, moved by a row "
    "and a column. C rotates the kernel by 180°: 9 to 1 in place of 1 to 9. dw and db are right in all "
    "three, so the mistake is in the code for dx. The first layer of a network does not use its dx: there, "
    "none of them does any harm.",
    "02-norm-suspects": "A treats mean and variance as constants; both sums show it. B leaves out the path "
    "through the mean; only the sum of dx shows it. C leaves out the path through the variance; only the "
    "sum of dx · x̂ shows it, because the missing term is a multiple of x̂, which adds up to zero itself.",
    "02-sync-cost": "Seven in place of one: for each of the two layers one of the statistics, one of a "
    "count and one of the sums. Their bytes are few: (1 + 2 · 8 + 1 + 2 · 16) · 8 = 400 for the "
    "statistics, 192 for the sums (float32) and 16 for the counts, beside 7,784 for the gradient. But in "
    "each all-reduce all ranks wait for the slowest. If every shard is a random sample and local batches "
    "are large, local statistics differ little from global ones; then it is not worth it, and most "
    "training uses local ones.",
    "02-bonus-1": "When the windows become rows of a matrix: `reshape` merges dimensions that overlap in "
    "memory, so no strides can describe the result, and NumPy copies. The product then reads the copy. "
    "(`np.einsum` or `tensordot` on the view also copy inside.)",
    "02-bonus-2": "For a kernel as large as the image, without padding: there is one window, the whole "
    "image. LeNet-5's third convolution is one: 5 x 5 on 5 x 5.",
    "02-bonus-3": "The full convolution: dy padded by k - 1 - pad on each side, with the kernel rotated "
    "by 180 degrees and with input and output channels exchanged.",
    "02-bonus-4": "It says which of the window's entries is the maximum: log2(k * k) bits, two for a "
    "window of 2 x 2. `slope` holds k * k numbers: 128 bits for 2 x 2 in float32. (PyTorch keeps one "
    "index of 64 bits.)",
    "02-bonus-5": "The sum of squared deviations divided by M - 1 is an unbiased estimate of the variance of "
    "the population, which the running variance stands for. In x-hat the batch itself is normalised: "
    "dividing by M gives its entries variance 1.",
    "02-bonus-6": "The statistics are taken over the axes (1, 2, 3) in place of (0, 2, 3), with a mean and a "
    "variance for each sample. gamma and beta then belong to an entry (C, H, W), and only their gradients "
    "are sums over samples. No rank needs another rank's samples.",
    "02-bonus-7": "Each rank has count n_r, mean m_r and sum of squared deviations S_r. The mean is the "
    "sum of n_r m_r / n, and S the sum of S_r + n_r (m_r - m)^2. With Allreduce that takes two calls, as "
    "m must be known first; with one Allgather of (n_r, m_r, S_r) it takes one, and each rank combines "
    "them itself.",
}
