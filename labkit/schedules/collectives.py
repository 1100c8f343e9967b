"""The collectives: rings, collectives through a root or along a tree, doubling, and a hierarchy of rings.

- Ring: every rank sends only to the next rank, and all links are busy in every round. Source: P. Patarasuk,
  X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009, 117–124.
- Root: rank 0 serves one rank after the other. A binomial tree does the same in ⌈lg p⌉ rounds, in each of
  which half of the ranks that hold a partial sum send it on.
- Recursive doubling and Rabenseifner's algorithm: in each round a rank exchanges data with the rank whose
  number differs from its own in one bit. Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of
  collective communication operations in MPICH, IJHPCA 19(1), 2005, 49–66.
- Hierarchy: most of the traffic stays inside the nodes, and little crosses between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, zip_longest

import numpy as np

from labkit.schedules.schedule import (
    Round,
    Schedule,
    collective,
    copy_round,
    merge_rounds,
    reduce_round,
)


@collective("reduce-scatter")
def ring_reduce_scatter(p: int) -> Iterator[Round]:
    """Each chunk travels around the ring once and is reduced on its way; rank r ends with chunk r's sum."""
    rank, right = np.arange(p), np.arange(1, p + 1) % p
    for k in range(1, p):
        yield reduce_round(rank, right, (rank - k) % p)


@collective("allgather")
def ring_allgather(p: int) -> Iterator[Round]:
    """Rank r starts with chunk r, and each rank passes on the chunk that it received last."""
    rank, right = np.arange(p), np.arange(1, p + 1) % p
    for k in range(p - 1):
        yield copy_round(rank, right, (rank - k) % p)


@collective("allreduce")
def ring_allreduce(p: int) -> Iterator[Round]:
    """Reduce-scatter, then allgather: 2(p-1) rounds, in each of which a rank sends 1/p of the array."""
    yield from ring_reduce_scatter(p)
    yield from ring_allgather(p)


@collective("reduce")
def ring_reduce(p: int) -> Iterator[Round]:
    """Reduce-scatter; then each rank sends the chunk whose sum it holds to rank 0."""
    yield from ring_reduce_scatter(p)
    rank = np.arange(1, p)
    if p > 1:
        yield copy_round(rank, 0, rank)


@collective("allreduce")
def ring_reduce_broadcast(p: int) -> Iterator[Round]:
    """Ring reduce to rank 0, which then sends the sum to the other ranks, one after the other."""
    yield from ring_reduce(p)
    for rank in range(1, p):
        yield copy_round(0, rank, 0, p)


def _one_chunk(p: int) -> int:
    return 1


def _powers_of_two_below(p: int) -> list[int]:
    return [1 << k for k in range((p - 1).bit_length())]


@collective("reduce", _one_chunk)
def root_reduce(p: int) -> Iterator[Round]:
    """Rank 0 receives the arrays of the other ranks, one after the other, and adds each to its own."""
    for rank in range(1, p):
        yield reduce_round(rank, 0, 0)


@collective("broadcast", _one_chunk)
def root_broadcast(p: int) -> Iterator[Round]:
    """Rank 0 sends its array to the other ranks, one after the other."""
    for rank in range(1, p):
        yield copy_round(0, rank, 0)


@collective("allreduce", _one_chunk)
def root_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2(p-1) rounds of the whole array, all of them through rank 0."""
    yield from root_reduce(p)
    yield from root_broadcast(p)


@collective("reduce", _one_chunk)
def tree_reduce(p: int) -> Iterator[Round]:
    """Ranks at distance 1 add up, then at distance 2, 4, …: rank 0 has the sum after ⌈lg p⌉ rounds."""
    for distance in _powers_of_two_below(p):
        source = np.arange(distance, p, 2 * distance)
        yield reduce_round(source, source - distance, 0)


@collective("broadcast", _one_chunk)
def tree_broadcast(p: int) -> Iterator[Round]:
    """The same tree from its root to its leaves: each round doubles the number of ranks with the array."""
    for distance in reversed(_powers_of_two_below(p)):
        dest = np.arange(distance, p, 2 * distance)
        yield copy_round(dest - distance, dest, 0)


@collective("allreduce", _one_chunk)
def tree_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2⌈lg p⌉ rounds of the whole array."""
    yield from tree_reduce(p)
    yield from tree_broadcast(p)


def _largest_power_of_two(p: int) -> int:
    """Return the largest power of two ≤ p."""
    return 1 << p.bit_length() - 1


def _folded(p: int, chunks: int, exchange: Callable[[int], Iterator[Round]]) -> Iterator[Round]:
    """Run `exchange` on the first 2^k ranks, for any p.

    Each other rank first sends its array to one of these ranks, and at the end receives the sum from it.
    """
    power = _largest_power_of_two(p)
    extra = np.arange(power, p)
    if len(extra):
        yield reduce_round(extra, extra - power, 0, chunks)
    yield from exchange(power)
    if len(extra):
        yield copy_round(extra - power, extra, 0, chunks)


@collective("allreduce", _one_chunk)
def recursive_doubling(p: int) -> Iterator[Round]:
    """Recursive doubling: lg p exchanges of the whole array; each doubles the number of inputs in the sum."""

    def exchange(p: int) -> Iterator[Round]:
        rank = np.arange(p)
        for distance in _powers_of_two_below(p):
            yield reduce_round(rank, rank ^ distance, 0)

    return _folded(p, 1, exchange)


@collective("allreduce", _largest_power_of_two)
def halving_doubling(p: int) -> Iterator[Round]:
    """Rabenseifner's algorithm: reduce-scatter by halving, neighbours first (as in MPICH), then allgather."""

    def exchange(p: int) -> Iterator[Round]:
        rank, first = np.arange(p), np.zeros(p, int)  # the first of the chunks that a rank goes on adding up
        for distance in _powers_of_two_below(p):
            other, count = rank ^ distance, p // (2 * distance)
            first = first + count * (rank & distance > 0)
            yield reduce_round(rank, other, first[other], first[other] + count)
        for distance in reversed(_powers_of_two_below(p)):
            other, count = rank ^ distance, p // (2 * distance)
            yield copy_round(rank, other, first, first + count)
            first = np.minimum(first, first[other])

    return _folded(p, _largest_power_of_two(p), exchange)


Nodes = tuple[object, ...]  # the node of each rank: numbers, names, anything that can be hashed


def _chunk_count(p: int, nodes: Nodes) -> int:
    """Return a number of chunks that divides evenly among the ranks of every node, and among the nodes."""
    groups = _ranks_by_node(p, nodes)
    return math.lcm(*map(len, groups)) * len(groups)


@collective("allreduce", _chunk_count)
def hierarchical(p: int, nodes: Nodes) -> Iterator[Round]:
    """Ring reduce-scatter inside each node, ring all-reduce between the nodes, ring allgather inside each.

    `nodes` holds the node of each rank; nodes may have unequal numbers of ranks. Between the nodes, each part
    of the array travels around the ranks that own it after the reduce-scatter, one on each node. If all nodes
    have the same number of ranks, every rank therefore has one neighbour on another node.
    """
    groups, chunks = _ranks_by_node(p, nodes), _chunk_count(p, nodes)
    yield from _in_parallel(_on_ranks(ranks, ring_reduce_scatter(len(ranks)), 0, chunks) for ranks in groups)
    cuts = sorted({k * chunks // len(ranks) for ranks in groups for k in range(len(ranks) + 1)})
    yield from _in_parallel(
        _on_ranks(
            [ranks[cut * len(ranks) // chunks] for ranks in groups], ring_allreduce(len(groups)), cut, stop
        )
        for cut, stop in pairwise(cuts)
    )
    yield from _in_parallel(_on_ranks(ranks, ring_allgather(len(ranks)), 0, chunks) for ranks in groups)


def _ranks_by_node(p: int, nodes: Nodes) -> list[list[int]]:
    if len(nodes) != p:
        raise ValueError(f"expected the node of each of {p} ranks, got {len(nodes)} nodes")
    return [[rank for rank in range(p) if nodes[rank] == node] for node in dict.fromkeys(nodes)]


def _on_ranks(ranks: list[int], schedule: Schedule, first: int, stop: int) -> Iterator[Round]:
    """Yield the schedule's rounds, mapped to `ranks` and to chunks first … stop-1 of a larger array."""
    rank, width = np.array(ranks), (stop - first) // schedule.chunks
    for round_ in schedule:
        yield Round(
            rank[round_.source],
            rank[round_.dest],
            first + round_.first * width,
            first + round_.stop * width,
            round_.reduce,
        )


def _in_parallel(schedules: Iterable[Iterator[Round]]) -> Iterator[Round]:
    """Yield rounds that each combine the same-numbered rounds of several schedules."""
    for rounds in zip_longest(*schedules):
        yield merge_rounds(*(round_ for round_ in rounds if round_ is not None))
