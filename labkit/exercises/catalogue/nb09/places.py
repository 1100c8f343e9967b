"""On which node each rank is, and the order in which a ring should visit the ranks."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.exercise import Case, Exercise

NODES = ("a", "aa", "ab", "aba", "cabcab", "yxxyzx", "bbacaab", "")


def places(nodes):
    """Return (number of the node, local rank) for each rank, from the ranks' node names.

    The nodes are numbered from 0 in the order in which their names first appear.
    """
    numbers, counts, found = {}, {}, []  # type: ignore[var-annotated]
    for node in nodes:
        number = numbers.setdefault(node, len(numbers))
        found.append((number, counts.get(node, 0)))
        counts[node] = counts.get(node, 0) + 1
    return found


def _cases() -> Sequence[Case]:
    return [Case(f"nodes {list(nodes)}", ((list(nodes),),)) for nodes in NODES]


def _on(function: Callable[[list[str]], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [function(case.arguments[0][0])]


def _expected_places(nodes: list[str]) -> list[tuple[int, int]]:
    first = sorted(set(nodes), key=nodes.index)
    return [(first.index(node), nodes[:rank].count(node)) for rank, node in enumerate(nodes)]


def _numbered(nodes: list[str], order: Sequence[str]) -> list[tuple[int, int]]:
    return [(order.index(node), nodes[:rank].count(node)) for rank, node in enumerate(nodes)]


def _runs(nodes: list[str]) -> list[tuple[int, int]]:
    """Number a node anew each time that the name changes, as if the ranks of a node were neighbours."""
    found = [(0, 0)] * len(nodes)
    for rank in range(1, len(nodes)):
        number, local = found[rank - 1]
        found[rank] = (number, local + 1) if nodes[rank] == nodes[rank - 1] else (number + 1, 0)
    return found


def ring_order(nodes):
    """Return the ranks in the order in which the ring visits them, one node after the other.

    The nodes are in the order in which their names first appear, and the ranks of a node in the order of
    their numbers.
    """
    return sorted(range(len(nodes)), key=lambda rank: nodes.index(nodes[rank]))


def _expected_order(nodes: list[str]) -> list[int]:
    return [rank for name in dict.fromkeys(nodes) for rank, node in enumerate(nodes) if node == name]


def _positions(nodes: list[str]) -> list[int]:
    order = _expected_order(nodes)
    return [order.index(rank) for rank in range(len(nodes))]


def _by_local_rank(nodes: list[str]) -> list[int]:
    at = _expected_places(nodes)
    return sorted(range(len(nodes)), key=lambda rank: at[rank][1])


EXERCISES = [
    Exercise(
        reference=places,
        title="The local rank",
        difficulty=1,
        minutes=10,
        cases=_cases,
        expected=_on(_expected_places),
        suspects={
            "the nodes are numbered by the alphabet; number them as their names first appear": _on(
                lambda nodes: _numbered(nodes, sorted(set(nodes)))
            ),
            "the local rank counts from 1; the first rank of a node has 0": _on(
                lambda nodes: [(number, local + 1) for number, local in _expected_places(nodes)]
            ),
            "the second number is the rank itself; count anew on each node": _on(
                lambda nodes: [(number, rank) for rank, (number, _) in enumerate(_expected_places(nodes))]
            ),
            "a name that appears again is the same node; it keeps its number": _on(_runs),
            "a pair holds the node's number, not its name": _on(
                lambda nodes: [(node, nodes[:rank].count(node)) for rank, node in enumerate(nodes)]
            ),
            "the pairs are the wrong way round: the node's number first, then the local rank": _on(
                lambda nodes: [(local, number) for number, local in _expected_places(nodes)]
            ),
            "the result is in the order of the nodes; expected the order of the ranks": _on(
                lambda nodes: sorted(_expected_places(nodes))
            ),
        },
        hints=(
            "Two dictionaries: the number of each name, and how many ranks of each name came so far.",
            "`numbers.setdefault(node, len(numbers))` numbers a new name, and returns an old one's number.",
        ),
    ),
    Exercise(
        reference=ring_order,
        title="The order of the ring",
        difficulty=2,
        minutes=10,
        cases=_cases,
        expected=_on(_expected_order),
        suspects={
            "this is each rank's position in the ring; expected the ranks in the order of the positions": _on(
                _positions
            ),
            "this is the order of the ranks' numbers, which goes back and forth between the nodes": _on(
                lambda nodes: list(range(len(nodes)))
            ),
            "the nodes are in the order of the alphabet; expected the order in which they first appear": _on(
                lambda nodes: sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
            ),
            "this visits all local ranks 0 first, then all 1: every message goes to another node": _on(
                _by_local_rank
            ),
            "the ranks of a node are in falling order": _on(
                lambda nodes: sorted(range(len(nodes)), key=lambda rank: (nodes.index(nodes[rank]), -rank))
            ),
            "these are the nodes' names; expected the ranks' numbers": _on(
                lambda nodes: [nodes[rank] for rank in _expected_order(nodes)]
            ),
        },
        hints=(
            "Sort the ranks by the number of their node. `sorted` keeps the order of equal ones.",
            "`sorted(range(len(nodes)), key=…)`; the place of a name is `nodes.index(name)`.",
        ),
    ),
]
