"""The ring: every rank sends only to the next rank, and all links are busy in every round.

Source: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC
69(2), 2009, 117–124.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import Round, collective, copy_round, reduce_round


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
