"""Wrong answers on the optimiser, the learning rate and gradient accumulation."""

from tests.exercises.changed import but

WRONG = [
    (
        "momentum_step",
        "velocity is unchanged",
        """
def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    velocity = momentum * velocity + grads + weight_decay * params
    params -= lr * velocity
""",
    ),
    (
        "momentum_step",
        "uses the old velocity",
        """
def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    old = velocity.copy()
    velocity *= momentum
    velocity += grads + weight_decay * params
    params -= lr * old
""",
    ),
    (
        "momentum_step",
        "1 - momentum",
        but(
            "momentum_step",
            (
                "velocity += grads + weight_decay * params",
                "velocity += (1 - momentum) * (grads + weight_decay * params)",
            ),
        ),
    ),
    (
        "momentum_step",
        "Nesterov",
        but("momentum_step", ("lr * velocity", "lr * (grads + weight_decay * params + momentum * velocity)")),
    ),
    ("momentum_step", "decay is missing", but("momentum_step", (" + weight_decay * params", ""))),
    ("momentum_step", "wrong sign", but("momentum_step", ("+ weight_decay", "- weight_decay"))),
    ("momentum_step", "uphill", but("momentum_step", ("params -=", "params +="))),
    (
        "momentum_step",
        "velocity lacks the weight decay",
        but(
            "momentum_step",
            ("+= grads + weight_decay * params", "+= grads"),
            ("lr * velocity", "lr * (velocity + weight_decay * params)"),
        ),
    ),
    (
        "momentum_step",
        "grads",
        but(
            "momentum_step",
            (
                "velocity += grads + weight_decay * params",
                "grads += weight_decay * params\n    velocity += grads",
            ),
        ),
    ),
    ("warm_up_cosine", "has the rate 0", but("warm_up_cosine", ("(step + 1)", "step"))),
    (
        "warm_up_cosine",
        "there is no warm-up",
        but(
            "warm_up_cosine",
            ("if step < warm_up:", "if False:"),
            ("(step - warm_up) / (steps - warm_up)", "step / steps"),
        ),
    ),
    (
        "warm_up_cosine",
        "stays at its peak",
        but("warm_up_cosine", ("return peak * (1 + math.cos(math.pi * progress)) / 2", "return peak")),
    ),
    (
        "warm_up_cosine",
        "the cosine starts at step 0",
        but("warm_up_cosine", ("(step - warm_up) / (steps - warm_up)", "step / steps")),
    ),
    (
        "warm_up_cosine",
        "does not come down",
        but("warm_up_cosine", ("(step - warm_up) / (steps - warm_up)", "(step - warm_up) / steps")),
    ),
    (
        "warm_up_cosine",
        "ends below 0",
        but("warm_up_cosine", ("(1 + math.cos(math.pi * progress)) / 2", "math.cos(math.pi * progress)")),
    ),
    (
        "warm_up_cosine",
        "straight line",
        but("warm_up_cosine", ("(1 + math.cos(math.pi * progress)) / 2", "(1 - progress)")),
    ),
    (
        "warm_up_cosine",
        "ZeroDivisionError",
        """
import math

def warm_up_cosine(step, peak, warm_up, steps):
    up = peak * (step + 1) / warm_up
    down = peak * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2
    return min(up, down) if step < warm_up else down
""",
    ),
    (
        "accumulate",
        "is unchanged",
        but("accumulate", ("    total[...] = 0", "    total = np.zeros_like(total)")),
    ),
    ("accumulate", "set it to 0 first", but("accumulate", ("    total[...] = 0\n", ""))),
    (
        "accumulate",
        "each micro-batch counts equally",
        but("accumulate", ("count * gradient", "gradient"), ("samples += count", "samples += 1")),
    ),
    (
        "accumulate",
        "added, not averaged",
        but("accumulate", ("count * gradient", "gradient"), ("    total /= comm.allreduce(samples)\n", "")),
    ),
    (
        "accumulate",
        "not divided by the number of samples",
        but("accumulate", ("    total /= comm.allreduce(samples)\n", "")),
    ),
    (
        "accumulate",
        "each rank counts equally",
        but(
            "accumulate",
            ("    comm.Allreduce", "    total /= max(samples, 1)\n    comm.Allreduce"),
            ("comm.allreduce(samples)", "comm.size"),
        ),
    ),
    (
        "accumulate",
        "this rank's samples: divide",
        but("accumulate", ("comm.allreduce(samples)", "max(samples, 1)")),
    ),
    (
        "accumulate",
        "exchange their sums",
        but(
            "accumulate",
            ("    comm.Allreduce(total.copy(), total)\n", ""),
            ("comm.allreduce(samples)", "max(samples, 1)"),
        ),
    ),
    (
        "accumulate",
        "the last one counts",
        but(
            "accumulate",
            ("        total +=", "        if count < 4:\n            continue\n        total +="),
        ),
    ),
    (
        "accumulate",
        "sent for the second time",
        """
def accumulate(comm, micro_batches, total):
    total[...] = 0
    samples = 0
    pairs = list(micro_batches)
    for k in range(max(comm.allgather(len(pairs)))):
        gradient, count = pairs[k] if k < len(pairs) else (np.zeros_like(total), 0)
        part = count * gradient
        comm.Allreduce(MPI.IN_PLACE, part)
        total += part
        samples += comm.allreduce(count)
    total /= samples
""",
    ),
    (
        "accumulate",
        "Allreduce",
        """
def accumulate(comm, micro_batches, total):
    total[...] = 0
    samples = 0
    for gradient, count in micro_batches:
        part = count * gradient
        comm.Allreduce(MPI.IN_PLACE, part)
        total += part
        samples += count
    total /= comm.allreduce(samples)
""",
    ),
]
