"""Wrong answers on convolution."""

from tests.exercises.changed import but

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "im2col",
        "channel after channel",
        but(
            "im2col",
            ("k, k, c), x", "c, k, k), x"),
            (
                "[:, :, :, i, j] = seen.transpose(0, 2, 3, 1)",
                "[:, :, :, :, i, j] = seen.transpose(0, 2, 3, 1)",
            ),
        ),
    ),
    ("im2col", "padding is missing", but("im2col", ("(pad, pad), (pad, pad)", "(0, 0), (0, 0)"))),
    (
        "im2col",
        "pads samples and channels",
        but("im2col", ("((0, 0), (0, 0), (pad, pad), (pad, pad))", "pad")),
    ),
    (
        "im2col",
        "stride is ignored",
        but(
            "im2col",
            ("x, ((", "x, (("),
            (") // stride + 1", ") + 1"),
            ("stride * height : stride", "height"),
            ("stride * width : stride", "width"),
        ),
    ),
    ("im2col", "last windows are missing", but("im2col", (" // stride + 1", " // stride"))),
    (
        "im2col",
        "kernel row and kernel column are exchanged",
        but("im2col", ("rows[:, :, :, i, j]", "rows[:, :, :, j, i]")),
    ),
    ("im2col", "float64, expected float32", but("im2col", (", x.dtype)", ")"))),
    ("im2col", "transpose it", but("im2col", ("k * k * c)", "k * k * c).T"))),
    ("conv_forward", "bias is missing", but("conv_forward", (" + b\n", "\n"))),
    (
        "conv_forward",
        "in the wrong places",
        but(
            "conv_forward",
            (
                "y.reshape(len(x), height, width, outputs).transpose(0, 3, 1, 2)",
                "y.reshape(len(x), outputs, height, width)",
            ),
        ),
    ),
    (
        "conv_forward",
        "its outputs are the last axis",
        but("conv_forward", ("w.reshape(-1, outputs)", "w.reshape(outputs, -1).T")),
    ),
    (
        "conv_forward",
        "padding is ignored",
        but("conv_forward", (" + 2 * pad", ""), ("stride, pad) @", "stride, 0) @")),
    ),
    ("conv_forward", "turned by 180", but("conv_forward", ("w.reshape(-1", "w[::-1, ::-1].reshape(-1"))),
    ("conv_forward", "`nn_unfold` is not defined", but("conv_forward", ("im2col(", "nn_unfold("))),
    ("conv_backward", "add with +=", but("conv_backward", ("seen += ", "seen[...] = "))),
    (
        "conv_backward",
        "begins at [pad, pad]",
        but("conv_backward", ("pad : pad + h, pad : pad + width", ":h, :width")),
    ),
    (
        "conv_backward",
        "mixes channels and positions",
        but("conv_backward", ("dy.transpose(0, 2, 3, 1).reshape", "dy.reshape")),
    ),
    (
        "conv_backward",
        "dw is divided",
        but("conv_backward", ("rows.T @ dy_matrix,", "rows.T @ dy_matrix / n,")),
    ),
    ("conv_backward", "db is a mean", but("conv_backward", ("dy_matrix.sum(", "dy_matrix.mean("))),
    (
        "conv_backward",
        "db sums over the samples only",
        but("conv_backward", ("dy_matrix.sum(axis=0)", "dy.sum(axis=0)")),
    ),
    (
        "conv_backward",
        "dtype float64, expected float32",
        but("conv_backward", ("2 * pad), x.dtype)", "2 * pad))")),
    ),
    (
        "conv_backward",
        "dx has shape",
        but("conv_backward", ("dpadded[:, :, pad : pad + h, pad : pad + width]", "dpadded")),
    ),
]
