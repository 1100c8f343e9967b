"""The exercises of notebook 11: four probes of a training job."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np

from labkit.checks.compare import kind
from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises import wraps
from labkit.exercises.nb06 import turns_of
from labkit.exercises.wraps import JobOnTrial
from labkit.text import counted

RANKS = (1, 2, 3, 4)
LATENCY_S, SLOWER = 0.004, 5
SLOW_RANK = {2: 0, 3: 1, 4: 2}
TRIPS, LEAST_IN_MEDIAN = 5, 3


def _jobs() -> Iterator[Case]:
    for p in RANKS:
        yield Case(counted(p, "rank"), tuple((JobOnTrial(rank, p),) for rank in range(p)))


def _on_copies(case: Case) -> list[JobOnTrial]:
    return [JobOnTrial(rank, case.ranks) for rank in range(case.ranks)]


# Exercise 11.1
def step_parts(comm, job):
    """Return the median time in ms of each part of a step, on each rank. Shape: (p, 4).

    Columns: load, compute, average, update; of the first five steps, from `job.restart()` on. Each loads 16
    samples. `job.clock()` returns the time in seconds.
    """
    job.restart()
    times = []
    for _ in range(5):
        moments = [job.clock()]
        x, y = job.load(16)
        moments.append(job.clock())
        job.compute(x, y)
        moments.append(job.clock())
        job.average()
        moments.append(job.clock())
        job.update()
        moments.append(job.clock())
        times.append(np.diff(moments))
    return 1e3 * np.array(comm.allgather(np.median(times, axis=0)))


def _parts(case: Case) -> Sequence[Any]:
    rows = []
    for job in _on_copies(case):
        job.restart()
        times = np.array([job.times_s(number, 16) for number in range(5)])
        rows.append(1e3 * np.median(times, axis=0))
    return [np.array(rows)] * case.ranks


STEP_PARTS = Exercise(
    reference=step_parts,
    cases=_jobs,
    expected=_parts,
    may_change=(0,),
    tolerance=1e-6,
    mistakes={
        "the times are in seconds; multiply them by 1,000": {"1e3 * ": ""},
        "this is the mean over the steps, which a single long step changes: take the median": {
            "np.median": "np.mean"
        },
        "this is the shortest time of each part; take the median": {"np.median": "np.min"},
        "each rank loads its own local batch, and the ranks' batches differ: load 16 samples on all": {
            "load(16)": "load()"
        },
        "the row of this rank stands in all rows: gather those of all ranks": {
            "comm.allgather(np.median(times, axis=0))": "[np.median(times, axis=0)] * comm.size"
        },
        "these are the moments since the start of the step, not the times between them": {
            "np.diff(moments)": "np.array(moments[1:]) - moments[0]"
        },
        "the steps do not begin with the first one: call job.restart()": {"    job.restart()\n": ""},
    },
    hints=(
        "Note `job.clock()` before the step and after each of its parts; np.diff gives the times between.",
        "Keep a row of four times for each of the five steps, and take np.median(…, axis=0).",
        "`comm.allgather(row)` returns the rows of all ranks, in a list.",
    ),
)


# Exercise 11.2
def checksums(comm, job):
    """Return a checksum of each rank's parameters, at the start and after two steps. Shape: (p, 2).

    The start is `job.restart()`. The checksum of an array is the integer `crc32(array.tobytes())`.
    """
    job.restart()
    sums = [crc32(job.params.tobytes())]
    for _ in range(2):
        job.step()
    sums.append(crc32(job.params.tobytes()))
    return np.array(comm.allgather(sums))


def _sums(case: Case) -> Sequence[Any]:
    rows = []
    for job in _on_copies(case):
        job.restart()
        start = crc32(job.params.tobytes())
        job.step()
        job.step()
        rows.append([start, crc32(job.params.tobytes())])
    return [np.array(rows)] * case.ranks


CHECKSUMS = Exercise(
    reference=checksums,
    prelude="import numpy as np\nfrom zlib import crc32\nfrom mpi4py import MPI",
    cases=_jobs,
    expected=_sums,
    may_change=(0,),
    mistakes={
        "the second checksum is that of one step; make two": {"range(2)": "range(1)"},
        "both checksums are those of the start: make two steps between them": {
            "    for _ in range(2):\n        job.step()\n": ""
        },
        "the job goes on where it was: begin with job.restart()": {"    job.restart()\n": ""},
        "these are checksums of the gradient, not of the parameters": {"params": "grads"},
        "the row of this rank stands in all rows: gather those of all ranks": {
            "comm.allgather(sums)": "[sums] * comm.size"
        },
    },
    hints=(
        "Compute one checksum after job.restart(), call job.step() twice, and compute another.",
        "`comm.allgather([first, second])` returns a list with the pair of each rank: np.array of it.",
    ),
)


# Exercise 11.3
def mean_error(comm, job):
    """Return how far the gradient of the first step is from the weighted mean, on each rank. Shape: (p,).

    That is ‖used - mean‖ / ‖mean‖. `mean` weights each rank's own gradient by its `job.batch`.
    """
    job.restart()
    job.compute(*job.load())
    mean = job.grads * job.batch / comm.allreduce(job.batch)
    comm.Allreduce(MPI.IN_PLACE, mean)
    job.step()
    error = np.linalg.norm(job.used - mean) / np.linalg.norm(mean)
    return np.array(comm.allgather(error))


def _errors(case: Case) -> Sequence[Any]:
    jobs = _on_copies(case)
    for job in jobs:
        job.restart()
        job.compute(*job.load())
    mean = sum(job.grads * job.batch for job in jobs) / sum(job.batch for job in jobs)
    for job in jobs:
        job.step()
    return [np.array([np.linalg.norm(job.used - mean) / np.linalg.norm(mean) for job in jobs])] * case.ranks


MEAN_ERROR = Exercise(
    reference=mean_error,
    cases=_jobs,
    expected=_errors,
    may_change=(0,),
    mistakes={
        "the mean is unweighted: weight each gradient by the local batch of its rank": {
            "* job.batch / comm.allreduce(job.batch)": "/ comm.size"
        },
        "the used gradient is compared with this rank's own, not with the mean of all ranks'": {
            "    comm.Allreduce(MPI.IN_PLACE, mean)\n": "",
            "job.grads * job.batch / comm.allreduce(job.batch)": "job.grads.copy()",
        },
        "this is the distance itself; divide it by the norm of the mean": {" / np.linalg.norm(mean)": ""},
        "the gradient is compared that was used before this step: call job.step() first": {
            "    job.step()\n": ""
        },
        "this is not the first step: begin with job.restart()": {"    job.restart()\n": ""},
        "the distance is divided by the norm of the used gradient, not of the mean": {
            "/ np.linalg.norm(mean)": "/ np.linalg.norm(job.used)"
        },
        "`job.grads` after the step is compared; the update's gradient is `job.used`": {
            "job.used": "job.grads"
        },
        "the error of this rank stands for all ranks: gather those of all": {
            "comm.allgather(error)": "[error] * comm.size"
        },
    },
    hints=(
        "Before the step, `job.compute(*job.load())` leaves this rank's own gradient in `job.grads`. Its "
        "weight is `job.batch` over the sum of all ranks' batches.",
        "Make a new array of gradient times weight and add it up over the ranks: "
        "`comm.Allreduce(MPI.IN_PLACE, mean)`.",
        "Then call job.step(), and compare `job.used` with the mean: np.linalg.norm is ‖…‖.",
    ),
)


# Exercise 11.4
def ping_pong(comm):
    """Return the median time in ms of a message there and back, for each two ranks. Shape: (p, p).

    Each pair sends an array of one float64 there and back five times, while other ranks are silent. The
    matrix is symmetric, 0 on its diagonal, and the same on all ranks.
    """
    times, ball = np.zeros((comm.size, comm.size)), np.zeros(1)
    for low in range(comm.size):
        for high in range(low + 1, comm.size):
            comm.Barrier()
            trips = []
            for _ in range(5):
                start = perf_counter()
                if comm.rank == low:
                    comm.Send(ball, high)
                    comm.Recv(ball, high)
                elif comm.rank == high:
                    comm.Recv(ball, low)
                    comm.Send(ball, low)
                trips.append(perf_counter() - start)
            if comm.rank == low:
                times[low, high] = times[high, low] = 1e3 * np.median(trips)
    return comm.allreduce(times)


def _look_at_pings(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    p = case.ranks
    called = {call.name for outcome in outcomes for call in outcome.calls}
    for name in sorted(called & {"send", "recv", "isend", "irecv", "ssend", "sendrecv"}):
        yield f"`comm.{name}` pickles objects, which emulated links do not delay: use `Send` and `Recv`"
    for outcome in outcomes:
        times = outcome.result
        if not isinstance(times, np.ndarray) or times.shape != (p, p) or times.dtype.kind not in "fi":
            yield f"the result is {kind(times)}, expected an array of numbers of shape {(p, p)}"
            return
    times = np.array(outcomes[0].result, float)
    if not all(np.array_equal(times, outcome.result) for outcome in outcomes):
        yield "each rank has only the times that it measured itself: sum the matrices over the ranks"
    if np.any(times != times.T) or np.any(times.diagonal()):
        yield "the times at [a, b] and [b, a] differ, or [a, a] is not 0: enter one time in both places"
    turns = list(map(turns_of, outcomes))
    for turn in zip(*turns, strict=False):
        pairs = sorted({(min(a, b), max(a, b)) for a, of_rank in enumerate(turn) for b in of_rank.to})
        if len(pairs) > 1:
            yield (
                f"the pairs {pairs[0]} and {pairs[1]} are not separated: call `comm.Barrier` before each pair"
            )
    for a, b in all_pairs(p):
        for source, dest in ((a, b), (b, a)):
            count, nbytes = outcomes[source].messages[dest], outcomes[source].sent[dest]
            if count != TRIPS or nbytes != 8 * TRIPS:
                yield (
                    f"rank {source} sends {count} messages with {nbytes} bytes in all to rank {dest}: each "
                    "pair sends one float64 there and back, five times"
                )
        usual = 2e3 * LATENCY_S * (SLOWER if SLOW_RANK.get(p) in (a, b) else 1)
        took = max(
            1e3 * turn.seconds for r, other in ((a, b), (b, a)) for turn in turns[r] if other in turn.to
        )
        if times[a, b] < 0.9 * usual:
            text = (
                f"result[{a}, {b}] is {times[a, b]:.3g} ms, but the link needs {usual:.3g} ms there and back"
            )
            yield f"{text}: are they milliseconds, and of one trip there and back?"
        if LEAST_IN_MEDIAN * times[a, b] > 1.05 * took + 1:  # three of five trips take the median or longer
            yield (
                f"result[{a}, {b}] is {times[a, b]:.3g} ms, but five trips took {took:.3g} ms: take the "
                "median of a trip, start the clock after the barrier, and enter the time once"
            )


def all_pairs(p: int) -> list[tuple[int, int]]:
    """Return the pairs of ranks a < b."""
    return [(a, b) for a in range(p) for b in range(a + 1, p)]


PING_PONG = Exercise(
    reference=ping_pong,
    prelude="import numpy as np\nfrom time import perf_counter\nfrom mpi4py import MPI",
    cases=lambda: [
        Case(f"{p} ranks, a slow link at rank {slow}", ((),) * p) for p, slow in SLOW_RANK.items()
    ],
    look=_look_at_pings,
    wrap=partial(wraps.on_links, (1e9, LATENCY_S), SLOWER, SLOW_RANK),
    is_strict=False,
    deadline_s=15.0,
    mistakes={
        "… sum the matrices": {"comm.allreduce(times)": "times"},
        "… enter one time in both places": {"times[high, low] = ": ""},
        "… are they milliseconds": {"1e3 * ": ""},
        "… five times": {"range(5)": "range(1)"},
        "… are not separated": {"            comm.Barrier()\n": ""},
        "… enter the time once": {
            "if comm.rank == low:\n                times": "if True:\n                times"
        },
        "… pickles objects": {"comm.Send(": "comm.send(", "comm.Recv(ball, ": "comm.recv(source="},
        "… is waiting": {
            "                    comm.Send(ball, high)\n                    comm.Recv(ball, high)\n": (
                "                    comm.Recv(ball, high)\n                    comm.Send(ball, high)\n"
            )
        },
    },
    hints=(
        "Loop over the pairs low < high, in the same order on all ranks, and comm.Barrier() before each.",
        "Rank low calls Send, then Recv; rank high calls Recv, then Send. Rank low takes the time of a trip.",
        "Enter the median in both places of a matrix of zeros, on rank low alone; comm.allreduce(times) adds "
        "up the matrices.",
    ),
)


QUESTIONS = {
    "11-steps": "All ranks' steps take equally long, because each waits in `average` for the slowest. Only "
    "parts without communication name it: it is the rank that computes longest, and it waits least.",
    "11-hidden": "An unweighted mean: all ranks use the same gradient, so their parameters stay equal, and a "
    "checksum shows nothing. The same shard on all is another one: the ranks agree on a mean of too few "
    "samples. Equal parameters prove that the ranks agree, not that they are right.",
}
