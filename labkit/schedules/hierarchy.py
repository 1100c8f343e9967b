"""Ranks on nodes: what can stay inside a node does, and little goes over the links between nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise, zip_longest

import numpy as np

from labkit.schedules.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from labkit.schedules.schedule import Round, Schedule, collective

Nodes = tuple[object, ...]  # the node of each rank: numbers, names, anything that compares equal


def _chunks(p: int, nodes: Nodes) -> int:
    """Cut so that each rank of every node can own as much of the array, and that in a part for each node."""
    groups = _groups(p, nodes)
    return math.lcm(*map(len, groups)) * len(groups)


@collective("allreduce", _chunks)
def hierarchical(p: int, nodes: Nodes) -> Iterator[Round]:
    """Ring reduce-scatter inside each node, ring allreduce between the nodes, ring allgather inside.

    `nodes` holds each rank's node; the nodes may be of unequal sizes. Between nodes, each part of the array
    goes around those ranks, one of each node, that own it after the first phase: if all nodes are of one
    size, every rank has one neighbour there.
    """
    groups, chunks = _groups(p, nodes), _chunks(p, nodes)
    yield from _together(_on(group, ring_reduce_scatter(len(group)), 0, chunks) for group in groups)
    cuts = sorted({k * chunks // len(group) for group in groups for k in range(len(group) + 1)})
    yield from _together(
        _on([group[cut * len(group) // chunks] for group in groups], ring_allreduce(len(groups)), cut, stop)
        for cut, stop in pairwise(cuts)
    )
    yield from _together(_on(group, ring_allgather(len(group)), 0, chunks) for group in groups)


def _groups(p: int, nodes: Nodes) -> list[list[int]]:
    if len(nodes) != p:
        raise ValueError(f"expected the node of each of {p} ranks, got {len(nodes)} nodes")
    return [[rank for rank in range(p) if nodes[rank] == node] for node in dict.fromkeys(nodes)]


def _on(ranks: list[int], schedule: Schedule, first: int, stop: int) -> Iterator[Round]:
    """Yield the schedule's rounds as these ranks make them with pieces first … stop-1 of a larger one."""
    rank, width = np.array(ranks), (stop - first) // schedule.chunks
    for one in schedule:
        yield Round(
            rank[one.source], rank[one.dest], first + one.first * width, first + one.stop * width, one.add
        )


def _together(schedules: Iterable[Iterator[Round]]) -> Iterator[Round]:
    """Yield the rounds of several schedules as made at the same time."""
    for rounds in zip_longest(*schedules):
        there = [one for one in rounds if one is not None]
        yield Round(*map(np.concatenate, zip(*(vars(one).values() for one in there), strict=True)))
