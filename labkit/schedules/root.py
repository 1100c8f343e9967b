"""One rank for all: the root receives from and sends to one rank after the other, the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.schedules.schedule import Round, adding, collective, copying, uncut


@collective("reduce", uncut)
def root_reduce(p: int) -> Iterator[Round]:
    """Rank 0 receives the array of one rank after the other and adds it to its own."""
    for rank in range(1, p):
        yield adding(rank, 0, 0)


@collective("broadcast", uncut)
def root_broadcast(p: int) -> Iterator[Round]:
    """Rank 0 sends its array to one rank after the other."""
    for rank in range(1, p):
        yield copying(0, rank, 0)


@collective("allreduce", uncut)
def root_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2(p-1) rounds of the whole array, all of them through rank 0."""
    yield from root_reduce(p)
    yield from root_broadcast(p)
