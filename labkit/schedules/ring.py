"""The ring: every rank sends to the next one only, and all links are busy in every round.

Source: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC
69(2), 2009, 117–124.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import Round, adding, collective, copying


@collective("reduce-scatter")
def ring_reduce_scatter(p: int) -> Iterator[Round]:
    """Each piece goes once around and is added to on its way: rank r ends with the sum of piece r."""
    rank, right = np.arange(p), np.arange(1, p + 1) % p
    for k in range(1, p):
        yield adding(rank, right, (rank - k) % p)


@collective("allgather")
def ring_allgather(p: int) -> Iterator[Round]:
    """Each rank starts with piece r and passes on what came last: all end with all pieces."""
    rank, right = np.arange(p), np.arange(1, p + 1) % p
    for k in range(p - 1):
        yield copying(rank, right, (rank - k) % p)


@collective("allreduce")
def ring_allreduce(p: int) -> Iterator[Round]:
    """Reduce-scatter, then allgather: 2(p-1) rounds of 1/p of the array each."""
    yield from ring_reduce_scatter(p)
    yield from ring_allgather(p)


@collective("reduce")
def ring_reduce(p: int) -> Iterator[Round]:
    """Reduce-scatter, then each rank sends the piece it has the sum of to rank 0."""
    yield from ring_reduce_scatter(p)
    rank = np.arange(1, p)
    if p > 1:
        yield copying(rank, 0, rank)


@collective("allgather")
def direct_allgather(p: int) -> Iterator[Round]:
    """No ring, to compare: each rank starts with piece r and sends it to every other rank itself."""
    rank = np.arange(p)
    for k in range(1, p):
        yield copying(rank, (rank + k) % p, rank)
