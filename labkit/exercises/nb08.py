"""The exercises of notebook 08: equal replicas, the optimiser, the learning rate, gradient accumulation."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from labkit.exercises.exercise import WITH_MPI, Case, Exercise, Outcome, both_dtypes
from labkit.exercises.wraps import at_most
from mpiwatch.report import counted

# Exercise 8.1

SIZE = 4000  # float32 values: 16 kB, far more than a hash
WITH_HASHES = f"import hashlib\n\n{WITH_MPI}"


def weights_equal(comm, weights):
    """Return on every rank whether all ranks' weights are equal, bit for bit. Shape: weights (n,)."""
    hashes = comm.allgather(hashlib.sha256(weights.tobytes()).digest())
    return len(set(hashes)) == 1


def weights_cases() -> Sequence[Case]:
    start = np.linspace(-1, 1, SIZE, dtype=np.float32)
    cases = []
    for p, changed, how in (
        (1, None, "equal"),
        (2, None, "equal"),
        (2, 0, "all values"),
        (2, 1, "one bit"),
        (3, 0, "one bit"),
        (4, 3, "one bit"),
        (4, 2, "two values exchanged"),
        (3, None, "equal, one of them NaN"),
        (4, None, "equal"),
    ):
        weights = [start.copy() for _ in range(p)]
        if how == "all values":
            weights[changed or 0][...] += 1
        elif how == "one bit":
            weights[changed or 0].view(np.uint32)[SIZE // 2] ^= 1
        elif how == "two values exchanged":
            weights[changed or 0][[1, 7]] = start[[7, 1]]
        elif "NaN" in how:
            for each in weights:
                each[5] = np.nan
        where = "equal weights" if changed is None else f"{how} different on rank {changed}"
        label = f"{counted(p, 'rank')}, {where if 'NaN' not in how else 'equal weights with a NaN'}"
        cases.append(Case(label, tuple((each,) for each in weights)))
    return cases


def equal_bytes(case: Case) -> Sequence[bool]:
    first = case.arguments[0][0].tobytes()
    return [all(weights.tobytes() == first for (weights,) in case.arguments)] * case.ranks


WEIGHTS_EQUAL = Exercise(
    reference=weights_equal,
    title="Do all ranks have the same weights?",
    difficulty=2,
    minutes=10,
    cases=weights_cases,
    expected=equal_bytes,
    mistakes={
        "only rank 0 knows the answer: every rank needs it": """
def weights_equal(comm, weights):
    hashes = comm.gather(hashlib.sha256(weights.tobytes()).digest())
    if comm.rank == 0:
        return len(set(hashes)) == 1
""",
        "a difference of one bit is overlooked: compare bytes, not rounded values": {
            "weights.tobytes()": "weights.round(4).tobytes()"
        },
        "two exchanged values are overlooked: a sum does not say where the values are": {
            "hashlib.sha256(weights.tobytes()).digest()": (
                "int(weights.view(np.uint32).sum(dtype=np.uint64))"
            )
        },
        "the answer is always True": {"return len(set(hashes)) == 1": "return True"},
        "the ranks answer differently: each compares its own weights with rank 0's only": """
def weights_equal(comm, weights):
    mine = hashlib.sha256(weights.tobytes()).digest()
    return mine == comm.bcast(mine)
""",
        "the answer is always False for more than one rank. Python's hash() differs from process to "
        "process; use hashlib": {"hashlib.sha256(weights.tobytes()).digest()": "hash(weights.tobytes())"},
        "… send a hash, a few bytes, not the weights": """
def weights_equal(comm, weights):
    everyone = comm.allgather(weights.tobytes())
    return all(each == everyone[0] for each in everyone)
""",
    },
    on_ranks=True,
    wrap=partial(
        at_most, 0, SIZE, "{nbytes:,} bytes in one collective: send a hash, a few bytes, not the weights"
    ),
    hints=(
        "hashlib.sha256(weights.tobytes()).digest() are 32 bytes computed from all bits of the weights.",
        "comm.allgather (lower case) gives every rank the list of all ranks' hashes.",
        "How many different elements does the list have? len(set(…)).",
    ),
    prelude=WITH_HASHES,
)


# Exercise 8.2


def average_buffers(comm, buffers, samples):
    """Leave the mean of the ranks' buffers, weighted by their samples, in place. Shape: buffers (n,)."""
    rows = np.empty((comm.size, buffers.size), buffers.dtype)
    comm.Allgather(buffers * samples, rows)
    buffers[...] = rows.sum(axis=0) / sum(comm.allgather(samples))


def buffers_cases() -> Sequence[Case]:
    cases = []
    for samples, dtype in (
        ((5,), np.float32),
        ((2, 2), np.float64),
        ((1, 3), np.float64),
        ((3, 1, 2), np.float32),
        ((4, 0, 1, 3), np.float64),
        ((25, 25, 25, 24), np.float32),
    ):
        rows = np.random.default_rng(len(samples)).normal(3, 2, size=(len(samples), 50)).astype(dtype)
        label = f"{' + '.join(map(str, samples))} samples, {np.dtype(dtype)}"
        cases.append(Case(label, tuple(zip(rows, samples, strict=True))))
    return cases


def weighted_mean(case: Case) -> Sequence[np.ndarray]:
    rows, samples = zip(*case.arguments, strict=True)
    mean = np.average(np.array(rows, np.float64), axis=0, weights=samples)
    return [mean.astype(rows[0].dtype)] * case.ranks


def look_at_bits(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    first = outcomes[0].arguments[0]
    for rank, outcome in enumerate(outcomes):
        if outcome.arguments[0].tobytes() != first.tobytes():
            return (
                f"right up to rounding, but ranks 0 and {rank} have different bits. Let every rank get all "
                "terms and add them in the same order"
            )
    return None


AVERAGE_BUFFERS = Exercise(
    reference=average_buffers,
    title="Average the buffers",
    difficulty=2,
    minutes=10,
    cases=buffers_cases,
    expected=weighted_mean,
    mistakes={
        "the buffers are unchanged: leave the mean in place, with buffers[...] = …": {
            "buffers[...] =": "buffers ="
        },
        "this is the plain mean: each rank has its weight": {
            "buffers * samples": "buffers",
            "sum(comm.allgather(samples))": "comm.size",
        },
        "this is the sum of the buffers": {
            "buffers * samples": "buffers",
            " / sum(comm.allgather(samples))": "",
        },
        "the weighted sum is not divided by the samples of all ranks": {
            " / sum(comm.allgather(samples))": ""
        },
        "the weighted sum is divided by the number of ranks, not by the samples of all ranks": {
            "sum(comm.allgather(samples))": "comm.size"
        },
        "these are rank 0's buffers: the mean uses the samples of all ranks": """
def average_buffers(comm, buffers, samples):
    comm.Bcast(buffers, root=0)
""",
        "only rank 0 has the mean: every rank needs it": """
def average_buffers(comm, buffers, samples):
    total, counts = np.empty_like(buffers), comm.gather(samples)
    comm.Reduce(buffers * samples, total)
    if comm.rank == 0:
        buffers[...] = total / sum(counts)
""",
        "… different bits": """
def average_buffers(comm, buffers, samples):
    total = sum(comm.allgather(samples))
    term = buffers * samples / total
    result = term.copy()
    for step in range(1, comm.size):
        other = np.empty_like(term)
        comm.Sendrecv(term, (comm.rank + step) % comm.size, 0, other, (comm.rank - step) % comm.size, 0)
        result += other
    buffers[...] = result
""",
    },
    look=look_at_bits,
    on_ranks=True,
    result_in=0,
    hints=(
        "Each rank's term is buffers * samples; the divisor is the number of samples of all ranks.",
        "comm.Allgather(term, rows) with rows of shape (p, n) gives every rank all terms, in rank order.",
        "rows.sum(axis=0) adds in the same order on every rank, so the bits are the same.",
    ),
    prelude=WITH_HASHES,
)


# Exercise 8.3


def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    """Change `velocity` and `params` in place; leave `grads` as it is. Shapes: all three (n,)."""
    velocity *= momentum
    velocity += grads + weight_decay * params
    params -= lr * velocity


def momentum_cases() -> Sequence[Case]:
    cases = []
    for n, momentum, decay in (2, 0.0, 0.0), (3, 0.9, 0.0), (3, 0.0, 0.1), (5, 0.9, 0.1), (70, 0.5, 0.01):
        params, velocity, grads = np.random.default_rng(n).normal(size=(3, n))
        label = f"{n} parameters, momentum {momentum}, weight decay {decay}"
        cases += both_dtypes(label, params, velocity, grads, 0.5, momentum, decay)
    return cases


def stepped(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return params and velocity after the step, computed in float64, in the dtype of the parameters."""
    params, velocity, grads, lr, momentum, decay = case.arguments[0]
    after = momentum * velocity.astype(np.float64) + grads + decay * params.astype(np.float64)
    return (params - lr * after).astype(params.dtype), after.astype(params.dtype)


def look_at_velocity(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    params, velocity, grads, lr, momentum, decay = case.arguments[0]
    got, expected = outcomes[0].arguments[1], stepped(case)[1]
    wrong = {
        "velocity is unchanged: write to the array, velocity[...] = … or velocity *= …": velocity,
        "velocity lacks the weight decay: it is added to the gradient, before the momentum": (
            momentum * velocity + grads
        ),
        "velocity holds the learning rate: it belongs into the update of params": lr * expected,
        "velocity is the gradient alone: the momentum is lost": grads + decay * params,
    }
    if np.allclose(got, expected, rtol=1e-5, atol=1e-6):
        return None
    for finding, values in wrong.items():
        if np.allclose(got, values, rtol=1e-5, atol=1e-6):
            return f"params is right, {finding} ({case.label})"
    return f"params is right, velocity[0] is {got[0]:.4f}, expected {expected[0]:.4f} ({case.label})"


MOMENTUM_STEP = Exercise(
    reference=momentum_step,
    title="SGD with momentum and weight decay",
    difficulty=2,
    minutes=10,
    cases=momentum_cases,
    expected=lambda case: [stepped(case)[0]],
    mistakes={
        "params is unchanged: write to the array, params -= …, and do not make a new one": {
            "params -= lr": "params = params - lr"
        },
        "the step uses the old velocity: update velocity first": {
            "    velocity *=": "    old = velocity.copy()\n    velocity *=",
            "lr * velocity": "lr * old",
        },
        "the step uses the gradient, not the velocity": {
            "lr * velocity": "lr * (grads + weight_decay * params)"
        },
        "the velocity is not multiplied by the momentum": {"    velocity *= momentum\n": ""},
        "the new gradient is multiplied by 1 - momentum: SGD adds all of it": {
            "grads + weight_decay * params": "(1 - momentum) * (grads + weight_decay * params)"
        },
        "this is Nesterov's momentum, which looks one step ahead": {
            "lr * velocity": "lr * (grads + weight_decay * params + momentum * velocity)"
        },
        "the weight decay is missing": {" + weight_decay * params": ""},
        "the weight decay has the wrong sign: it makes the weights grow": {
            "+ weight_decay": "- weight_decay"
        },
        "the step goes uphill: subtract lr · velocity": {"params -=": "params +="},
        "… velocity is unchanged": """
def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    velocity = momentum * velocity + grads + weight_decay * params
    params -= lr * velocity
""",
        "… velocity lacks the weight decay": {
            "+= grads + weight_decay * params": "+= grads",
            "lr * velocity": "lr * (velocity + weight_decay * params)",
        },
        "… changes its argument `grads`": {
            "velocity += grads + weight_decay * params": (
                "grads += weight_decay * params\n    velocity += grads"
            )
        },
    },
    look=look_at_velocity,
    result_in=0,
    may_change=(1,),
    hints=(
        "Three lines: velocity times momentum; plus gradient and decay; a step against it.",
        "The decay is a part of the gradient: grads + weight_decay * params.",
        "velocity *= …, velocity += …, params -= … change the arrays; velocity = … would only rename.",
    ),
)


# Exercise 8.4


def warm_up_cosine(step, peak, warm_up, steps):
    """Return the learning rate of update number `step`, counted from 0, of a run of `steps` updates."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / (steps - warm_up)
    return peak * (1 + math.cos(math.pi * progress)) / 2


def rate_cases() -> Sequence[Case]:
    cases = []
    for step, warm_up, steps in (
        *((0, 0, 10), (0, 1, 10), (9, 0, 10), (5, 0, 10)),
        *((0, 4, 12), (1, 4, 12), (3, 4, 12), (4, 4, 12), (8, 4, 12), (11, 4, 12), (99, 20, 100)),
    ):
        label = f"step {step} of {steps}, warm-up of {warm_up} steps, peak 0.4"
        cases.append(Case(label, ((step, 0.4, warm_up, steps),)))
    return cases


def rate_by_half_angle(case: Case) -> Sequence[float]:
    """Return the rate by (1 + cos 2a) / 2 = cos² a."""
    ((step, peak, warm_up, steps),) = case.arguments
    if step < warm_up:
        return [peak - peak * (warm_up - 1 - step) / warm_up]
    return [float(peak * math.cos(math.pi / 2 * (step - warm_up) / (steps - warm_up)) ** 2)]


WARM_UP_COSINE = Exercise(
    reference=warm_up_cosine,
    title="Warm-up and cosine",
    difficulty=2,
    minutes=10,
    cases=rate_cases,
    expected=rate_by_half_angle,
    mistakes={
        "the first step of the warm-up has the rate 0 and changes nothing: it is peak / warm_up": {
            "(step + 1)": "step"
        },
        "after the warm-up the rate stays at its peak: let it fall along the cosine": {
            "peak * (1 + math.cos(math.pi * progress)) / 2": "peak"
        },
        "the cosine starts at step 0: count from the end of the warm-up, or the rate jumps there": {
            "(step - warm_up) / (steps - warm_up)": "step / steps"
        },
        "there is no warm-up": {
            "if step < warm_up": "if False",
            "(step - warm_up) / (steps - warm_up)": "step / steps",
        },
        "the cosine is `steps` long from the end of the warm-up, so the rate does not come down": {
            "/ (steps - warm_up)": "/ steps"
        },
        "the rate ends below 0: the cosine goes from 1 to -1; add 1 and halve": {
            "(1 + math.cos(math.pi * progress)) / 2": "math.cos(math.pi * progress)"
        },
        "this is a straight line down, not a cosine": {
            "(1 + math.cos(math.pi * progress)) / 2": "(1 - progress)"
        },
        "the rate rises again: half a period of the cosine takes π, not 2 π": {
            "math.pi * progress": "2 * math.pi * progress"
        },
        "… ZeroDivisionError": """
def warm_up_cosine(step, peak, warm_up, steps):
    up = peak * (step + 1) / warm_up
    down = peak * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2
    return min(up, down) if step < warm_up else down
""",
    },
    hints=(
        "Two cases: step < warm_up, and all others. With warm_up = 0 the first never occurs.",
        "In the warm-up: peak * (step + 1) / warm_up.",
        "After it, progress = (step - warm_up) / (steps - warm_up); peak * (1 + cos(π progress)) / 2.",
    ),
    prelude="import math\n\nimport numpy as np",
)


# Exercise 8.5


def accumulate(comm, micro_batches, total):
    """Leave the mean gradient over the samples of all ranks in `total` (n,).

    `micro_batches` yields pairs: the mean gradient over a micro-batch (n,), and its number of samples.
    """
    total[...] = 0
    samples = 0
    for gradient, count in micro_batches:
        total += count * gradient
        samples += count
    comm.Allreduce(total.copy(), total)
    total /= comm.allreduce(samples)


def micro_batch_cases() -> Sequence[Case]:
    cases = []
    for of_ranks, dtype in (
        (((4,),), np.float64),
        (((4, 4), (4, 4)), np.float32),
        (((4, 4, 2),), np.float64),
        (((4, 1), (4, 4)), np.float64),
        (((4, 2), (3,), (4, 4, 1)), np.float32),
        (((4, 4), (4, 4), (4, 3), ()), np.float64),
    ):
        rng, arguments = np.random.default_rng(len(of_ranks)), []
        for counts in of_ranks:
            pairs = [(rng.normal(1, 2, size=6).astype(dtype), count) for count in counts]
            arguments.append((pairs, np.full(6, 7, dtype)))  # the 7s are to be overwritten
        each = "; ".join("+".join(map(str, counts)) or "0" for counts in of_ranks)
        label = f"micro-batches of {each} samples on {counted(len(of_ranks), 'rank')}"
        cases.append(Case(label, tuple(arguments)))
    return cases


def mean_over_all_samples(case: Case) -> Sequence[np.ndarray]:
    gradients, counts = zip(*(pair for pairs, _ in case.arguments for pair in pairs), strict=True)
    mean = np.average(np.array(gradients, np.float64), axis=0, weights=counts)
    return [mean.astype(gradients[0].dtype)] * case.ranks


ACCUMULATE = Exercise(
    reference=accumulate,
    title="Gradient accumulation",
    difficulty=3,
    minutes=15,
    cases=micro_batch_cases,
    expected=mean_over_all_samples,
    mistakes={
        "`total` is unchanged: add to the array in place": {"total[...] = 0": "total = np.zeros_like(total)"},
        "what was in `total` before is counted, too: set it to 0 first": {"    total[...] = 0\n": ""},
        "each micro-batch counts equally: weight its gradient by its number of samples": {
            "count * gradient": "gradient",
            "samples += count": "samples += 1",
        },
        "the micro-batches' gradients are added, not averaged: the step grows with their number": {
            "count * gradient": "gradient",
            "    total /= comm.allreduce(samples)\n": "",
        },
        "the sum is not divided by the number of samples": {"    total /= comm.allreduce(samples)\n": ""},
        "each rank counts equally: divide by the samples of all ranks, after the all-reduce": {
            "    comm.Allreduce": "    total /= max(samples, 1)\n    comm.Allreduce",
            "comm.allreduce(samples)": "comm.size",
        },
        "the sum over the ranks is divided by this rank's samples: divide by those of all ranks": {
            "comm.allreduce(samples)": "max(samples, 1)"
        },
        "this is the mean over this rank's samples: the ranks have to exchange their sums": {
            "    comm.Allreduce(total.copy(), total)\n": "",
            "comm.allreduce(samples)": "max(samples, 1)",
        },
        "smaller micro-batches are left out: the last one counts, too": {
            "        total +=": "        if count < 4:\n            continue\n        total +="
        },
        "… sent for the second time": """
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
        "… comm.Allreduce(MPI.IN_PLACE, part)": """
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
    },
    on_ranks=True,
    wrap=partial(at_most, 1, 24, "the gradient is sent for the second time: once is enough, after the loop"),
    result_in=1,
    hints=(
        "A mean of means is right only if each is weighted by its number of samples.",
        "Loop: total += count * gradient, and count samples. After the loop, one Allreduce of `total`.",
        "A rank without micro-batches calls Allreduce, too, with 0. Divide by comm.allreduce(samples).",
    ),
    prelude=WITH_MPI,
)
