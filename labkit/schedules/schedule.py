"""Schedules: a collective as rounds of transfers between ranks.

The array is cut into chunks. In each round, some ranks send some of their chunks to other ranks, which either
add them to their own chunks (reduce) or put them in their place (copy); every rank sends what it held before
the round. A schedule describes this for p ranks and any number of values, and knows nothing of MPI. So it can
be printed, verified, counted, simulated, drawn and run, and its cost can be predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import Literal, NamedTuple

import numpy as np

from labkit.text import counted

# Each name fixes what the ranks hold before and after the call; `verify` checks it.
CollectiveName = Literal["allreduce", "reduce", "reduce-scatter", "allgather", "broadcast"]


class Transfer(NamedTuple):
    """One message: `source` sends its chunks first … stop-1 to `dest`, which reduces or copies them."""

    source: int
    dest: int
    first: int
    stop: int
    reduce: bool

    def __str__(self) -> str:
        """Return "0→1 +2" if rank 1 adds rank 0's chunk 2 to its own, "0→1 =2" if it copies it."""
        chunks = str(self.first) if self.stop == self.first + 1 else f"{self.first}–{self.stop - 1}"
        return f"{self.source}→{self.dest} {'+' if self.reduce else '='}{chunks}"


@dataclass(frozen=True, eq=False)
class Round:
    """Transfers that happen at the same time; each sends what its source held before the round.

    Shapes: all (transfers,); `reduce` bool, the others integers. They are arrays because the ring on 4,096
    ranks has 33 million transfers. Iterating yields one `Transfer` at a time.
    """

    source: np.ndarray
    dest: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    reduce: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        columns = self.source, self.dest, self.first, self.stop, self.reduce
        return map(Transfer, *(column.tolist() for column in columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Round) and sorted(self) == sorted(other)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "  ".join(map(str, self))


IntOrArray = int | np.ndarray


def reduce_round(
    source: IntOrArray, dest: IntOrArray, first: IntOrArray, stop: IntOrArray | None = None
) -> Round:
    """Return a round in which each `dest` adds chunks first … stop-1 of its `source` to its own.

    Each argument is an integer or an array of integers; they are broadcast against each other. Without
    `stop`, each transfer sends one chunk.
    """
    return _round(source, dest, first, stop, True)


def copy_round(
    source: IntOrArray, dest: IntOrArray, first: IntOrArray, stop: IntOrArray | None = None
) -> Round:
    """Return a round in which each `dest` replaces its chunks first … stop-1 by those of its `source`.

    The arguments are those of `reduce_round`.
    """
    return _round(source, dest, first, stop, False)


def _round(
    source: IntOrArray, dest: IntOrArray, first: IntOrArray, stop: IntOrArray | None, reduce: bool
) -> Round:
    stop = np.asarray(first) + 1 if stop is None else stop
    source, dest, first, stop = np.broadcast_arrays(np.atleast_1d(source), dest, first, stop)
    return Round(source, dest, first, stop, np.full(source.shape, reduce))


def merge_rounds(*rounds: Round) -> Round:
    """Return one round with the transfers of all `rounds`: some of them may reduce and others copy."""
    columns = zip(*(vars(round_).values() for round_ in rounds), strict=True)
    return Round(*map(np.concatenate, columns))


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective on `p` ranks, for an array cut into `chunks` chunks; iterating yields its rounds.

    Each iteration generates the rounds again, so a schedule for thousands of ranks takes no memory.
    """

    name: str
    collective: CollectiveName
    p: int
    chunks: int
    rounds: Callable[[], Iterator[Round]]

    def __iter__(self) -> Iterator[Round]:
        return self.rounds()

    def __str__(self) -> str:
        ranks, chunks = counted(self.p, "rank"), counted(self.chunks, "chunk")
        lines = [f"{self.name} ({self.collective}): {ranks}, {chunks}"]
        return "\n".join(lines + [f"round {number}: {round_}" for number, round_ in enumerate(self, start=1)])


RoundGenerator = Callable[..., Iterator[Round]]


def collective(
    name: CollectiveName, chunks: Callable[..., int] = lambda p: p
) -> Callable[[RoundGenerator], Callable[..., Schedule]]:
    """Turn a generator of rounds, whose first argument is p, into a function that returns a Schedule.

    `chunks` returns, from the same arguments, the number of chunks of the array: by default, one per rank.
    """

    def decorate(generate: RoundGenerator) -> Callable[..., Schedule]:
        @cache  # one object per p, so that whatever is derived from a schedule can be cached under it
        @wraps(generate)
        def schedule(p: int, *arguments: object) -> Schedule:
            if p < 1:
                raise ValueError(f"expected at least one rank, got p = {p}")
            return Schedule(
                generate.__name__, name, p, chunks(p, *arguments), lambda: generate(p, *arguments)
            )

        return schedule

    return decorate


def chunk_bounds(n: int, chunks: int) -> np.ndarray:
    """Return the bounds of n values cut into chunks that are as equal as possible.

    Chunk i consists of the values bounds[i] … bounds[i+1]-1; if there are fewer values than chunks, some
    chunks are empty. Result: (chunks + 1,), int64.
    """
    return np.arange(chunks + 1) * n // chunks
