"""Exchanges with the rank whose number differs in one bit: few rounds, for any number of ranks.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH,
IJHPCA 19(1), 2005, 49–66.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from labkit.schedules.schedule import Round, adding, collective, copying, powers, uncut


def _power(p: int) -> int:
    """Return the largest power of two ≤ p."""
    return 1 << p.bit_length() - 1


def _folded(p: int, chunks: int, exchange: Callable[[int], Iterator[Round]]) -> Iterator[Round]:
    """Let the first 2^k ranks exchange for all: those beyond hand in their array first, get the sum last."""
    extra = np.arange(_power(p), p)
    if len(extra):
        yield adding(extra, extra - _power(p), 0, chunks)
    yield from exchange(_power(p))
    if len(extra):
        yield copying(extra - _power(p), extra, 0, chunks)


@collective("allreduce", uncut)
def recursive_doubling(p: int) -> Iterator[Round]:
    """Recursive doubling: lg p exchanges of the whole array, each doubles whose contributions are in it."""

    def exchange(p: int) -> Iterator[Round]:
        rank = np.arange(p)
        for step in powers(p):
            yield adding(rank, rank ^ step, 0)

    return _folded(p, 1, exchange)


@collective("allreduce", _power)
def halving_doubling(p: int) -> Iterator[Round]:
    """Rabenseifner's: exchange ever smaller halves until rank r has the sum of piece r, then the way back."""

    def exchange(p: int) -> Iterator[Round]:
        rank = np.arange(p)
        for step in reversed(powers(p)):
            first = (rank ^ step) // step * step
            yield adding(rank, rank ^ step, first, first + step)
        for step in powers(p):
            first = rank // step * step
            yield copying(rank, rank ^ step, first, first + step)

    return _folded(p, _power(p), exchange)
