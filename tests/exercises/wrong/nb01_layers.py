"""Plausible wrong answers to the exercises of notebook 01, and words of the finding that each must get."""


def error(line):
    """Return an answer to mean_squared_error_backward that returns this."""
    return f"\ndef mean_squared_error_backward(pred, target):\n    return {line}\n"


def layer(line):
    """Return an answer to linear_backward that returns this."""
    return f"\ndef linear_backward(dy, x, w):\n    return {line}\n"


def entropy(*lines):
    """Return an answer to softmax_cross_entropy with these lines."""
    return "\n    ".join(["\ndef softmax_cross_entropy(z, labels):", *lines]) + "\n"


def minus(*lines):
    """Return an answer to softmax_cross_entropy_backward with these lines."""
    return "\n    ".join(["\ndef softmax_cross_entropy_backward(z, labels):", *lines]) + "\n"


def cut(*lines):
    """Return an answer to views that fills `parts` by these lines for each name and shape."""
    head = ["\ndef views(flat, shapes):", "parts, start = {}, 0", "for name, shape in shapes.items():"]
    return "\n    ".join([*head, *(f"    {line}" for line in lines), "return parts"]) + "\n"


OWN_ROW = "p = np.exp(z - z.max(axis=1, keepdims=True))"
SUM_1 = "p /= p.sum(axis=1, keepdims=True)"
PICK = "np.arange(len(labels)), labels"

WRONG = [
    ("mean_squared_error_backward", "the mean is forgotten", error("2 * (pred - target)")),
    (
        "mean_squared_error_backward",
        "divides by the samples only",
        error("(pred - target) * (2 / len(target))"),
    ),
    ("mean_squared_error_backward", "the sign is wrong", error("(target - pred) * (2 / pred.size)")),
    ("mean_squared_error_backward", "the factor 2", error("(pred - target) / pred.size")),
    ("mean_squared_error_backward", "dtype", error("(pred - target) * np.float64(2 / pred.size)")),
    ("mean_squared_error_backward", "shape", error("np.mean(2 * (pred - target))")),
    ("linear_backward", "sum over the samples", layer("dy @ w.T, x.T @ dy, dy.sum(axis=1)")),
    ("linear_backward", "db is the mean over the samples", layer("dy @ w.T, x.T @ dy, dy.mean(axis=0)")),
    ("linear_backward", "ValueError: matmul", layer("dy @ w, x.T @ dy, dy.sum(axis=0)")),
    ("linear_backward", "dw is transposed", layer("dy @ w.T, dy.T @ x, dy.sum(axis=0)")),
    ("linear_backward", "dx and dw are swapped", layer("x.T @ dy, dy @ w.T, dy.sum(axis=0)")),
    ("linear_backward", "dtype", layer("dy @ w.T, x.T @ dy, dy.sum(axis=0, dtype=np.float64)")),
    (
        "softmax_cross_entropy",
        "the loss is nan: subtract",
        entropy("p = np.exp(z)", SUM_1, f"return -np.mean(np.log(p[{PICK}]))"),
    ),
    (
        "softmax_cross_entropy",
        "the loss is inf: subtract",
        entropy(
            "log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))", f"return -np.mean(log_p[{PICK}])"
        ),
    ),
    (
        "softmax_cross_entropy",
        "the maximum of the whole array",
        entropy(
            "shifted = z - z.max()",
            "log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))",
            f"return -np.mean(log_p[{PICK}])",
        ),
    ),
    (
        "softmax_cross_entropy",
        "the maximum of the whole array",
        entropy("p = np.exp(z - z.max())", SUM_1, f"return -np.mean(np.log(p[{PICK}]))"),
    ),
    (
        "softmax_cross_entropy",
        "log of a p that is 0",
        entropy(OWN_ROW, SUM_1, f"return -np.mean(np.log(p[{PICK}]))"),
    ),
    (
        "softmax_cross_entropy",
        "take the mean",
        entropy(
            "shifted = z - z.max(axis=1, keepdims=True)",
            "log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))",
            f"return -np.sum(log_p[{PICK}])",
        ),
    ),
    (
        "softmax_cross_entropy",
        "the sign is wrong",
        entropy(
            "shifted = z - z.max(axis=1, keepdims=True)",
            "log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))",
            f"return np.mean(log_p[{PICK}])",
        ),
    ),
    (
        "softmax_cross_entropy",
        "averages over all classes",
        entropy(
            "shifted = z - z.max(axis=1, keepdims=True)",
            "log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))",
            "return -np.mean(log_p)",
        ),
    ),
    (
        "softmax_cross_entropy_backward",
        "the mean is forgotten",
        minus(OWN_ROW, SUM_1, f"p[{PICK}] -= 1", "return p"),
    ),
    (
        "softmax_cross_entropy_backward",
        "divides by all entries",
        minus(OWN_ROW, SUM_1, f"p[{PICK}] -= 1", "return p / p.size"),
    ),
    (
        "softmax_cross_entropy_backward",
        "the sign is wrong",
        minus(OWN_ROW, SUM_1, f"p[{PICK}] -= 1", "return -p / len(z)"),
    ),
    ("softmax_cross_entropy_backward", "this is p / N", minus(OWN_ROW, SUM_1, "return p / len(z)")),
    (
        "softmax_cross_entropy_backward",
        "subtracts 1 in whole columns",
        minus(OWN_ROW, SUM_1, "p[:, labels] -= 1", "return p / len(z)"),
    ),
    (
        "softmax_cross_entropy_backward",
        "without a shift",
        minus("p = np.exp(z)", SUM_1, f"p[{PICK}] -= 1", "return p / len(z)"),
    ),
    (
        "softmax_cross_entropy_backward",
        "the maximum of the whole array",
        minus("p = np.exp(z - z.max())", SUM_1, f"p[{PICK}] -= 1", "return p / len(z)"),
    ),
    (
        "softmax_cross_entropy_backward",
        "changes its argument",
        minus(
            "z -= z.max(axis=1, keepdims=True)",
            "p = np.exp(z)",
            SUM_1,
            f"p[{PICK}] -= 1",
            "return p / len(z)",
        ),
    ),
    (
        "softmax_cross_entropy_backward",
        "dtype",
        minus(OWN_ROW, SUM_1, "return (p - np.eye(z.shape[1])[labels]) / len(z)"),
    ),
    ("relu_backward", "dy passes where x is 0", "\ndef relu_backward(dy, x):\n    return dy * (x >= 0)\n"),
    ("relu_backward", "the mask comes from dy", "\ndef relu_backward(dy, x):\n    return dy * (dy > 0)\n"),
    (
        "relu_backward",
        "derivative of relu alone",
        "\ndef relu_backward(dy, x):\n    return (x > 0).astype(x.dtype)\n",
    ),
    (
        "relu_backward",
        "dy is multiplied by x",
        "\ndef relu_backward(dy, x):\n    return dy * np.maximum(x, 0)\n",
    ),
    (
        "relu_backward",
        "changes its argument",
        "\ndef relu_backward(dy, x):\n    dy[x <= 0] = 0\n    return dy\n",
    ),
    (
        "views",
        "the parts are copies",
        cut(
            "stop = start + math.prod(shape)",
            "parts[name] = np.array(flat[start:stop]).reshape(shape)",
            "start = stop",
        ),
    ),
    (
        "views",
        "every part starts at entry 0",
        cut("stop = start + math.prod(shape)", "parts[name] = flat[start:stop].reshape(shape)"),
    ),
    (
        "views",
        "shape",
        cut("stop = start + math.prod(shape)", "parts[name] = flat[start:stop]", "start = stop"),
    ),
    (
        "views",
        "IndexError",
        cut(
            "stop = start + shape[0] * (shape[1] if len(shape) > 1 else 1)",
            "parts[name] = flat[start:stop].reshape(shape)",
            "start = stop",
        ),
    ),
]
