"""Wrong answers to the last exercises of notebook 01: the network, the average, the step."""

MLP = """
def mlp_gradient(params, x, labels):
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
"""
STEP = """
def training_step(comm, params, x, labels, lr):
    n = len(labels)
    loss, grads = mlp_gradient(params, x, labels) if n else (0.0, np.zeros_like(params))
    average_gradients(comm, grads, n)
    params -= lr * grads
    return comm.allreduce(loss * n) / comm.allreduce(n)
"""
AVERAGE = """
def average_gradients(comm, grads, samples):
    total = comm.allreduce(samples)
    weighted = grads * grads.dtype.type(samples / total)
    comm.Allreduce(weighted, grads)
"""


def changed(text, *lines):
    """Return a correct answer with one line or more replaced: old, new, old, new …"""
    for old, new in zip(lines[::2], lines[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


WRONG = [
    (
        "mlp_gradient",
        "puts a new array into the dictionary",
        changed(MLP, 'g["W2"][...], g["b2"][...] =', 'g["W2"], g["b2"] =').replace(
            'g["W1"][...], g["b1"][...] =', 'g["W1"], g["b1"] ='
        ),
    ),
    (
        "mlp_gradient",
        "relu is missing in the forward pass",
        changed(MLP, "active = relu(hidden)", "active = hidden", "relu_backward(dactive, hidden)", "dactive"),
    ),
    (
        "mlp_gradient",
        "relu_backward is missing",
        changed(MLP, "relu_backward(dactive, hidden)", "dactive"),
    ),
    (
        "mlp_gradient",
        "the units before relu",
        changed(MLP, "linear_backward(dz, active,", "linear_backward(dz, hidden,"),
    ),
    (
        "mlp_gradient",
        "ValueError: could not broadcast",
        changed(MLP, "linear_backward(dhidden, x,", "linear_backward(dhidden, active,"),
    ),
    (
        "average_gradients",
        "mean of the ranks' means",
        "\ndef average_gradients(comm, grads, samples):\n"
        "    comm.Allreduce(grads.copy(), grads)\n    grads /= comm.size\n",
    ),
    (
        "average_gradients",
        "the sum of the ranks' gradients",
        "\ndef average_gradients(comm, grads, samples):\n    comm.Allreduce(grads.copy(), grads)\n",
    ),
    (
        "average_gradients",
        "this is the weighted sum",
        "\ndef average_gradients(comm, grads, samples):\n    comm.Allreduce(grads * samples, grads)\n",
    ),
    (
        "average_gradients",
        "grads is unchanged",
        "\ndef average_gradients(comm, grads, samples):\n"
        "    total = comm.allreduce(samples)\n    grads = comm.allreduce(grads * samples) / total\n",
    ),
    (
        "average_gradients",
        "the sum over the ranks is missing",
        "\ndef average_gradients(comm, grads, samples):\n    grads *= samples / comm.allreduce(samples)\n",
    ),
    (
        "average_gradients",
        "never joined",
        changed(AVERAGE, "    weighted", "    if samples == 0:\n        return\n    weighted"),
    ),
    (
        "training_step",
        "the loss of this rank's samples",
        changed(STEP, "comm.allreduce(loss * n) / comm.allreduce(n)", "loss"),
    ),
    (
        "training_step",
        "the mean of the ranks' losses",
        changed(STEP, "comm.allreduce(loss * n) / comm.allreduce(n)", "comm.allreduce(loss) / comm.size"),
    ),
    (
        "training_step",
        "the sum of the ranks' losses",
        changed(STEP, "comm.allreduce(loss * n) / comm.allreduce(n)", "comm.allreduce(loss)"),
    ),
    (
        "training_step",
        "params are unchanged",
        changed(STEP, "params -= lr * grads", "params = params - lr * grads"),
    ),
    ("training_step", "raises the loss", changed(STEP, "params -= lr * grads", "params += lr * grads")),
    ("training_step", "multiply it by lr", changed(STEP, "params -= lr * grads", "params -= grads")),
    (
        "training_step",
        "this rank's own gradient",
        changed(
            STEP,
            "    average_gradients(comm, grads, n)\n    params -= lr * grads\n",
            "    params -= lr * grads\n    average_gradients(comm, grads, n)\n",
        ),
    ),
    (
        "training_step",
        "the mean of the ranks' means",
        changed(STEP, "average_gradients(comm, grads, n)", "average_gradients(comm, grads, 1)"),
    ),
    (
        "training_step",
        "never joined",
        changed(STEP, "    loss, grads", "    if n == 0:\n        return 0.0\n    loss, grads"),
    ),
    (
        "training_step",
        "nan",
        changed(STEP, " if n else (0.0, np.zeros_like(params))", ""),
    ),
]
