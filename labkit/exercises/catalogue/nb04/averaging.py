"""The exercises of notebook 04 about three algorithms that average the ranks' gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.exercises.calls import COLLECTIVES, SUMS
from labkit.exercises.exercise import Case, Exercise, Outcome
from mpiwatch.wording import counted


def average_by_allgather(comm, gradient, weight):  # type: ignore[no-untyped-def]
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.sum(axis=0)


def average_by_root(comm, gradient, weight):  # type: ignore[no-untyped-def]
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank; rank 0 adds up.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)


def average_by_tree(comm, gradient, weight):  # type: ignore[no-untyped-def]
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank, along a binomial tree.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    received = np.empty_like(gradient)
    distances = [1 << k for k in range((comm.size - 1).bit_length())]
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
    for distance in reversed(distances):
        if comm.rank % (2 * distance) == distance:
            comm.Recv(gradient, source=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Send(gradient, dest=comm.rank + distance)


def _cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype, first in (
        (1, 3, np.float64, 1),
        (2, 1, np.float64, 1),
        (2, 3, np.float32, 1),
        (3, 5, np.float32, 1),
        (3, 4, np.float64, 0),
        (4, 1, np.float32, 1),
        (4, 1001, np.float64, 1),
    ):
        rng = np.random.default_rng([p, n])
        samples = np.arange(first, first + p)
        gradients = rng.integers(1, 9, (p, n)) + 10.0 * np.arange(p)[:, None] + 0.25
        gradients[samples == 0] = 0
        label = f"{counted(p, 'rank')}, {counted(n, 'value')}, {dtype.__name__}"
        label += "" if first else ", no samples on rank 0"
        weights = samples / samples.sum()
        cases.append(Case(label, tuple((gradients[r].astype(dtype), float(weights[r])) for r in range(p))))
    return cases


def _inputs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return all gradients, (p, n), and the weights, (p, 1), in float64."""
    gradients, weights = zip(*case.arguments, strict=True)
    return np.array(gradients, float), np.array(weights)[:, None]


def _on_all(case: Case, values: np.ndarray) -> list[np.ndarray]:
    """Return `values`, (n,) or one row for each rank, in the dtype of the gradients, for each rank."""
    dtype = case.arguments[0][0].dtype
    return list(np.broadcast_to(values, (case.ranks, values.shape[-1])).astype(dtype))


def _mean(case: Case) -> Sequence[Any]:
    gradients, weights = _inputs(case)
    return _on_all(case, np.average(gradients, axis=0, weights=weights[:, 0]))


def _suspect(make: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: _on_all(case, make(*_inputs(case)))


def _weighted_by_rank_zero(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (gradients * weights)[1:].sum(axis=0) + gradients[0]


def _without_the_way_back(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows = gradients * weights
    rows[0] = rows.sum(axis=0)
    return rows


def _tree_without_the_way_back(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows, p = gradients * weights, len(gradients)
    return np.array([rows[r : min(p, r + ((r & -r) or p))].sum(axis=0) for r in range(p)])


def _partial_sums(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows = np.cumsum(gradients * weights, axis=0)
    rows[0] = rows[-1]
    return rows


def _tree_ascending(gradients: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what a broadcast leaves whose distances grow: each rank gets what its parent held till then."""
    partial = _tree_without_the_way_back(gradients, weights)
    return np.array([partial[r & (r - 1)] if r else partial[0] for r in range(len(partial))])


UNWEIGHTED: Mapping[str, Callable[[Case], Sequence[Any]]] = {
    "this is the mean of the ranks' means: multiply each gradient by its rank's weight instead of dividing "
    "by the number of ranks": _suspect(lambda gradients, weights: gradients.mean(axis=0)),
    "this is the plain sum of the gradients: multiply each by its rank's weight first": _suspect(
        lambda gradients, weights: gradients.sum(axis=0)
    ),
    "this is the weighted mean divided by the number of ranks: the weights already add up to 1": _suspect(
        lambda gradients, weights: (gradients * weights).mean(axis=0)
    ),
    "`gradient` is as it was before the call: write the mean into it, as in `gradient[:] = …`": _suspect(
        lambda gradients, weights: gradients
    ),
    "`gradient` holds only this rank's part, gradient · weight: the other ranks' parts are missing": _suspect(
        lambda gradients, weights: gradients * weights
    ),
    "each rank has multiplied the sum by its own weight: multiply before adding up": _suspect(
        lambda gradients, weights: gradients.sum(axis=0) * weights
    ),
}


def _tables(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes and messages from the rank of the row to the rank of the column. Shapes: (p, p)."""
    return np.array([one.sent for one in outcomes]), np.array([one.messages for one in outcomes])


def _look_root(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    sent, messages = _tables(outcomes)
    nbytes = case.arguments[0][0].nbytes
    for rank in range(1, case.ranks):
        others = [dest for dest in range(1, case.ranks) if messages[rank, dest]]
        if others:
            return f"rank {rank} sends to rank {others[0]}: every message goes to rank 0 or comes from it"
        for here, there in (rank, 0), (0, rank):
            if sent[here, there] != nbytes:
                return (
                    f"rank {here} sends {sent[here, there]} bytes to rank {there}, expected one gradient "
                    f"({nbytes} bytes)"
                )
    return None


def _look_tree(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    sent, messages = _tables(outcomes)
    p, nbytes = case.ranks, case.arguments[0][0].nbytes
    levels = ceil(log2(p)) if p > 1 else 0
    for does, there in ("receives from", messages[1:, 0]), ("sends to", messages[0, 1:]):
        if (there > 0).sum() > levels:
            return (
                f"rank 0 {does} {(there > 0).sum()} ranks, and in a binomial tree of {p} ranks {does} "
                f"{levels}: give other ranks a part of the work"
            )
    if sent.sum() != 2 * (p - 1) * nbytes:
        return (
            f"the ranks send {sent.sum()} bytes in all. A tree needs {2 * (p - 1)} messages of one gradient "
            f"({2 * (p - 1) * nbytes} bytes): each rank but rank 0 sends its sum once and receives once"
        )
    return None


EXERCISES = [
    Exercise(
        reference=average_by_allgather,
        title="Average by all-gather",
        difficulty=2,
        minutes=10,
        cases=_cases,
        expected=_mean,
        suspects=UNWEIGHTED,
        hints=(
            "Multiply your own gradient by your own weight first. What remains is a sum over the ranks.",
            "`comm.Allgather(gradient, rows)` fills `rows`, shape (comm.size, n): one row for each rank. "
            "Make `rows` with the dtype of `gradient`.",
            "Write the sum over the rows into `gradient[:]`. A plain `gradient = …` changes nothing outside.",
        ),
        on_ranks=True,
        result_in=0,
        forbidden=SUMS,
    ),
    Exercise(
        reference=average_by_root,
        title="Average through a root",
        difficulty=2,
        minutes=10,
        cases=_cases,
        expected=_mean,
        suspects={
            "only rank 0 holds the mean: send it back to every other rank": _suspect(_without_the_way_back),
            "a rank gets the sum before all gradients are in it: receive from all ranks first, then send": (
                _suspect(_partial_sums)
            ),
            "rank 0's own gradient is not multiplied by its weight": _suspect(_weighted_by_rank_zero),
            "only the gradient of the last rank is left: receive into another array and add it": _suspect(
                lambda gradients, weights: (gradients * weights)[-1]
            ),
            **UNWEIGHTED,
        },
        look=_look_root,
        hints=(
            "Rank 0 does one thing and all other ranks do another: begin with `if comm.rank == 0:`.",
            "Rank 0 receives each gradient into a second array and adds it to its own. The other ranks send, "
            "then wait for the mean in `comm.Recv`.",
            "Rank 0 needs two loops over the other ranks: first receive from all, then send to all.",
        ),
        on_ranks=True,
        result_in=0,
        forbidden=COLLECTIVES,
    ),
    Exercise(
        reference=average_by_tree,
        title="Average along a tree, for any number of ranks",
        difficulty=3,
        minutes=20,
        cases=_cases,
        expected=_mean,
        suspects={
            "the mean does not come back down the tree: each rank holds only the sum of its own branch": (
                _suspect(_tree_without_the_way_back)
            ),
            "on the way down, a rank passes on its sum before it has the mean: go from the largest distance "
            "to the smallest": _suspect(_tree_ascending),
            **UNWEIGHTED,
        },
        look=_look_tree,
        hints=(
            "Go through the distances 1, 2, 4, … below p. At each distance, every second rank of those that "
            "still take part sends its sum to the rank `distance` below it, and is done.",
            "A rank with `rank % (2 * distance) == distance` sends to `rank - distance`. A rank with "
            "`rank % (2 * distance) == 0` receives from `rank + distance`, if there is such a rank.",
            "The way down has the same pairs with swapped roles, from the largest distance to the smallest.",
        ),
        on_ranks=True,
        result_in=0,
        forbidden=COLLECTIVES,
    ),
]
