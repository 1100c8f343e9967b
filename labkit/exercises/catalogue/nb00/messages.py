"""The exercises of notebook 00 about ranks and messages."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.calls import COLLECTIVES
from labkit.exercises.exercise import Case, Exercise, Outcome

Results = Callable[[Case], Sequence[Any]]
LARGE = 2**18  # float32 values; no MPI library keeps a message of 1 MiB until it is received


def my_items(n, rank, size):
    """Return the items of range(n) that this rank works on, as a list.

    Items are dealt out like cards: item 0 to rank 0, item 1 to rank 1, and after the last rank to rank 0.
    """
    return list(range(rank, n, size))


def _item_cases() -> Sequence[Case]:
    return [
        Case(f"{n} items, rank {rank} of {size}", ((n, rank, size),))
        for n, size in ((5, 1), (5, 2), (8, 3), (10, 4), (2, 4), (0, 3), (30, 7))
        for rank in reversed(range(size))
    ]


def _items(case: Case) -> Sequence[Any]:
    ((n, rank, size),) = case.arguments
    return [[item for item in range(n) if item % size == rank]]


def _wrong_items(first: Callable[..., int], stop: Callable[..., int], step: Callable[..., int]) -> Results:
    """Return a suspect: the range with these ends and this step, each a function of n, rank and size."""

    def results(case: Case) -> Sequence[Any]:
        (of,) = case.arguments
        return [list(range(first(*of), stop(*of), step(*of)))]

    return results


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
    sizes = (2, 3, "float64"), (3, 1, "float32"), (4, 5, "int64"), (3, LARGE, "float32"), (1, 3, "float64")
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
        return f"the ranks send {total} messages; one to each rank but the root is enough"
    return None


EXERCISES = [
    Exercise(
        reference=my_items,
        title="Which items are mine?",
        difficulty=1,
        minutes=5,
        cases=_item_cases,
        expected=_items,
        suspects={
            "the step is 4 for any number of ranks; use `size`": _wrong_items(
                lambda n, rank, size: rank, lambda n, rank, size: n, lambda n, rank, size: 4
            ),
            "every rank starts at item 0; start at item `rank`": _wrong_items(
                lambda n, rank, size: 0, lambda n, rank, size: n, lambda n, rank, size: size
            ),
            "this is a block of neighbouring items; deal them out one by one, item k to rank k % size": (
                _wrong_items(
                    lambda n, rank, size: rank * (n // size),
                    lambda n, rank, size: n if rank == size - 1 else (rank + 1) * (n // size),
                    lambda n, rank, size: 1,
                )
            ),
            "the last item is on no rank: range(…, n, …) already leaves out n": _wrong_items(
                lambda n, rank, size: rank, lambda n, rank, size: n - 1, lambda n, rank, size: size
            ),
            "the items start at 1; start at 0, as range(n) does": _wrong_items(
                lambda n, rank, size: rank + 1, lambda n, rank, size: n + 1, lambda n, rank, size: size
            ),
        },
        hints=(
            "With 3 ranks, rank 1 gets the items 1, 4, 7 … Which number is added each time?",
            "`range` takes a first item, the end and a step.",
        ),
    ),
    Exercise(
        reference=shift_right,
        title="A neighbour exchange that cannot deadlock",
        difficulty=2,
        minutes=10,
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
        title="Broadcast by hand",
        difficulty=2,
        minutes=10,
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
