"""The exercises of notebook 06 about finding the slow link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from labkit.exercises import wraps
from labkit.exercises.exercise import Case, Exercise

# mypy: disable-error-code="no-untyped-def"

Results = Callable[[Case], Sequence[Any]]


def _instead(mistake: Callable[..., Any]) -> Results:
    """Return what a mistake makes of the arguments of a case without a communicator."""
    return lambda case: [mistake(*case.arguments[0])]


def slow_links(seconds):
    """Return the ranks with a slow link, ascending: all their pairs take over twice the fastest pair's time.

    Shape: seconds (p, p), symmetric, p ≥ 2; the diagonal holds 0 and is no pair.
    """
    p = len(seconds)
    pairs = ~np.eye(p, dtype=bool)
    limit = 2 * seconds[pairs].min()
    return [rank for rank in range(p) if np.all(seconds[rank, pairs[rank]] > limit)]


def _matrix(p: int, slow: Sequence[int]) -> np.ndarray:
    ends = np.array([0.05 if rank in slow else 0.01 for rank in range(p)])
    noise = 1 + 0.05 * np.random.default_rng(p).random((p, p))
    times = np.maximum.outer(ends, ends) * (noise + noise.T) / 2
    np.fill_diagonal(times, 0)
    return times


def _slow_cases() -> Sequence[Case]:
    sets = (3, (1,)), (3, ()), (2, (1,)), (4, (0,)), (5, (1, 4)), (8, (7,))
    return [
        Case(f"{p} ranks, slow links: {', '.join(map(str, slow)) or 'none'}", ((_matrix(p, slow),),))
        for p, slow in sets
    ]


def _slow(case: Case) -> Sequence[Any]:
    (seconds,) = case.arguments[0]
    best = [sorted(row)[1] for row in seconds.tolist()]  # of each rank: its fastest pair, after the 0
    return [[rank for rank, time in enumerate(best) if time > 2 * min(best)]]


def _ranks_of_largest(seconds: np.ndarray) -> list[int]:
    return sorted(int(index) for index in np.unravel_index(seconds.argmax(), seconds.shape))


def _any_slow(seconds: np.ndarray) -> list[int]:
    limit = 2 * seconds[seconds > 0].min()
    return [rank for rank, row in enumerate(seconds) if np.any(row > limit)]


def _above_mean(seconds: np.ndarray) -> list[int]:
    return [rank for rank, row in enumerate(seconds) if row.sum() > seconds.sum() / len(seconds)]


SLOW_LINKS = Exercise(
    reference=slow_links,
    title="Which link is slow?",
    difficulty=2,
    minutes=10,
    cases=_slow_cases,
    expected=_slow,
    suspects={
        "both ranks of the slowest pair are named, but only one of them has the slow link: look at all pairs "
        "of a rank": _instead(_ranks_of_largest),
        "a rank with one slow pair is named, but the other rank of that pair may be the reason: all pairs "
        "of a rank with a slow link are slow": _instead(_any_slow),
        "the zeros on the diagonal count as the fastest pair, so every pair is slow": _instead(
            lambda seconds: list(range(len(seconds)))
        ),
        "the diagonal counts as a pair of each rank, so no rank has only slow pairs": _instead(
            lambda seconds: []
        ),
        "some rank is always named, also where all links are equal or nobody can tell": _instead(
            lambda seconds: [int(seconds.sum(axis=0).argmax())]
        ),
        "the ranks above the mean are named: that is always somebody, and noise is enough": _instead(
            _above_mean
        ),
    },
    hints=(
        "Rank 1 has a slow link. Which entries of the matrix are large?",
        "A rank whose fastest pair is slow has a slow link.",
        "Leave out the diagonal: pairs = ~np.eye(p, dtype=bool), then seconds[pairs].min().",
    ),
)


def time_pairs(comm, nbytes):
    """Return the time of a message of nbytes there and back, for each pair of ranks, on every rank.

    Shape: (p, p), in s, symmetric, with 0 on the diagonal.
    """
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()  # the others are silent
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
                comm.Recv(buffer, b)
                seconds[a, b] = seconds[b, a] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(buffer, a)
                comm.Send(buffer, a)
    return comm.allreduce(seconds)


NBYTES, BYTES_PER_S, LATENCY_S, SLOWER = 50_000, 1e6, 2.5e-3, 4  # of the emulated links
# A loaded machine only makes times longer. So a time is right from the emulated time on, up to 0.9 times the
# slowest pair's above it (0.4 s): the expected times are the middles of these ranges.
LATE, TOLERANCE = 0.44, 0.32  # 0.44 ≤ 0.32 (1 + 0.44); LATE: of the slowest pair's time
SLOW_RANK = {2: 1, 3: 1, 4: 3}  # of the cases, by the number of ranks


def _pair_times(p: int) -> np.ndarray:
    """Return the times that the emulated links give."""
    one_way = LATENCY_S + NBYTES / BYTES_PER_S
    ends = np.array([SLOWER if rank == SLOW_RANK[p] else 1 for rank in range(p)])
    times = 2 * one_way * np.maximum.outer(ends, ends)
    np.fill_diagonal(times, 0)
    return times


def _expected_times(p: int) -> np.ndarray:
    times = _pair_times(p)
    return np.where(times > 0, times + LATE * times.max(), 0.0)


def _timed(change: Callable[[np.ndarray, int], np.ndarray] = lambda times, rank: times) -> Results:
    return lambda case: [change(_expected_times(case.ranks), rank) for rank in range(case.ranks)]


def _own_only(times: np.ndarray, rank: int) -> np.ndarray:
    kept = np.zeros_like(times)
    kept[rank, rank:] = kept[rank:, rank] = times[rank, rank:]
    return kept


TIME_PAIRS = Exercise(
    reference=time_pairs,
    title="Time every pair of ranks",
    difficulty=4,
    minutes=20,
    cases=lambda: [
        Case(f"{p} ranks, a slow link at rank {slow}", ((NBYTES,),) * p) for p, slow in SLOW_RANK.items()
    ],
    expected=_timed(),
    suspects={
        "each rank has only the times that it measured itself; sum the matrices over the ranks": _timed(
            _own_only
        ),
        "these are the times of one way; send the message back as well": _timed(
            lambda times, rank: times / 2
        ),
        "each time is there twice: both ranks of a pair enter it, and the sum over the ranks adds "
        "them": _timed(lambda times, rank: 2 * times),
        "only pairs (a, b) with a < b have a time: enter it at [a, b] and at [b, a]": _timed(
            lambda times, rank: np.triu(times)
        ),
        "this is the mean over the ranks, but one rank measures each pair: sum": lambda case: (
            [_expected_times(case.ranks) / case.ranks] * case.ranks
        ),
    },
    hints=(
        "Two loops over the pairs a < b, the same on all ranks. Who sends, who receives, who is silent?",
        "Rank a takes the time: Send, then Recv. Rank b does it the other way round: Recv, then Send. A "
        "Barrier in front keeps the other pairs out.",
        "At the end, comm.allreduce(seconds) sums the matrices of the ranks.",
    ),
    on_ranks=True,
    wrap=wraps.on_links(BYTES_PER_S, LATENCY_S, SLOWER, SLOW_RANK),
    tolerance=TOLERANCE,
    prelude="import numpy as np\nfrom time import perf_counter\nfrom mpi4py import MPI",
    deadline_s=15.0,
)


EXERCISES = [SLOW_LINKS, TIME_PAIRS]
