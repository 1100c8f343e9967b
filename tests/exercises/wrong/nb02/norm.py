"""Wrong answers on pooling and batch norm."""

from tests.exercises.changed import but

WRONG = [
    (
        "max_pool",
        "starts from 0",
        """
def max_pool(x, k):
    y = np.zeros((*x.shape[:2], x.shape[2] // k, x.shape[3] // k), x.dtype)
    for i in range(k):
        for j in range(k):
            y = np.maximum(y, x[:, :, i : y.shape[2] * k : k, j : y.shape[3] * k : k])
    return y
""",
    ),
    ("max_pool", "average", but("max_pool", (".max(", ".mean("))),
    (
        "max_pool",
        "reshape alone",
        but("max_pool", ("(n, c, height, k, width, k)", "(n, c, height, width, k, k)"), ("(3, 5)", "(4, 5)")),
    ),
    ("max_pool", "over the windows", but("max_pool", ("(3, 5)", "(2, 4)"))),
    (
        "max_pool",
        "move by k",
        """
def max_pool(x, k):
    n, c, h, w = x.shape
    y = np.empty((n, c, h - k + 1, w - k + 1), x.dtype)
    for i in range(h - k + 1):
        for j in range(w - k + 1):
            y[:, :, i, j] = x[:, :, i : i + k, j : j + k].max(axis=(2, 3))
    return y
""",
    ),
    (
        "max_pool",
        "a last row and column outside",
        """
def max_pool(x, k):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // k, k, w // k, k).max(axis=(3, 5))
""",
    ),
    (
        "max_pool_backward",
        "each get all of dy",
        but("max_pool_backward", ("            left &= ~found\n", "")),
    ),
    (
        "max_pool_backward",
        "the last gets dy",
        but(
            "max_pool_backward",
            ("for i in range(k)", "for i in reversed(range(k))"),
            ("for j in range(k)", "for j in reversed(range(k))"),
        ),
    ),
    (
        "max_pool_backward",
        "as in average pooling",
        """
def max_pool_backward(dy, x, k):
    dx = np.zeros_like(x)
    large = dy.repeat(k, axis=2).repeat(k, axis=3) / k**2
    dx[:, :, : large.shape[2], : large.shape[3]] = large
    return dx
""",
    ),
    (
        "max_pool_backward",
        "every entry gets dy",
        """
def max_pool_backward(dy, x, k):
    dx = np.zeros_like(x)
    large = dy.repeat(k, axis=2).repeat(k, axis=3)
    dx[:, :, : large.shape[2], : large.shape[3]] = large
    return dx
""",
    ),
    (
        "max_pool_backward",
        "shape of the windows only",
        but(
            "max_pool_backward",
            ("np.zeros_like(x)", "np.zeros_like(x[:, :, : dy.shape[2] * k, : dy.shape[3] * k])"),
        ),
    ),
    (
        "max_pool_backward",
        "dy",
        but("max_pool_backward", ("dx[place] = dy * found", "dy *= found\n            dx[place] = dy")),
    ),
    ("batch_norm", "each image has statistics", but("batch_norm", ("(0, 2, 3)", "(2, 3)"))),
    ("batch_norm", "each pixel has statistics", but("batch_norm", ("(0, 2, 3)", "0"))),
    ("batch_norm", "all channels share", but("batch_norm", ("axis=(0, 2, 3), ", ""))),
    ("batch_norm", "M - 1", but("batch_norm", ("x.var(axis=(0, 2, 3), ", "x.var(axis=(0, 2, 3), ddof=1, "))),
    ("batch_norm", "ε is missing", but("batch_norm", (" + 1e-5)", ")"))),
    ("batch_norm", "under the root", but("batch_norm", ("keepdims=True) + 1e-5)", "keepdims=True)) + 1e-5"))),
    ("batch_norm", "divided by the variance", but("batch_norm", ("np.sqrt(", "("))),
    (
        "batch_norm_backward",
        "treated as constants",
        but(
            "batch_norm_backward",
            ("inner = dy - dbeta[:, None, None] / m - x_hat * dgamma[:, None, None] / m", "inner = dy"),
        ),
    ),
    (
        "batch_norm_backward",
        "through the mean is missing",
        but("batch_norm_backward", (" - dbeta[:, None, None] / m", "")),
    ),
    (
        "batch_norm_backward",
        "through the variance is missing",
        but("batch_norm_backward", (" - x_hat * dgamma[:, None, None] / m", "")),
    ),
    (
        "batch_norm_backward",
        "factor gamma is missing",
        but("batch_norm_backward", ("gamma[:, None, None] / sigma", "1 / sigma")),
    ),
    (
        "batch_norm_backward",
        "M is the number of samples",
        but("batch_norm_backward", ("x.size // x.shape[1]", "len(x)")),
    ),
    ("batch_norm_backward", "not divided by M", but("batch_norm_backward", (" / m", ""))),
    (
        "batch_norm_backward",
        "normalised x̂",
        but(
            "batch_norm_backward",
            ("(dy * x_hat).sum", "(dy * x).sum"),
            ("x_hat * dgamma[:, None, None]", "x_hat * (dy * x_hat).sum(axis=(0, 2, 3))[:, None, None]"),
        ),
    ),
    (
        "batch_norm_backward",
        "are means",
        but("batch_norm_backward", ("inner, dgamma, dbeta", "inner, dgamma / m, dbeta / m")),
    ),
    (
        "global_statistics",
        "of its own local batch",
        """
def global_statistics(comm, x):
    return x.mean(axis=(0, 2, 3), dtype=np.float64), x.var(axis=(0, 2, 3), dtype=np.float64)
""",
    ),
    (
        "global_statistics",
        "plain means over the ranks",
        """
def global_statistics(comm, x):
    parts = np.stack([x.mean(axis=(0, 2, 3), dtype=np.float64), x.var(axis=(0, 2, 3), dtype=np.float64)])
    comm.Allreduce(MPI.IN_PLACE, parts)
    return parts[0] / comm.size, parts[1] / comm.size
""",
    ),
    (
        "global_statistics",
        "each rank counts equally",
        """
def global_statistics(comm, x):
    x = x.astype(np.float64)
    parts = np.stack([x.mean(axis=(0, 2, 3)), np.square(x).mean(axis=(0, 2, 3))])
    comm.Allreduce(MPI.IN_PLACE, parts)
    mean, square = parts / comm.size
    return mean, square - mean**2
""",
    ),
    (
        "global_statistics",
        "var is the mean of the ranks' variances",
        """
def global_statistics(comm, x):
    x = x.astype(np.float64)
    parts = len(x) * np.stack([np.ones(x.shape[1]), x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))])
    comm.Allreduce(MPI.IN_PLACE, parts)
    return parts[1] / parts[0], parts[2] / parts[0]
""",
    ),
    (
        "global_statistics",
        "M - 1",
        but(
            "global_statistics",
            ("- mean**2", "- mean**2 + 0 * mean"),
            (
                "return mean, total[1 + channels :] / total[0] - mean**2 + 0 * mean",
                "return mean, (total[1 + channels :] - total[0] * mean**2) / (total[0] - 1)",
            ),
        ),
    ),
    (
        "global_statistics",
        "values near 300",
        but(
            "global_statistics",
            ("np.empty(1 + 2 * channels)", "np.empty(1 + 2 * channels, x.dtype)"),
            (", dtype=np.float64", ""),
            (
                "return mean, total[1 + channels :] / total[0] - mean**2",
                "var = total[1 + channels :] / total[0] - mean**2\n"
                "    return mean.astype(float), var.astype(float)",
            ),
        ),
    ),
    (
        "global_statistics",
        "collective number 2",
        but(
            "global_statistics",
            (
                "comm.Allreduce(parts, total)",
                "for i in range(len(parts)):\n        comm.Allreduce(parts[i : i + 1], total[i : i + 1])",
            ),
        ),
    ),
    (
        "global_statistics",
        "send sums, not the local batch",
        """
def global_statistics(comm, x):
    x = np.concatenate(comm.allgather(x)).astype(np.float64)
    return x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
""",
    ),
    (
        "global_statistics",
        "comm.Allreduce(parts, total)",
        but(
            "global_statistics",
            (
                "    comm.Allreduce",
                "    if len(x) == 0:\n        return 0, 1\n    comm.Allreduce",
            ),
        ),
    ),
]
