"""The binomial tree: in each round half of those who still hold a sum give it away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import Round, adding, collective, copying, powers, uncut


@collective("reduce", uncut)
def tree_reduce(p: int) -> Iterator[Round]:
    """Neighbours add up, then neighbours of neighbours: rank 0 has the sum after ⌈lg p⌉ rounds."""
    for step in powers(p):
        source = np.arange(step, p, 2 * step)
        yield adding(source, source - step, 0)


@collective("broadcast", uncut)
def tree_broadcast(p: int) -> Iterator[Round]:
    """The same tree from root to leaves: in each round twice as many ranks hold the array."""
    for step in reversed(powers(p)):
        dest = np.arange(step, p, 2 * step)
        yield copying(dest - step, dest, 0)


@collective("allreduce", uncut)
def tree_allreduce(p: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast: 2⌈lg p⌉ rounds of the whole array."""
    yield from tree_reduce(p)
    yield from tree_broadcast(p)
