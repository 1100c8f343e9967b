"""Collectives through rank 0: it serves one rank after the other, or binomial trees do it in ⌈lg p⌉ rounds.

In each round of a tree, half of the ranks that hold a partial sum send it on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import (
    Round,
    collective,
    copy_round,
    one_chunk,
    powers_of_two_below,
    reduce_round,
)


@collective("reduce", one_chunk)
def root_reduce(p: int) -> Iterator[Round]:
    """Rank 0 receives the arrays of the other ranks, one after the other, and adds each to its own."""
    for rank in range(1, p):
        yield reduce_round(rank, 0, 0)


@collective("broadcast", one_chunk)
def root_broadcast(p: int) -> Iterator[Round]:
    """Rank 0 sends its array to the other ranks, one after the other."""
    for rank in range(1, p):
        yield copy_round(0, rank, 0)


@collective("allreduce", one_chunk)
def root_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2(p-1) rounds of the whole array, all of them through rank 0."""
    yield from root_reduce(p)
    yield from root_broadcast(p)


@collective("reduce", one_chunk)
def tree_reduce(p: int) -> Iterator[Round]:
    """Ranks at distance 1 add up, then at distance 2, 4, …: rank 0 has the sum after ⌈lg p⌉ rounds."""
    for distance in powers_of_two_below(p):
        source = np.arange(distance, p, 2 * distance)
        yield reduce_round(source, source - distance, 0)


@collective("broadcast", one_chunk)
def tree_broadcast(p: int) -> Iterator[Round]:
    """The same tree from its root to its leaves: each round doubles the number of ranks with the array."""
    for distance in reversed(powers_of_two_below(p)):
        dest = np.arange(distance, p, 2 * distance)
        yield copy_round(dest - distance, dest, 0)


@collective("allreduce", one_chunk)
def tree_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2⌈lg p⌉ rounds of the whole array."""
    yield from tree_reduce(p)
    yield from tree_broadcast(p)
