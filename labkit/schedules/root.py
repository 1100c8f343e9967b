"""Collectives through a root: rank 0 serves one rank after the other while the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.schedules.schedule import Round, collective, copy_round, one_chunk, reduce_round


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
