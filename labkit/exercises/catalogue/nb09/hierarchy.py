"""Averaging inside the nodes first, then between them."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.ring import on_a_ring

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI

PLACES = (
    *(("a", "float32"), ("ab", "float64"), ("aa", "float32"), ("aab", "float32")),
    *(("abab", "float32"), ("aabb", "float64"), ("baaa", "float32"), ("abcd", "float32")),
)


def hierarchical_average(comm, nodes, array):
    """Leave the mean of all ranks' arrays in `array`; only one rank of each node sends to other nodes.

    `nodes` holds the node name of each rank. Shape: array (n,), float32 or float64. Nodes may have unequal
    numbers of ranks.
    """
    inside = comm.Split(list(nodes).index(nodes[comm.rank]), comm.rank)
    leaders = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, comm.rank)
    total = np.empty_like(array)
    inside.Reduce(array, total)
    if inside.rank == 0:
        leaders.Allreduce(MPI.IN_PLACE, total)
        leaders.Free()
        array[:] = total / comm.size
    inside.Bcast(array)
    inside.Free()


def _cases() -> Sequence[Case]:
    cases = []
    for number, (nodes, dtype) in enumerate(PLACES):
        n, p = (1, 5, 8, 7, 12, 3, 16, 10)[number], len(nodes)
        arguments = [(list(nodes), (np.arange(1, n + 1) * 10.0**rank).astype(dtype)) for rank in range(p)]
        label = f"{p} ranks on nodes {' '.join(nodes)}, {n} values, {dtype}"
        cases.append(Case(label, tuple(arguments)))
    return cases


def _arrays(case: Case) -> list[np.ndarray]:
    return [array for _, array in case.arguments]


def _groups(case: Case) -> list[list[int]]:
    """Return the ranks of each node."""
    nodes = case.arguments[0][0]
    return [[rank for rank in range(case.ranks) if nodes[rank] == name] for name in dict.fromkeys(nodes)]


def _all(case: Case, result: np.ndarray) -> Sequence[Any]:
    return [result.astype(_arrays(case)[0].dtype)] * case.ranks


def _mean_of_means(case: Case) -> Sequence[Any]:
    arrays = _arrays(case)
    return _all(
        case, np.mean([np.mean([arrays[r] for r in ranks], axis=0) for ranks in _groups(case)], axis=0)
    )


def _by_group(case: Case, result: Callable[[list[int]], np.ndarray]) -> Sequence[Any]:
    found: list[Any] = [None] * case.ranks
    for ranks in _groups(case):
        for rank in ranks:
            found[rank] = result(ranks)
    return found


def _inside_only(case: Case) -> Sequence[Any]:
    arrays = _arrays(case)
    return _by_group(case, lambda ranks: np.mean([arrays[r] for r in ranks], axis=0).astype(arrays[0].dtype))


def _leaders_only(case: Case) -> Sequence[Any]:
    arrays, leaders = _arrays(case), {ranks[0] for ranks in _groups(case)}
    mean = np.mean(arrays, axis=0).astype(arrays[0].dtype)
    return [mean if rank in leaders else arrays[rank] for rank in range(case.ranks)]


def _leaders_values(case: Case) -> Sequence[Any]:
    arrays = _arrays(case)
    return _all(case, np.mean([arrays[ranks[0]] for ranks in _groups(case)], axis=0))


def _look(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    """Say whether ranks other than one of each node send to other nodes, and how much they send."""
    nodes = case.arguments[0][0]
    p, groups, nbytes = case.ranks, _groups(case), _arrays(case)[0].nbytes
    out = [sum(outcomes[r].sent[d] for d in range(p) if nodes[d] != nodes[r]) for r in range(p)]
    for ranks in groups:
        senders = [rank for rank in ranks if out[rank]]
        if len(senders) > 1:
            return f"ranks {senders} are on one node and all send to other nodes: only one of them may"
        if len(groups) > 1 and not senders:
            return (
                "the ranks of different nodes exchange nothing that can be seen: use Allreduce of the leaders"
            )
    most = 2 * (len(groups) - 1) * nbytes
    if sum(out) > most:
        return f"{sum(out)} bytes go from node to node, {most} are enough: let one rank of each node send"
    return None


EXERCISES = [
    Exercise(
        reference=hierarchical_average,
        title="A hierarchical average",
        difficulty=4,
        minutes=25,
        cases=_cases,
        expected=lambda case: _all(case, np.mean(_arrays(case), axis=0)),
        tolerance=1e-5,
        suspects={
            "this is the mean of the nodes' means, but nodes have unequal numbers of ranks": _mean_of_means,
            "this is the sum: divide by the number of ranks": lambda case: _all(
                case, np.sum(_arrays(case), 0)
            ),
            "this divides by the number of nodes, not by the number of ranks": lambda case: _all(
                case, np.sum(_arrays(case), axis=0) / len(_groups(case))
            ),
            "each node has its own mean: the leaders must all-reduce": _inside_only,
            "only one rank of each node has the mean: broadcast it inside the node": _leaders_only,
            "the leaders average their own arrays: reduce inside each node first": _leaders_values,
        },
        look=_look,
        on_ranks=True,
        result_in=1,
        wrap=on_a_ring,
        forbidden=("allreduce", "allgather", "Allgather", "gather", "Alltoall", "alltoall"),
        prelude="import numpy as np\nfrom mpi4py import MPI",
        hints=(
            "Three steps: sum inside each node onto one rank (the leader), all-reduce among the leaders, "
            "broadcast inside each node.",
            "`comm.Split(color, key)` makes a communicator of the ranks with the same color, an integer: the "
            "index of the node. Ranks with the color MPI.UNDEFINED get no communicator.",
            "Sum in both steps, and divide once by comm.size: then unequal nodes need no weights.",
        ),
    ),
]
