"""Hierarchical all-reduce: most of the traffic stays inside the nodes, little crosses between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise, zip_longest

import numpy as np

from labkit.schedules.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from labkit.schedules.schedule import Round, Schedule, collective, merge_rounds

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
