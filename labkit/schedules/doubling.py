"""Recursive doubling and Rabenseifner's algorithm: few rounds, for any number of ranks.

In each round a rank exchanges data with the rank whose number differs from its own in one bit.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH,
IJHPCA 19(1), 2005, 49–66.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from labkit.schedules.schedule import (
    Round,
    collective,
    copy_round,
    one_chunk,
    powers_of_two_below,
    reduce_round,
)


def _largest_power_of_two(p: int) -> int:
    """Return the largest power of two ≤ p."""
    return 1 << p.bit_length() - 1


def _folded(p: int, chunks: int, exchange: Callable[[int], Iterator[Round]]) -> Iterator[Round]:
    """Run `exchange` on the first 2^k ranks, for any p.

    Each rank beyond 2^k first sends its array to one of them, and receives the sum from it at the end.
    """
    power = _largest_power_of_two(p)
    extra = np.arange(power, p)
    if len(extra):
        yield reduce_round(extra, extra - power, 0, chunks)
    yield from exchange(power)
    if len(extra):
        yield copy_round(extra - power, extra, 0, chunks)


@collective("allreduce", one_chunk)
def recursive_doubling(p: int) -> Iterator[Round]:
    """Recursive doubling: lg p exchanges of the whole array; each doubles the number of inputs in the sum."""

    def exchange(p: int) -> Iterator[Round]:
        rank = np.arange(p)
        for distance in powers_of_two_below(p):
            yield reduce_round(rank, rank ^ distance, 0)

    return _folded(p, 1, exchange)


@collective("allreduce", _largest_power_of_two)
def halving_doubling(p: int) -> Iterator[Round]:
    """Rabenseifner's algorithm: reduce-scatter by halving, neighbours first (as in MPICH), then allgather."""

    def exchange(p: int) -> Iterator[Round]:
        rank, first = np.arange(p), np.zeros(p, int)  # the first of the chunks that a rank goes on adding up
        for distance in powers_of_two_below(p):
            other, count = rank ^ distance, p // (2 * distance)
            first = first + count * (rank & distance > 0)
            yield reduce_round(rank, other, first[other], first[other] + count)
        for distance in reversed(powers_of_two_below(p)):
            other, count = rank ^ distance, p // (2 * distance)
            yield copy_round(rank, other, first, first + count)
            first = np.minimum(first, first[other])

    return _folded(p, _largest_power_of_two(p), exchange)
