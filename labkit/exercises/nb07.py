"""The exercises of notebook 07: buckets and overlap."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from labkit.checks.compare import difference
from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises import wraps
from labkit.exercises.cases import SMALL_OBJECTS, calls, moved, named, normal, on_ranks


# Exercise 7.1
def completed(sizes, seconds):
    """Return pairs (start, t): t seconds after the backward pass began, grads[start:] is complete.

    `sizes` and `seconds` hold each layer's number of parameters and the time of its backward pass (s), the
    first layer first. The pairs are in the order of the backward pass. A layer without parameters has no
    pair, but takes time.
    """
    start, t, pairs = sum(sizes), 0.0, []
    for size, layer_s in zip(reversed(sizes), reversed(seconds)):  # noqa: B905 (a student's Python)
        start -= size
        t += layer_s
        if size > 0:
            pairs.append((start, t))
    return pairs


COMPLETED = Exercise(
    reference=completed,
    cases=named(
        {
            "1 layer": ([6], [0.5]),
            "2 layers": ([2, 5], [0.25, 0.5]),
            "3 layers of equal sizes": ([4, 4, 4], [0.25, 0.5, 1.0]),
            "2 layers, one with a single parameter": ([3, 1], [0.25, 0.5]),
            "3 layers, the second without parameters": ([4, 0, 3], [1.0, 0.5, 0.25]),
            "5 layers, the first and last without parameters": ([0, 7, 2, 9, 0], [0.5, 1.0, 2.0, 4.0, 8.0]),
            "no layers": ([], []),
        }
    ),
    mistakes={
        "the pairs are in the order of the forward pass; the backward pass begins at the end": {
            "zip(reversed(sizes), reversed(seconds))": "zip(sizes, seconds)",
            "start, t, pairs = sum(sizes)": "start, t, pairs = 0",
            "start -= size": "start += size",
            "append((start, t))": "append((start - size, t))",
        },
        "`start` is where the layer ends. Complete from there on is what came before this layer": {
            "        start -= size\n": "",
            "append((start, t))": "append((start, t))\n        start -= size",
        },
        "t is the time of one layer. Count from the beginning of the backward pass": {
            "t += layer_s": "t = layer_s"
        },
        "t leaves out the time of the layers without parameters": {
            "t += layer_s": "t += layer_s if size else 0"
        },
        "a layer without parameters completes nothing: no pair for it": {"if size > 0": "if True"},
        "t is when the layer begins. Its gradient is complete when it ends": {
            "t += layer_s": "before, t = t, t + layer_s",
            "append((start, t))": "append((start, before))",
        },
    },
    hints=(
        "Go through both lists from the end. Keep two running values: where the complete part of the "
        "gradient starts, and how much time has passed.",
        "Begin with start = sum(sizes) and t = 0. Each layer subtracts its size and adds its seconds; "
        "append the pair only if the layer has parameters.",
    ),
)


# Exercise 7.2
def exposed_seconds(computing, transfers):
    """Return for how many seconds the link carried data while the rank computed nothing.

    Both arguments are lists of spans (begin, end) in seconds on one clock, in any order. The spans of one
    list do not overlap each other.
    """
    total = sum(end - begin for begin, end in transfers)
    hidden = 0.0
    for begin, end in transfers:
        for from_s, to_s in computing:
            hidden += max(0.0, min(end, to_s) - max(begin, from_s))
    return total - hidden


EXPOSED_SECONDS = Exercise(
    reference=exposed_seconds,
    cases=named(
        {
            "one transfer after the computation": ([(0.0, 4.0)], [(4.0, 7.0)]),
            "one transfer, half of it hidden": ([(0.0, 4.0)], [(3.0, 5.0)]),
            "the rank waits for 2 s before the transfer": ([(0.0, 2.0), (2.0, 4.0)], [(6.0, 9.0)]),
            "two transfers, the first one hidden": ([(0.0, 2.0), (2.0, 6.0)], [(3.0, 4.0), (5.0, 8.0)]),
            "a transfer that spans a pause between two layers": (
                [(0.0, 2.0), (5.0, 6.0)],
                [(1.0, 7.0), (8.0, 9.0)],
            ),
            "spans that are not in order": ([(8.0, 9.0), (0.0, 4.0)], [(8.0, 12.0), (3.0, 5.0), (6.0, 7.0)]),
            "all of it hidden": ([(0.0, 10.0)], [(1.0, 2.0), (4.0, 8.0)]),
            "transfers of some microseconds": ([(1e-5, 4.1e-5)], [(2e-6, 1.3e-5), (3e-5, 6e-5)]),
            "no transfer": ([(0.0, 1.0)], []),
            "no computation": ([], [(0.0, 2.0)]),
        }
    ),
    mistakes={
        "this is the hidden time. Exposed is the rest of the transfers' time": {"total - hidden": "hidden"},
        "this is the time of all transfers. Subtract the part that computation hides": {" - hidden": ""},
        "spans that do not meet count as a negative overlap: an overlap is at least 0": {
            "max(0.0, min(end, to_s) - max(begin, from_s))": "min(end, to_s) - max(begin, from_s)"
        },
        "this counts from the end of the computation, with the time in which the link is idle": {
            "    return": "    ready = max((end for begin, end in computing), default=0.0)\n    return",
            "total - hidden": "max([0.0] + [end - ready for begin, end in transfers])",
        },
        "the rank does not compute between two spans: a transfer is exposed there, too": {
            "    total =": (
                "    begins, ends = zip(*computing) if computing else ([0], [0])\n"
                "    computing = [(min(begins), max(ends))]\n    total ="
            )
        },
        "a transfer that begins before the computation ends can be exposed in part": {
            "    return": "    ready = max((end for begin, end in computing), default=0.0)\n    return",
            "total - hidden": "sum(end - begin for begin, end in transfers if begin >= ready)",
        },
    },
    hints=(
        "Exposed = the time of all transfers minus the time that computation hides.",
        "Spans (a, b) and (c, d) overlap for min(b, d) - max(a, c) seconds, or not at all if that is "
        "negative. Add up the overlaps of every transfer with every computing span.",
    ),
)


# Exercise 7.3
def bucket_plan(n, bucket_bytes, small_bytes):
    """Return the buckets of n float32 values as pairs (start, stop), the bucket at the end first."""
    most = max(1, bucket_bytes // 4)
    small = min(most, max(1, small_bytes // 4))
    plan, stop = [], n
    while stop > 0:
        values = small if stop == n or stop <= small else min(most, stop - small)
        start = max(0, stop - values)
        plan.append((start, stop))
        stop = start
    return plan


def plan_of_buckets(case: Case) -> Sequence[Any]:
    from labkit.train.overlap import Buckets  # noqa: PLC0415 (loads MPI, which a notebook's kernel must not)

    ((n, bucket_bytes, small_bytes),) = case.arguments
    return [Buckets(bytes=bucket_bytes, first_bytes=small_bytes).plan(n)]


BUCKET_PLAN = Exercise(
    reference=bucket_plan,
    cases=calls(
        bucket_plan,
        (1, 4, 4),
        (11, 16, 8),
        (17, 16, 8),
        (3, 16, 8),
        (12, 8, 8),
        (5, 16, 8),
        (0, 8, 8),
        (20, 8, 16),
        (50, 15, 7),
        (5, 3, 1),
        (100, 132, 40),
        (286794, 98304, 16384),
    ),
    expected=plan_of_buckets,
    mistakes={
        "the plan begins at the start of the gradient. The backward pass completes its end first": {
            "return plan": "return [(n - stop, n - start) for start, stop in plan]"
        },
        "the buckets are in the wrong order: the one at the end of the gradient comes first": {
            "return plan": "return plan[::-1]"
        },
        "all buckets have the same size. The first and the last one have `small_bytes`": {
            "small if stop == n or stop <= small else min(most, stop - small)": "most"
        },
        "the last bucket has not the small size: what is left over goes into the bucket before it": {
            " or stop <= small else min(most, stop - small)": " else most"
        },
        "the first bucket is not small, so the link gets its first work late": {"stop == n or ": ""},
        "the sizes are in bytes, and a value has 4 of them: these buckets are 4 times too large": {
            "bytes // 4": "bytes"
        },
        "a float32 value has 4 bytes: these buckets are cut for values of 8 bytes": {
            "bytes // 4": "bytes // 8"
        },
        "no bucket may have more than `bucket_bytes`, not even if `small_bytes` is larger": {
            "min(most, max(1, small_bytes // 4))": "max(1, small_bytes // 4)"
        },
    },
    hints=(
        "Go from n down to 0. Each iteration decides how many values the next bucket has.",
        "The first and the last bucket have `small` values. So while more than `small` values are left, "
        "take at most `left - small` of them, and at most a whole bucket.",
        "`values = small if stop == n or stop <= small else min(most, stop - small)`",
    ),
)


# Exercise 7.4
def average_overlapped(comm, backward, grads, plan):
    """Run the backward pass and leave the mean of all ranks' gradients in `grads`, averaged bucket by bucket.

    `backward(finished)` fills `grads` from its end to its start. It calls `finished(start)` each time that
    grads[start:] is complete. `plan` holds the buckets (start, stop), the one at the end of `grads` first.
    """
    waiting, requests = list(plan), []

    def finished(start):
        while waiting and waiting[0][0] >= start:
            first, stop = waiting.pop(0)
            bucket = grads[first:stop]  # a view: nothing is copied
            bucket /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))
        for request in requests:
            request.Test()

    backward(finished)
    for request in requests:
        request.Wait()


PASSES = (  # ranks, where the layers start, the buckets, dtype
    (1, (2, 0), ((2, 4), (0, 2)), "float32"),
    (2, (4, 0), ((6, 7), (3, 6), (0, 3)), "float32"),
    (3, (9, 9, 4, 0), ((10, 11), (7, 10), (3, 7), (0, 3)), "float64"),
    (4, (20, 5, 0), ((29, 31), (26, 29), (20, 26), (6, 20), (2, 6), (0, 2)), "float32"),
    (4, (6, 3, 0), ((0, 8),), "float32"),
)


def own_gradient(n: int, rank: int, dtype: str) -> np.ndarray:
    return (np.arange(1, n + 1) * 10.0**rank).astype(dtype)


def pass_cases() -> Iterator[Case]:
    for p, starts, plan, dtype in PASSES:
        n, arguments = plan[0][1], []
        for rank in range(p):
            grads = np.full(n, -1e6, dtype)  # what no layer has filled yet
            arguments.append((wraps.Backward(grads, own_gradient(n, rank, dtype), starts), grads, list(plan)))
        label = f"{p} ranks, {n} values, {len(plan)} buckets, {len(starts)} layers, {dtype}"
        yield Case(label, tuple(arguments))


STANDS_STILL = "so the backward pass stands still: wait at the end. A loop of Test() is a wait, too"
TOGETHER = "which does not know emulated links: use each request's own Test() and Wait()"
OTHER_ORDER = "it starts its buckets in another order than rank 0, and MPI matches averages by order alone"


def started_buckets(notes: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the buckets of which the average was started, in that order."""
    return [(first, first + size) for _, first, size in notes["started"]]


def look_at_overlap(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    total = sum(backward.values for backward, _, _ in case.arguments)
    orders = [started_buckets(outcome.result[1]) for outcome in outcomes]
    for rank, (outcome, (backward, _, plan)) in enumerate(zip(outcomes, case.arguments, strict=True)):
        in_pass = faults_of_pass(outcome.result[1], plan, backward.starts, case.ranks)
        if orders[rank] != orders[0]:
            in_pass = chain(in_pass, [OTHER_ORDER])
        for fault in chain(in_pass, faults_of_mean(outcome.arguments[1], total, case.ranks, "`grads`")):
            yield f"rank {rank}: {fault}"


def faults_of_pass(
    notes: dict[str, Any], plan: Sequence[tuple[int, int]], starts: Sequence[int], p: int
) -> Iterator[str]:
    if notes["at"] is None:
        yield "`backward` was never called"
    if notes["waits"]:
        yield f"it waits for a request inside `finished`, {STANDS_STILL}"
    for name in notes["together"]:
        yield f"it calls MPI.Request.{name}, {TOGETHER}"
    yield from faults_of_starts(notes["started"], plan, starts)
    if notes["pending"]:
        yield "the function returned while an average was under way: wait for all requests"
    buckets = started_buckets(notes)
    for number in notes["untested"][: p - 1]:
        yield (
            f"`finished` does not call Test() of the request of bucket {buckets[number]}, which is under "
            "way, so the MPI library may make no progress: call every request's own Test()"
        )


def faults_of_starts(
    started: Sequence[tuple[int, int, int]], plan: Sequence[tuple[int, int]], starts: Sequence[int]
) -> Iterator[str]:
    to_come = [tuple(bucket) for bucket in plan]
    for number, (at, first, size) in enumerate(started):
        bucket = first, first + size
        if bucket in to_come:
            to_come.remove(bucket)
        else:
            expected = f"expected bucket {to_come[0]}" if to_come else "expected no more buckets"
            is_inside = 0 <= first < plan[0][1]
            averaged = f"grads[{first}:{first + size}]" if is_inside else "an array that is not `grads`"
            yield f"average number {number + 1} is of {averaged}; {expected}"
        complete = max(start for start in starts if start <= first)
        if at is None or at > first:
            yield f"bucket {bucket} was started before it was complete: compare `start` with its start"
        if at < complete:
            when = "after the backward pass" if at == -1 else f"only at finished({at})"
            yield f"bucket {bucket} was started {when}; it is complete at finished({complete})"
    if to_come and started and started[-1][0] == 0:
        yield "one call of `finished` can complete several buckets: start all of them, with `while`"
    if to_come:
        yield f"{len(to_come)} of {len(plan)} buckets were never averaged"


def faults_of_mean(got: Any, total: np.ndarray, p: int, name: str) -> Iterator[str]:
    """Yield how a result differs from the mean of p ranks, whose sum is `total`."""
    wrong = difference(got, total / p, 1e-5, name)
    if wrong and not difference(got, total, 1e-5):
        yield f"{name} holds the sum over the ranks: divide what is sent, or has arrived, by their number"
    if wrong and not difference(got, total / p**2, 1e-5):
        yield f"{name} is divided by the number of ranks twice"
    if wrong:
        yield wrong


AVERAGE_OVERLAPPED = Exercise(
    reference=average_overlapped,
    cases=pass_cases,
    digest=wraps.with_notes,
    mistakes={
        "… started after the backward pass": {
            "    backward(finished)": "    backward(lambda start: None)\n    finished(0)"
        },
        "… before it was complete": {"waiting[0][0] >= start": "waiting[0][1] >= start"},
        "… compare `start`": {" and waiting[0][0] >= start": ""},
        "… can complete several buckets": {"while waiting and": "if waiting and"},
        "… never averaged": {"list(plan)": "list(plan[:-1])"},
        "… stands still": {"request.Test()": "request.Wait()"},
        "… under way": {"    for request in requests:\n        request.Wait()\n": ""},
        "… calls MPI.Request.Waitall": {
            "    for request in requests:\n        request.Wait()\n": "    MPI.Request.Waitall(requests)\n"
        },
        "… A loop of Test() is a wait, too": {
            "            request.Test()": "            while not request.Test():\n                pass"
        },
        "… does not call Test()": {"            request.Test()": "            pass"},
        "… which is under way": {  # but the newest one
            "for request in requests:\n            request.": "for each in requests[-1:]:\n            each."
        },
        "… holds the sum": {"            bucket /= comm.size\n": ""},
        "… twice": {"        request.Wait()\n": "        request.Wait()\n    grads /= comm.size\n"},
        "… an array that is not `grads`": {"grads[first:stop]": "grads[first:stop].copy()"},
        "… uses memory that Iallreduce": {
            "    backward(finished)": (
                "    backward(finished)\n    requests.append(comm.Iallreduce(MPI.IN_PLACE, grads))"
            )
        },
        "… `backward` was never called": {"    backward(finished)": "    finished(0)"},
    },
    look=look_at_overlap,
    may_change=(0, 1),
    wrap=wraps.noting,
    forbidden=("Allreduce", "allreduce", "Reduce", "Allgather", "Iallgather"),
    hints=(
        "Define a function `finished(start)` inside yours. It starts to average every bucket that is "
        "complete by now. Keep a list of the buckets that are not started yet, and a list of requests.",
        "A bucket (first, stop) is complete if first >= start. One call of `finished` can complete "
        "several buckets, or none: use `while`, not `if`.",
        "`bucket = grads[first:stop]; bucket /= comm.size; "
        "requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))`. At the end of `finished`, call Test() "
        "of each request. After `backward(finished)`, call Wait() of each.",
    ),
)


# Exercise 7.5
def sharded_step(comm, params, grads, velocity, lr, momentum):  # noqa: PLR0917
    """Update `params` in place with the mean gradient of all ranks; each rank updates its own chunk.

    Shapes: params, grads (n,); velocity: this rank's chunk. The n values are cut into one chunk for each
    rank, as np.array_split cuts them. The rule is velocity = momentum * velocity + mean gradient, then
    params -= lr * velocity. Change `velocity` in place, too.
    """
    counts = [len(chunk) for chunk in np.array_split(params, comm.size)]
    start = sum(counts[: comm.rank])
    mean = np.empty_like(velocity)
    comm.Reduce_scatter(grads, mean, counts)
    mean /= comm.size
    velocity *= momentum
    velocity += mean
    params[start : start + len(velocity)] -= lr * velocity
    comm.Allgatherv(MPI.IN_PLACE, [params, counts])


def step_on_one_rank(case: Case) -> Sequence[Any]:
    """Return on each rank all parameters, and its chunk of the velocity, after the step."""
    params, grads, chunks, lr, momentum = zip(*case.arguments, strict=True)
    velocity = momentum[0] * np.concatenate(chunks) + np.mean(grads, axis=0)
    # Each rank contributes its chunk of its own parameters.
    before = np.concatenate(
        [np.array_split(rank_params, case.ranks)[rank] for rank, rank_params in enumerate(params)]
    )
    dtype = params[0].dtype
    after = (before - lr[0] * velocity).astype(dtype)
    return [(after, chunk) for chunk in np.array_split(velocity.astype(dtype), case.ranks)]


STEPS = (  # ranks, values, dtype
    (1, 3, "float32"),
    (2, 4, "float32"),
    (2, 5, "float64"),
    (3, 8, "float32"),
    (4, 3, "float32"),
    (4, 26, "float32"),
)


def step_cases() -> Iterator[Case]:
    def arguments(rank: int, p: int, n: int) -> tuple[Any, ...]:
        velocity = np.array_split(normal(n + 1, n)[0], p)[rank]
        return (*normal(n, n), *normal([n, rank], n), velocity, 0.5, 0.75)

    yield from on_ranks(STEPS, arguments)()
    for case in on_ranks(((3, 7, "float64"),), arguments)():
        for rank, (params, *_) in enumerate(case.arguments):
            chunks = np.array_split(params, case.ranks)  # views
            for other in {*range(case.ranks)} - {rank}:  # no rank needs these before it gathers them
                chunks[other] += 1.0
        yield case._replace(label=f"{case.label}, only a rank's own chunk of `params` up to date")


def look_at_bytes(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    largest = max(map(moved, outcomes))
    if largest > 2 * case.arguments[0][0].nbytes + SMALL_OBJECTS:
        yield (
            f"a rank has sent or received {largest:,} bytes, more than 2n values: reduce-scatter the "
            "gradients, and gather only the chunks of `params`"
        )


SHARDED_STEP = Exercise(
    reference=sharded_step,
    cases=step_cases,
    look=look_at_bytes,
    expected=step_on_one_rank,
    mistakes={
        "the ranks' gradients are added up: divide the sum by the number of ranks": {
            "    mean /= comm.size\n": ""
        },
        "the chunks do not all begin at rank * (n // p): the first n % p of them are longer": {
            "sum(counts[: comm.rank])": "comm.rank * (len(params) // comm.size)"
        },
        "`params` holds only this rank's updated chunk: after the update, gather all chunks into `params`": {
            "    comm.Allgatherv(MPI.IN_PLACE, [params, counts])\n": ""
        },
        "a rank's other chunks of `params` are made from its own old values: update this rank's chunk "
        "alone, and gather the updated chunks of `params`": {
            "params[start : start + len(velocity)] -= lr * velocity": "whole = np.empty_like(params)",
            "comm.Allgatherv(MPI.IN_PLACE, [params, counts])": (
                "comm.Allgatherv(velocity, [whole, counts])\n    params -= lr * whole"
            ),
        },
        "the momentum is missing: velocity = momentum * velocity + mean": {" *= momentum": "[:] = 0"},
        "the gradient is scaled by 1 - momentum, which this rule does not do": {
            "velocity += mean": "velocity += (1 - momentum) * mean"
        },
        "the old velocity is not multiplied by momentum": {"    velocity *= momentum\n": ""},
        "the parameters are right, but `velocity` is unchanged, so the next step begins from the old one. "
        "Change it in place (velocity *= …)": {
            "velocity *= momentum": "velocity = momentum * velocity",
            "velocity += mean": "velocity = velocity + mean",
        },
        "… reduce-scatter the gradients": {
            "    comm.Reduce_scatter(grads, mean, counts)\n    mean /= comm.size\n": (
                "    of_ranks = np.empty((comm.size, len(grads)), grads.dtype)\n"
                "    comm.Allgather(grads, of_ranks)\n"
                "    mean[...] = of_ranks.mean(axis=0)[start : start + len(mean)]\n"
            )
        },
    },
    result_in=(0, 2),
    may_change=(1,),
    forbidden=("Allreduce", "allreduce", "Iallreduce"),
    hints=(
        "Four steps: reduce-scatter the gradients, update the velocity of your chunk, update your chunk "
        "of the parameters, all-gather the chunks.",
        "Reduce_scatter_block needs equal chunks; Reduce_scatter(sendbuf, recvbuf, counts) takes each "
        "rank's number of values: `counts = [len(c) for c in np.array_split(params, comm.size)]`.",
        "`comm.Allgatherv(MPI.IN_PLACE, [params, counts])` gathers the chunks in place.",
    ),
)


# Exercise 7.6
SIZES = {"dense": 4, "conv4": 8, "conv3": 8, "conv2": 3, "conv1": 1}  # of the tensors, in bytes


def fusion_cycle(ready, nbytes, threshold):
    """Return the buffers of one cycle, each a list of names: tensors ready on all ranks, in rank 0's order.

    ready: the names of the tensors that are ready, for each rank; nbytes: the tensors' sizes by name. A
    buffer has at most `threshold` bytes, or one larger tensor.
    """
    buffers: list[list[str]] = []
    filled = 0
    for name in [name for name in ready[0] if all(name in of_rank for of_rank in ready)]:
        if not buffers or filled + nbytes[name] > threshold:
            buffers.append([name])
            filled = 0
        else:
            buffers[-1].append(name)
        filled += nbytes[name]
    return buffers


LARGE_FIRST = {"conv1": 9, "conv3": 2, "dense": 3}
FUSION_CYCLE = Exercise(
    reference=fusion_cycle,
    cases=named(
        {
            "2 ranks, one buffer": ([["dense", "conv1"]] * 2, SIZES, 8),
            "2 ranks, a buffer that is just full": ([["dense", "conv2", "conv1"]] * 2, SIZES, 8),
            "2 ranks, a tensor that is larger than a buffer": ([[*SIZES]] * 2, SIZES, 6),
            "2 ranks, one in another order": (
                [["conv2", "dense", "conv1"], ["conv1", "dense", "conv2"]],
                SIZES,
                5,
            ),
            "2 ranks, the first tensor is larger than a buffer": ([["conv1", "conv3"]] * 2, LARGE_FIRST, 6),
            "2 ranks, a small tensor after a large one": ([["conv3", "conv1", "dense"]] * 2, LARGE_FIRST, 6),
            "2 ranks, two buffers that one byte more would join": (
                [["conv1", "conv2", "conv3"]] * 2,
                {"conv1": 4, "conv2": 3, "conv3": 4},
                6,
            ),
            "2 ranks, two that follow each other are not ready": (
                [["conv1", "conv2", "conv3", "dense"], ["dense", "conv1"]],
                SIZES,
                8,
            ),
            "1 rank": ([["dense", "conv2", "conv1"]], SIZES, 7),
            "2 ranks, none ready on both": ([["conv1"], ["conv3"]], LARGE_FIRST, 6),
            "3 ranks, the middle one without dense": (
                [[*SIZES], [name for name in SIZES if name != "dense"], [*SIZES]],
                SIZES,
                12,
            ),
            "3 ranks, one without conv3": (
                [[*SIZES]] * 2 + [["dense", "conv4", "conv2", "conv1"]],
                SIZES,
                12,
            ),
        }
    ),
    mistakes={
        "a tensor takes part that one rank does not have ready: in its all-reduce, the others would wait": {
            "if all(name in of_rank for of_rank in ready)": ""
        },
        "the order is that of another rank; all ranks use rank 0's": {"in ready[0] if": "in ready[-1] if"},
        "a buffer may have exactly `threshold` bytes": {"> threshold": ">= threshold"},
        "the buffer ends only when it has too many bytes; look at its bytes with the next tensor": {
            "filled + nbytes[name] > threshold": "filled > threshold"
        },
        "each tensor has a buffer of its own; fill a buffer up to `threshold`": {
            "not buffers or filled + nbytes[name] > threshold": "True"
        },
        "all tensors are in one buffer, whatever its size": {" or filled + nbytes[name] > threshold": ""},
        "a buffer that is no longer the last one gets a tensor; do not return to an earlier buffer": {
            "if not buffers or filled + nbytes[name] > threshold": (
                "fits = [b for b in buffers if sum(nbytes[each] for each in [*b, name]) <= threshold]\n"
                "        if not fits"
            ),
            "buffers[-1]": "fits[0]",
        },
        "a new buffer begins with the bytes of the one before; count from 0": {
            "            filled = 0\n": ""
        },
    },
    hints=(
        "First list the names in ready[0] that are in the list of every rank.",
        "Count the bytes of the last buffer. If they exceed `threshold` with the next tensor, begin another.",
    ),
)


QUESTIONS = {
    "07-lenet": "Yes. Only two small dense layers follow the third convolution, so most of the gradient is "
    "complete at the beginning of the backward pass. The two early convolutions, which take most of the "
    "time, are still to come.",
    "07-last-bucket": "For networks with a large parameter in the first layers: the last bucket is then "
    "large, and its whole transfer is exposed. So if overlap hides less than you expect in DDP, look at "
    "the first layers. (Section 6 has an example.)",
    "07-hidden": "Hidden are the buckets whose transfers end before the backward pass does, and in part "
    "those whose transfers begin before it ends and end after it. The last bucket is complete only when the "
    "backward pass ends, so its transfer is exposed on any network. On a fast network, only that one is.",
    "07-order": "No: the step ends when the last transfer has ended, in any order of waiting. On a real "
    "network you may see no overlap at all without `Test`: the library sends the first part of a large "
    "message and goes on only in the next MPI call. (On the emulated link a transfer's end depends only on "
    "when its bucket was *started*.)",
    "07-optimiser": "Yes: update a bucket's parameters as soon as its average has arrived. One obstacle "
    "remains: the next forward pass begins with the first layers, whose averages arrive last. So "
    "ByteScheduler (Peng et al., 2019) sends the first layers with priority.",
    "07-latency": "Down, because small buckets get cheaper. The best size depends on α/β, the number of "
    "bytes that the link could carry during one latency. So no default fits every network, not even DDP's "
    "`bucket_cap_mb=25`.",
    "07-which": "Overlap: 30 + 60 + 0 = 90 ms at best. The faster network: 30 + 60 + 10 = 100 ms.",
    "07-norm": "Each rank computes the sum of squares of its chunk, and the ranks all-reduce this one "
    "number.",
    "07-never": "It is never ready on all ranks, so the coordinator leaves it out of each cycle. The ranks "
    "that submitted it wait for its mean, and Horovod warns of a stalled tensor. (So Horovod's optimiser for "
    "PyTorch submits zeros for a parameter that a rank's forward pass has skipped.) In DDP, the bucket of a "
    "skipped parameter is never complete. `find_unused_parameters=True` marks such parameters as ready at "
    "once, and the ranks all-reduce a bitmap to learn which of them no rank has used.",
}
