"""The exercises of notebook 05 about the ring by hand, and its traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.calls import COLLECTIVES
from labkit.exercises.exercise import Case, Exercise, Outcome
from mpiwatch.wording import counted

PRELUDE = '''\
import numpy as np


def chunk(n, p, i):
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)
'''


def chunk(n: int, p: int, i: int) -> slice:
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)


def ring_reduce_scatter(comm, array):  # type: ignore[no-untyped-def]
    """Return chunk `comm.rank` of the sum of all ranks' arrays; each chunk goes around the ring once.

    Shapes: array (n,), any n, the same on every rank, which may be overwritten; result (chunk's size,).
    """
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]


def ring_allgather(comm, own, array):  # type: ignore[no-untyped-def]
    """Leave every rank's chunk in its place in `array`; each chunk goes around the ring once.

    Shapes: own, this rank's chunk, (chunk's size,); array (n,), overwritten, the same n on every rank.
    """
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)


def ring_traffic(n, p):  # type: ignore[no-untyped-def]
    """Return how many values each rank sends and receives, added up, in a ring all-reduce of n values.

    Shape: result (p,), integers; they are exact, also where p does not divide n.
    """
    sizes = np.diff(np.arange(p + 1) * n // p)
    sent = 2 * n - sizes - np.roll(sizes, -1)
    return sent + np.roll(sent, 1)


SIZES: Sequence[tuple[int, int, type]] = (
    (1, 3, np.float64),
    (2, 4, np.float64),
    (2, 1, np.float32),
    (3, 7, np.float32),
    (4, 3, np.float64),
    (4, 8, np.float32),
    (4, 1001, np.float64),
)


def _label(p: int, n: int, dtype: type) -> str:
    return f"{counted(p, 'rank')}, {counted(n, 'value')}, {dtype.__name__}"


def _sum_cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype in SIZES:
        arrays: list[Any] = [(np.arange(n) % 5 + 1 + 10 * rank).astype(dtype) for rank in range(p)]
        cases.append(Case(_label(p, n, dtype), tuple((array,) for array in arrays)))
    return cases


def _of_each_rank(make: Callable[[np.ndarray, int, slice], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return a function of the case; `make` gets all arrays, (p, n), the rank, and the slice of its chunk."""

    def results(case: Case) -> Sequence[Any]:
        arrays = np.array([array for (array,) in case.arguments])
        p, n = arrays.shape
        return [make(arrays, rank, chunk(n, p, rank)) for rank in range(p)]

    return results


def _next_chunk(arrays: np.ndarray, rank: int, own: slice) -> np.ndarray:
    p, n = arrays.shape
    return arrays.sum(axis=0)[chunk(n, p, (rank + 1) % p)]


def _gather_cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype in SIZES:
        whole = np.arange(n) + 100.0
        old = [-1.0 - rank - np.arange(n) for rank in range(p)]
        arguments: list[tuple[Any, ...]] = [
            (whole[chunk(n, p, r)].astype(dtype), old[r].astype(dtype)) for r in range(p)
        ]
        cases.append(Case(_label(p, n, dtype), tuple(arguments)))
    return cases


def _gathered(case: Case) -> Sequence[Any]:
    return [np.concatenate([own for own, _ in case.arguments])] * case.ranks


def _gathered_except(lacks: Callable[[int, int], list[int]]) -> Callable[[Case], Sequence[Any]]:
    """Return a function of the case; `lacks` returns the chunks left as they were, from rank and p."""

    def results(case: Case) -> Sequence[Any]:
        arrays = []
        for rank, whole in enumerate(_gathered(case)):
            array = whole.copy()
            for missing in lacks(rank, case.ranks):
                place = chunk(len(array), case.ranks, missing)
                array[place] = case.arguments[rank][1][place]
            arrays.append(array)
        return arrays

    return results


def _look_neighbours(case: Case, outcomes: Sequence[Outcome], left_out: int) -> str | None:
    """Judge one half of the ring: rank r sends all chunks but number r + left_out to its right."""
    p, (array, *_) = case.ranks, case.arguments[0][::-1]
    n, itemsize = len(array), array.itemsize
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % p
        others = [dest for dest in range(p) if outcome.messages[dest] and dest != right]
        if others:
            return (
                f"rank {rank} sends to rank {others[0]}, but its right-hand neighbour is rank {right}: "
                "in this ring every message goes to the right"
            )
        place = chunk(n, p, (rank + left_out) % p)
        expected = (n - (place.stop - place.start)) * itemsize if p > 1 else 0
        sent = sum(outcome.sent)
        if sent == expected:
            continue
        text = f"rank {rank} sends {sent} bytes, expected {expected} (all chunks but one, once each)"
        if sent >= (p - 1) * n * itemsize > expected:
            return f"{text}: this is a ring in name only, which moves whole arrays. Send one chunk a round"
        if sent > expected:
            return f"{text}: it sends a chunk more than is needed; p - 1 rounds are enough"
        return f"{text}: which messages carry the other values?"
    return None


def _traffic_cases() -> Sequence[Case]:
    return [
        Case(f"n = {n}, p = {p}", ((n, p),)) for n, p in ((5, 1), (4, 2), (8, 4), (10, 4), (3, 5), (1000, 7))
    ]


def _traffic(case: Case) -> list[int]:
    """Walk along the ring: add up the values that each rank sends and receives in each round."""
    ((n, p),) = case.arguments
    traffic = [0] * p
    for first in 1, 0:
        for k in range(p - 1) if p > 1 else ():
            for rank in range(p):
                part = chunk(n, p, (rank - k - first) % p)
                traffic[rank] += part.stop - part.start
                traffic[(rank + 1) % p] += part.stop - part.start
    return traffic


def _counts(make: Callable[[int, int], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [make(*case.arguments[0])]


def _sent(n: int, p: int) -> np.ndarray:
    sizes = np.diff(np.arange(p + 1) * n // p)
    return 2 * n - sizes - np.roll(sizes, -1)


def _half(n: int, p: int) -> np.ndarray:
    sent = n - np.diff(np.arange(p + 1) * n // p)
    return sent + np.roll(sent, 1)


EXERCISES = [
    Exercise(
        reference=ring_reduce_scatter,
        notebook="05",
        title="Ring reduce-scatter",
        difficulty=3,
        minutes=20,
        points=4,
        cases=_sum_cases,
        expected=_of_each_rank(lambda arrays, rank, own: arrays.sum(axis=0)[own]),
        suspects={
            "rank r returns its own input of chunk r. The chunk must arrive in the last round: start "
            "with chunk r - 1, and go p - 1 "
            "rounds": _of_each_rank(lambda arrays, rank, own: arrays[rank, own]),
            "the chunk was copied from rank to rank, not added up: add what arrives to your own chunk": (
                _of_each_rank(lambda arrays, rank, own: arrays[(rank + 1) % len(arrays), own])
            ),
            "rank r returns chunk r + 1 of the sum: send chunk r - 1 in the first round, not chunk r": (
                _of_each_rank(_next_chunk)
            ),
        },
        look=lambda case, outcomes: _look_neighbours(case, outcomes, left_out=0),
        hints=(
            "In round k = 1 … p - 1, rank r sends chunk r - k to the right and receives chunk r - k - 1 "
            "from the left, all modulo p.",
            "All ranks send at the same time. `comm.Sendrecv` sends and receives in one call, so nobody "
            "waits in a circle.",
            "Receive into a second array with the dtype of `array`, then add: "
            "`array[adds] += received[adds]`. After the last round, return `array[chunk(n, p, rank)]`.",
        ),
        on_ranks=True,
        forbidden=COLLECTIVES,
        may_change=(0,),
        prelude=PRELUDE,
    ),
    Exercise(
        reference=ring_allgather,
        notebook="05",
        title="Ring all-gather",
        difficulty=2,
        minutes=10,
        points=2,
        cases=_gather_cases,
        expected=_gathered,
        suspects={
            "`array` is as it was before the call": _gathered_except(lambda rank, p: list(range(p))),
            "only the own chunk is in its place": _gathered_except(
                lambda rank, p: [i for i in range(p) if i != rank]
            ),
            "every rank lacks its own chunk: write `own` into `array` as well": _gathered_except(
                lambda rank, p: [rank]
            ),
            "every rank lacks the chunk of its right-hand neighbour: it takes p - 1 rounds, one more": (
                _gathered_except(lambda rank, p: [(rank + 1) % p])
            ),
        },
        look=lambda case, outcomes: _look_neighbours(case, outcomes, left_out=1),
        hints=(
            "Write `own` into its place first. In round 1 it is the only chunk worth sending.",
            "From round 2 on, pass on the chunk that has just arrived: the neighbour lacks it.",
            "In round k, rank r sends chunk r - k + 1 and receives chunk r - k, modulo p, straight into "
            "its place.",
        ),
        on_ranks=True,
        result_in=1,
        forbidden=COLLECTIVES,
        prelude=PRELUDE,
    ),
    Exercise(
        reference=ring_traffic,
        notebook="05",
        title="The traffic of each rank",
        difficulty=3,
        minutes=10,
        points=2,
        cases=_traffic_cases,
        expected=lambda case: [np.array(_traffic(case))],
        suspects={
            "this is what each rank sends: add what it receives, which its left-hand neighbour "
            "sends": _counts(_sent),
            "this is twice what each rank sends. A rank receives what its left-hand neighbour sends": _counts(
                lambda n, p: 2 * _sent(n, p)
            ),
            "this counts whole arrays. In each of the 2(p - 1) rounds a rank sends one chunk": _counts(
                lambda n, p: np.full(p, 4 * (p - 1) * n)
            ),
            "this is one half of the ring: count the reduce-scatter and the all-gather": _counts(_half),
            "this counts every chunk as n // p values, but some chunks have one value more": _counts(
                lambda n, p: np.full(p, 4 * (p - 1) * (n // p))
            ),
        },
        hints=(
            "The size of chunk i is (i + 1) · n // p - i · n // p.",
            "In the reduce-scatter, rank r sends every chunk but chunk r. Which chunk does it not send "
            "in the all-gather?",
            "It does not send chunk r + 1. So it sends 2n - size[r] - size[r + 1], and receives what "
            "rank r - 1 sends: `np.roll(sent, 1)`.",
        ),
        prelude=PRELUDE,
    ),
]
