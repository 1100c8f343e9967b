"""The exercises of notebook 08: equal replicas, the optimiser, the learning rate, gradient accumulation."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from labkit.checks.exercise import Case, Exercise, Outcome
from labkit.exercises.cases import (
    COLLECTIVES,
    SMALL_OBJECTS,
    both_dtypes,
    calls,
    moved,
    named,
    normal,
    weighted_mean,
)
from labkit.exercises.wraps import MicroBatches, once
from labkit.text import counted

# Exercise 8.1
SIZE = 4000  # float32 values: 16 kB, far more than a hash
WITH_HASHES = "import hashlib\n\nimport numpy as np\nfrom mpi4py import MPI"


def weights_equal(comm, weights):
    """Return on every rank whether all ranks' weights are equal, bit for bit. Shape: weights (n,)."""
    hashes = comm.allgather(hashlib.sha256(weights.tobytes()).digest())
    return len(set(hashes)) == 1


def weights_cases() -> Iterator[Case]:
    start = np.linspace(-1, 1, SIZE, dtype=np.float32)
    one_bit, exchanged, with_nan = start.copy(), start.copy(), start.copy()
    one_bit.view(np.uint32)[SIZE // 2] ^= 1
    exchanged[[1, 7]] = start[[7, 1]]
    with_nan[5] = np.nan
    in_float64 = start.astype(float)
    last_bit = in_float64.copy()
    last_bit.view(np.uint64)[7] ^= 1
    for label, *weights in (
        ("equal weights", start),
        ("equal weights", start, start),
        ("all values different on rank 0", start + 1, start),
        ("one bit different on rank 1", start, one_bit),
        ("one bit different on rank 0", one_bit, start, start),
        ("one bit different on rank 3", start, start, start, one_bit),
        ("one bit different on rank 2", start, start, one_bit, start),
        ("two values exchanged on rank 2", start, start, exchanged, start),
        ("equal weights with a NaN", with_nan, with_nan, with_nan),
        ("the last bit of a float64 value different on rank 1", in_float64, last_bit),
        ("two pairs of equal weights", start, one_bit, start, one_bit),
        ("equal weights", start, start, start, start),
    ):
        yield Case(f"{counted(len(weights), 'rank')}, {label}", tuple((weight,) for weight in weights))


def equal_bytes(case: Case) -> Sequence[bool]:
    return [len({weights.tobytes() for (weights,) in case.arguments}) == 1] * case.ranks


def look_at_bytes(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    largest = max(map(moved, outcomes))
    if largest > SIZE + SMALL_OBJECTS:  # a quarter of the weights
        yield f"{largest:,} bytes sent or received: send a hash, a few bytes, not the weights"


WEIGHTS_EQUAL = Exercise(
    reference=weights_equal,
    cases=weights_cases,
    look=look_at_bytes,
    expected=equal_bytes,
    mistakes={
        "only rank 0 knows the answer: every rank needs it": {
            "comm.allgather(": "comm.gather(",
            "return len(set(hashes))": "return None if hashes is None else len(set(hashes))",
        },
        "a difference of one bit is overlooked: compare bytes, not rounded values": {
            "weights.tobytes()": "weights.round(4).tobytes()"
        },
        "two exchanged values are overlooked: a sum does not say where the values are": {
            "hashlib.sha256(weights.tobytes()).digest()": (
                "int(weights.view(np.uint32).sum(dtype=np.uint64))"
            )
        },
        "the answer is always True": {"return len(set(hashes)) == 1": "return True"},
        "the ranks answer differently: each compares its own weights with rank 0's only": {
            "len(set(hashes)) == 1": "hashes[comm.rank] == hashes[0]"
        },
        "the answer is always False for more than one rank: what is compared differs between processes even "
        "for equal weights, as hash() and id() do; use hashlib": {
            "hashlib.sha256(weights.tobytes()).digest()": "hash(weights.tobytes())"
        },
        "… send a hash, a few bytes, not the weights": {
            "hashlib.sha256(weights.tobytes()).digest()": "weights.tobytes()"
        },
    },
    hints=(
        "hashlib.sha256(weights.tobytes()).digest() returns 32 bytes, computed from all bits.",
        "comm.allgather (lower case) gives every rank the list of all ranks' hashes.",
        "How many different elements does the list have? len(set(…)).",
    ),
    prelude=WITH_HASHES,
)


# Exercise 8.2
def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    """Change `velocity` and `params` in place; leave `grads` as it is. Shapes: all three (n,)."""
    velocity *= momentum
    velocity += grads + weight_decay * params
    params -= lr * velocity


def momentum_cases() -> Iterator[Case]:
    for n, momentum, decay in (2, 0.0, 0.0), (3, 0.9, 0.0), (3, 0.0, 0.1), (5, 0.9, 0.1), (70, 0.5, 0.01):
        label = f"{n} parameters, momentum {momentum}, weight decay {decay}"
        yield from both_dtypes(label, (*normal(n, n, n, n), 0.5, momentum, decay))


MOMENTUM_STEP = Exercise(
    reference=momentum_step,
    cases=momentum_cases,
    mistakes={
        "params is unchanged: write to the array, params -= …, and do not make a new one": {
            "params -= lr": "params = params - lr"
        },
        "the step uses the old velocity: update velocity first": {
            "    velocity *=": "    old = velocity.copy()\n    velocity *=",
            "lr * velocity": "lr * old",
        },
        "the step uses the gradient, not the velocity": {"* velocity": "* (grads + weight_decay * params)"},
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
        "params is right, velocity is unchanged: write to the array, velocity[...] = … or velocity *= …": {
            "velocity *= momentum": "velocity = momentum * velocity"
        },
        "params is right, velocity lacks the weight decay: it is added to the gradient, before the "
        "momentum": {
            "+= grads + weight_decay * params": "+= grads",
            "lr * velocity": "lr * (velocity + weight_decay * params)",
        },
        "params is right, velocity holds the learning rate: it belongs into the update of params": {
            "params -= lr * velocity": "velocity *= lr\n    params -= velocity"
        },
        "params is right, velocity is the gradient alone: the momentum is lost": {
            "velocity *= momentum": "step = momentum * velocity + grads + weight_decay * params",
            "velocity +=": "velocity[...] =",
            "lr * velocity": "lr * step",
        },
    },
    result_in=(0, 1),
    hints=(
        "Three lines: scale the velocity by the momentum, add the gradient with the decay, update params.",
        "Weight decay is added to the gradient: grads + weight_decay * params.",
        "velocity *= …, velocity += … and params -= … change the arrays; velocity = … makes a new one.",
    ),
)


# Exercise 8.3
def iteration_parts(times):
    """Return the mean compute, waiting, exposed and rest (ms) of all iterations but the first, as a dict.

    Shape: times (iterations, 5), in s: when each iteration began, its gradient was ready, the averaging
    started and ended, and the update was done. An iteration lasts from the end of the one before to its own.
    """
    begin, ready, start, end, done = 1e3 * times[1:].T
    parts = {
        "compute": np.mean(ready - begin + done - end),
        "waiting": np.mean(start - ready),
        "exposed": np.mean(end - start),
    }
    whole = 1e3 * (times[-1, -1] - times[0, -1]) / len(begin)
    parts["rest"] = whole - sum(parts.values())
    return parts


def iterations(*rows: tuple[float, ...]) -> tuple[np.ndarray]:
    """Return times from rows of the idle time before an iteration and the times of its four parts, in ms."""
    idle_and_parts = np.array(rows)
    return (np.cumsum(idle_and_parts / 1e3).reshape(idle_and_parts.shape),)


def random_iterations(count: int) -> tuple[np.ndarray]:
    """Return times of so many iterations, the first of which is slow."""
    rows = np.random.default_rng(count).integers(1, 50, (count, 5)).astype(float)
    rows[0] *= 7
    return iterations(*rows.tolist())


ITERATION_PARTS = Exercise(
    reference=iteration_parts,
    cases=named(
        {
            "two iterations of 2 + 3 + 4 + 5 ms, and 6 ms between them": iterations(
                (0, 2, 3, 4, 5), (6, 2, 3, 4, 5)
            ),
            "three iterations, the first one slow": iterations(
                (0, 90, 30, 40, 50), (1, 2, 3, 4, 5), (2, 6, 1, 3, 7)
            ),
            "a first iteration that begins at 100 s": iterations((1e5, 2, 3, 4, 5), (1, 9, 8, 7, 6)),
            "ten iterations": random_iterations(10),
        }
    ),
    tolerance=1e-6,
    mistakes={
        "the first iteration counts: leave it out": {"times[1:].T": "times.T", "times[0, -1]": "times[0, 0]"},
        "the times are in seconds: multiply them by 1,000": {"1e3 * ": ""},
        "compute ends with the gradient: add the update, from the end of the averaging until done": {
            " + done - end": ""
        },
        "the rest lacks the time between two iterations: each lasts from the end of the one before": {
            "1e3 * (times[-1, -1] - times[0, -1]) / len(begin)": "np.mean(done - begin)"
        },
        "these are sums over the iterations: divide by their number": {
            "np.mean(": "np.sum(",
            " / len(begin)": "",
        },
        "waiting and exposed are exchanged: the averaging starts when the last rank is ready": {
            "start - ready": "end - start",
            "np.mean(end - start),\n    }": "np.mean(start - ready),\n    }",
        },
        "the rest is too small: without the first, there is one iteration less": {
            "len(begin)": "len(times)",
        },
        "the rest is the whole iteration: subtract the three other parts": {" - sum(parts.values())": ""},
    },
    hints=(
        "times[1:] leaves out the first iteration. Its columns: begin, ready, … = times[1:].T.",
        "The iterations that count last from times[0, -1], the end of the first, to times[-1, -1].",
        "rest: a whole iteration without compute, waiting and exposed.",
    ),
)


# Exercise 8.4
def average_buffers(comm, buffers, samples):
    """Leave the mean of the ranks' buffers, weighted by their samples, in place. Shape: buffers (n,)."""
    rows = np.empty((comm.size, buffers.size), buffers.dtype)
    comm.Allgather(buffers * samples, rows)
    buffers[...] = rows.sum(axis=0) / sum(comm.allgather(samples))


def buffers_cases() -> Iterator[Case]:
    for samples, dtype in (
        ((5,), "float32"),
        ((2, 2), "float64"),
        ((1, 3), "float64"),
        ((3, 1, 2), "float32"),
        ((4, 0, 1, 3), "float64"),
        ((25, 25, 25, 24), "float32"),
    ):
        rows = (3 + 2 * normal(len(samples), (len(samples), 50))[0]).astype(dtype)
        yield Case(
            f"{' + '.join(map(str, samples))} samples, {dtype}", tuple(zip(rows, samples, strict=True))
        )


def look_at_bits(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    first = outcomes[0].arguments[0]
    for rank, outcome in enumerate(outcomes):
        if outcome.arguments[0].tobytes() != first.tobytes():
            yield (
                f"right up to rounding, but ranks 0 and {rank} have different bits. Let every rank get all "
                "terms and add them in the same order"
            )


AVERAGE_BUFFERS = Exercise(
    reference=average_buffers,
    cases=buffers_cases,
    expected=weighted_mean,
    mistakes={
        "the buffers are unchanged: leave the mean in place, with buffers[...] = …": {"[...]": ""},
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
        "these are rank 0's buffers: the mean uses the samples of all ranks": {
            "    buffers[...] =": "    comm.Bcast(buffers)\n    buffers = "
        },
        "only rank 0 has the mean: every rank needs it": {
            "buffers[...] =": "mean =",
            "(samples))": "(samples))\n    if comm.rank == 0:\n        buffers[...] = mean",
        },
        "… different bits": {
            "rows.sum(axis=0)": "sum(rows[(comm.rank + step) % comm.size] for step in range(comm.size))"
        },
    },
    look=look_at_bits,
    result_in=0,
    hints=(
        "Each rank's term is buffers * samples. Divide the sum of the terms by the samples of all ranks.",
        "comm.Allgather(term, rows) with rows of shape (p, n) gives every rank all terms, in rank order.",
        "rows.sum(axis=0) adds the terms in the same order on every rank, so all ranks get the same bits.",
    ),
    prelude=WITH_HASHES,
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


def micro_batch_cases() -> Iterator[Case]:
    for of_ranks, dtype in (
        (((4,),), "float64"),
        (((4, 4), (4, 4)), "float32"),
        (((4, 4, 2),), "float64"),
        (((4, 1), (4, 4)), "float64"),
        (((4, 2), (3,), (4, 4, 1)), "float32"),
        (((4, 4), (4, 4), (4, 3), ()), "float64"),
    ):
        arguments = []
        for rank, counts in enumerate(of_ranks):
            gradients = (1 + 2 * values.astype(dtype) for values in normal(rank, *[60] * len(counts)))
            pairs = MicroBatches(zip(gradients, counts, strict=True))
            old = np.nan if len(of_ranks) == 4 else 7  # to be overwritten
            arguments.append((pairs, np.full(60, old, dtype)))
        counts_text = "; ".join("+".join(map(str, counts)) or "0" for counts in of_ranks)
        label = f"micro-batches of {counts_text} samples on {counted(len(of_ranks), 'rank')}"
        yield Case(label, tuple(arguments))


def look_at_calls(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a finding if the gradient was not averaged by `Allreduce`, which the notebook counts."""
    for rank, outcome in enumerate(outcomes if case.ranks > 1 else []):
        names = sorted({call.name for call in outcome.calls} & set(COLLECTIVES))
        if "Allreduce" not in names:
            yield (
                f"rank {rank}: expected one `Allreduce` of the gradient; the collectives called are "
                f"{', '.join(names) or 'none'}"
            )


ACCUMULATE = Exercise(
    reference=accumulate,
    cases=micro_batch_cases,
    wrap=partial(once, 100, "average the gradient once, after the loop; this is call 2"),
    expected=lambda case: weighted_mean(
        case, [pair for contribution, _ in case.arguments for pair in contribution.pairs]
    ),
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
        "each gradient is the last one: all stand in one array; use each before you take the next pair": {
            "in micro_batches:": "in list(micro_batches):"
        },
        "… expected one `Allreduce` of the gradient": {
            "comm.Allreduce(total.copy(), total)": "total[...] = comm.allreduce(total)"
        },
        "… after the loop": {
            "total += count * gradient": (
                "part = count * gradient\n        comm.Allreduce(MPI.IN_PLACE, part)\n        total += part"
            ),
            "    comm.Allreduce(total.copy(), total)\n": "",
        },
    },
    look=look_at_calls,
    # 100 bytes: less than a gradient, more than a number of samples
    result_in=1,
    hints=(
        "A mean of means is right only if each mean is weighted by its number of samples.",
        "In the loop: total += count * gradient, samples += count. After it, call Allreduce once.",
        "A rank without micro-batches calls Allreduce, too, with zeros. Divide by comm.allreduce(samples).",
    ),
)


# Exercise 8.6
def warm_up_cosine(step, peak, warm_up, steps):
    """Return the learning rate of update number `step`, counted from 0, of a run of `steps` updates."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / (steps - warm_up)
    return peak * (1 + math.cos(math.pi * progress)) / 2


WARM_UP_COSINE = Exercise(
    reference=warm_up_cosine,
    cases=calls(
        warm_up_cosine,
        *((step, 0.4, 0, 10) for step in (0, 5, 9)),
        *((step, 0.4, 4, 12) for step in (0, 1, 3, 4, 8, 11)),
        (0, 0.4, 1, 10),
        (99, 0.4, 20, 100),
    ),
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
        "this is a straight line down, not a cosine": {"+ math.cos(math.pi * progress)) / 2": "- progress)"},
        "the rate rises again: half a period of the cosine takes π, not 2 π": {"math.pi": "2 * math.pi"},
    },
    hints=(
        "Two cases: step < warm_up, and all later steps. With warm_up = 0, only the second occurs.",
        "In the warm-up: peak * (step + 1) / warm_up.",
        "After it, progress = (step - warm_up) / (steps - warm_up); peak * (1 + cos(π progress)) / 2.",
    ),
    prelude="import math\n\nimport numpy as np",
)


QUESTIONS = {
    "08-speed-up": "The update takes as long for 64 images as for 256, and large matrix products run at a "
    "higher rate than small ones: a local batch of 64 may keep fewer of a node's cores busy than one of 256. "
    "And every iteration waits for the slowest of the four.",
    "08-buffers-once": "Yes. Running statistics are read only when the model is tested. The mean of the "
    "ranks' moving averages is the moving average of the means, so averaging after every iteration gives "
    "the same result with more traffic.",
    "08-micro-batches": "A local batch has 256 samples: four micro-batches, one all-reduce. Communication "
    "also becomes a smaller part of the step: there is four times as much computation per all-reduce as "
    "with a global batch of 256. (Overlap can hide the all-reduce only behind the last micro-batch's "
    "backward pass.)",
    "08-rate": "The same. The number of updates and the gradient of each update stay as they were; only "
    "the local batch is halved. The linear scaling rule depends on the global batch, not on the number of "
    "ranks.",
}
