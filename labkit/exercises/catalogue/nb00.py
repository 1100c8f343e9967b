"""The exercises of notebook 00: meet the cluster."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome

COLLECTIVES = tuple(
    name
    for upper in (
        "Bcast",
        "Scatter",
        "Scatterv",
        "Gather",
        "Allgather",
        "Allgatherv",
        "Alltoall",
        "Allreduce",
    )
    for name in (upper, upper.lower(), f"I{upper.lower()}")
)
LARGE = 2**18  # float32 values; no MPI library keeps a message of 1 MiB until it is received


def my_part(n, rank, size):
    """Return (start, stop): the part of range(n) that this rank works on, when `size` ranks share it.

    The parts are as even as possible: each of the first n % size ranks has one item more than the others.
    """
    each, extra = divmod(n, size)
    start = rank * each + min(rank, extra)
    stop = start + each + (1 if rank < extra else 0)
    return start, stop


def _part_cases() -> Sequence[Case]:
    sizes = (5, 1), (8, 3), (7, 3), (5, 2), (10, 4), (2, 4), (0, 3), (30, 7)
    return [
        Case(f"{n} items, rank {rank} of {size}", ((n, rank, size),))
        for n, size in sizes
        for rank in reversed(range(size))
    ]


def _part(case: Case) -> Sequence[Any]:
    ((n, rank, size),) = case.arguments
    ends = list(accumulate(len(part) for part in np.array_split(np.arange(n), size)))
    return [(ends[rank - 1] if rank else 0, ends[rank])]


def _wrong_part(part: Callable[[int, int, int], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [part(*case.arguments[0])]


def shift_right(comm, x):
    """Send x to the right-hand neighbour and return what the left-hand neighbour sends, as a new array.

    The neighbour to the right of the last rank is rank 0. Shapes: x (n,), with the same n and dtype on all
    ranks; it stays as it is.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    incoming = np.empty_like(x)
    comm.Sendrecv(x, dest=right, recvbuf=incoming, source=left)
    return incoming


def _row(rank: int, n: int, dtype: Any) -> np.ndarray:
    """Return values that name the rank: 1, 2, 3 … on rank 0, 10, 20, 30 … on rank 1, and so on."""
    return ((np.arange(n) % 9 + 1) * 10**rank).astype(dtype)


def _shift_cases() -> Sequence[Case]:
    sizes = (2, 3, "float64"), (1, 3, "float64"), (3, 1, "float32"), (4, 5, "int64"), (3, LARGE, "float32")
    return [
        Case(f"p = {p}, {n} {dtype} values", tuple((_row(rank, n, dtype),) for rank in range(p)))
        for p, n, dtype in sizes
    ]


def _from(case: Case, offset: int) -> Sequence[Any]:
    p = case.ranks
    return [_row((rank + offset) % p, len(x), x.dtype) for rank, (x,) in enumerate(case.arguments)]


def _shift_traffic(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % case.ranks
        others = [other for other, count in enumerate(outcome.messages) if count and other != right]
        if others or sum(outcome.messages) > 1:
            return (
                f"the result is right, but rank {rank} sends {sum(outcome.messages)} messages; "
                f"one message to rank {right} is enough"
            )
    return None


def broadcast(comm, x, root):
    """Fill x, on every rank, with the x of rank `root`, by Send and Recv. Every rank makes this call.

    Shapes: x (n,), with the same n and dtype on all ranks; changed in place, nothing is returned.
    """
    if comm.rank == root:
        for other in range(comm.size):
            if other != root:
                comm.Send(x, dest=other)
    else:
        comm.Recv(x, source=root)


def _broadcast_cases() -> Sequence[Case]:
    sizes = (2, 3, "float64", 0), (1, 3, "float64", 0), (3, 4, "float32", 2), (4, 5, "int64", 1)
    return [
        Case(f"p = {p}, root {root}, {n} {dtype} values", tuple((_row(r, n, dtype), root) for r in range(p)))
        for p, n, dtype, root in (*sizes, (3, LARGE, "float32", 1))
    ]


def _rows_of(case: Case, source: Callable[[int, int], int]) -> Sequence[Any]:
    """Return the array of rank source(rank, root) for each rank."""
    return [case.arguments[source(rank, root)][0] for rank, (_, root) in enumerate(case.arguments)]


def _broadcast_traffic(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    for rank, outcome in enumerate(outcomes):
        if outcome.messages[rank]:
            return f"rank {rank} sends to itself: the root already holds x, so skip it"
    total = sum(sum(outcome.messages) for outcome in outcomes)
    if total > case.ranks - 1:
        return f"the ranks send {total} messages; {case.ranks - 1} are enough, one to each rank but the root"
    return None


EXERCISES = [
    Exercise(
        reference=my_part,
        notebook="00",
        title="Which part is mine?",
        difficulty=2,
        minutes=10,
        points=2,
        cases=_part_cases,
        expected=_part,
        suspects={
            "stop is the last item of the part; return the first item after it, as range() and slices use "
            "it": _wrong_part(
                lambda n, rank, size: (my_part(n, rank, size)[0], my_part(n, rank, size)[1] - 1)
            ),
            "the last rank gets everything that is left over; give one item more to each of the first "
            "n % size ranks": _wrong_part(
                lambda n, rank, size: (
                    rank * (n // size),
                    n if rank == size - 1 else (rank + 1) * (n // size),
                )
            ),
            "the n % size items that are left over are in no rank's part": _wrong_part(
                lambda n, rank, size: (rank * (n // size), (rank + 1) * (n // size))
            ),
            "n / size is rounded up for every rank, so the last rank gets too little; give one item more to "
            "the first n % size ranks only": _wrong_part(
                lambda n, rank, size: (min(rank * -(-n // size), n), min((rank + 1) * -(-n // size), n))
            ),
            "the parts are even, but the larger ones are not those of the first n % size ranks": _wrong_part(
                lambda n, rank, size: (rank * n // size, (rank + 1) * n // size)
            ),
            "the second number is how many items the part has; return where it stops": _wrong_part(
                lambda n, rank, size: (
                    my_part(n, rank, size)[0],
                    my_part(n, rank, size)[1] - my_part(n, rank, size)[0],
                )
            ),
        },
        hints=(
            "Write down the parts for n = 8 and size = 3. How many items does each rank have?",
            "`each, extra = divmod(n, size)`: every rank has `each` items, and `extra` ranks have one more.",
            "Before rank r start r parts of `each` items, and min(r, extra) of them have one item more.",
        ),
    ),
    Exercise(
        reference=shift_right,
        notebook="00",
        title="A neighbour exchange that cannot deadlock",
        difficulty=2,
        minutes=10,
        points=2,
        on_ranks=True,
        cases=_shift_cases,
        expected=lambda case: _from(case, -1),
        suspects={
            "each rank has the array of its right-hand neighbour: the arrays went to the left": lambda case: (
                _from(case, +1)
            ),
            "each rank has its own array: return the buffer that you receive into": lambda case: _from(
                case, 0
            ),
        },
        look=_shift_traffic,
        forbidden=COLLECTIVES,
        hints=(
            "Modulo closes the ring: the neighbour to the right is rank (comm.rank + 1) % comm.size.",
            "If all ranks call Recv first, none reaches its Send. If all call Send first, large arrays hang.",
            "`comm.Sendrecv(x, dest=…, recvbuf=…, source=…)` sends and receives in one call; "
            "np.empty_like(x) makes the buffer to receive into.",
        ),
    ),
    Exercise(
        reference=broadcast,
        notebook="00",
        title="Broadcast by hand",
        difficulty=2,
        minutes=10,
        points=2,
        on_ranks=True,
        cases=_broadcast_cases,
        expected=lambda case: _rows_of(case, lambda rank, root: root),
        result_in=0,
        suspects={
            "x is unchanged: `x = …` only gives the name to another array; receive into x with "
            "`comm.Recv(x, …)`": lambda case: _rows_of(case, lambda rank, root: rank),
            "every rank holds the x of rank 0; send that of rank `root`": lambda case: _rows_of(
                case, lambda rank, root: 0
            ),
        },
        look=_broadcast_traffic,
        forbidden=COLLECTIVES,
        hints=(
            "All ranks run this function. `if comm.rank == root` tells the sender from the receivers.",
            "The root sends x to every other rank in a loop; each of the others makes a single Recv.",
            "`comm.Recv(x, source=root)` fills x itself, so there is nothing to return.",
        ),
    ),
]
