"""What a collective is: rounds of transfers between ranks.

The array is cut into pieces. In a round, some ranks send some of their pieces to others, which add them to
their own or put them in their place; all send what they held before the round. A schedule says all that for
p ranks and any number of values, and knows nothing of MPI: it can be printed, checked, counted, priced,
simulated, drawn and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np

# What the ranks hold before and after: "allreduce", say, starts with values of its own on every rank and
# ends with all sums on every rank. The verifier knows what each one means.
Kind = Literal["allreduce", "reduce", "reduce-scatter", "allgather", "broadcast"]


class Transfer(NamedTuple):
    """One message: `source` sends its pieces first … stop-1 to `dest`, which adds or else copies them."""

    source: int
    dest: int
    first: int
    stop: int
    add: bool

    def __str__(self) -> str:
        """Return "0→1 +2" for rank 0's piece 2 added on rank 1, "0→1 =2" for one put in place there."""
        chunks = str(self.first) if self.stop == self.first + 1 else f"{self.first}–{self.stop - 1}"
        return f"{self.source}→{self.dest} {'+' if self.add else '='}{chunks}"


@dataclass(frozen=True, eq=False)
class Round:
    """Transfers made at the same time, each sending what its source held before the round.

    Shapes: all (transfers,), integers, `add` bool; arrays, because the ring on 4,096 ranks has 33 million
    transfers. Iterating yields them one by one.
    """

    source: np.ndarray
    dest: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    add: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        columns = self.source, self.dest, self.first, self.stop, self.add
        return map(Transfer, *(column.tolist() for column in columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Round) and sorted(self) == sorted(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __str__(self) -> str:
        return "  ".join(map(str, self))


Ints = int | np.ndarray


def adding(source: Ints, dest: Ints, first: Ints, stop: Ints | None = None) -> Round:
    """Return a round in which every dest adds pieces first … stop-1 of its source to its own.

    Integers or arrays of them, which are broadcast; without `stop` it is one piece each.
    """
    return _round(source, dest, first, stop, True)


def copying(source: Ints, dest: Ints, first: Ints, stop: Ints | None = None) -> Round:
    """Return a round in which every dest puts pieces first … stop-1 of its source in place of its own."""
    return _round(source, dest, first, stop, False)


def _round(source: Ints, dest: Ints, first: Ints, stop: Ints | None, add: bool) -> Round:
    stop = np.asarray(first) + 1 if stop is None else stop
    source, dest, first, stop = np.broadcast_arrays(np.atleast_1d(source), dest, first, stop)
    return Round(source, dest, first, stop, np.full(source.shape, add))


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective on `p` ranks of an array cut into `pieces`; iterating yields its rounds.

    The rounds are made anew each time, by the function that `collective` decorates: a schedule for thousands
    of ranks takes no memory. Two schedules are equal if their rounds are.
    """

    name: str
    kind: Kind
    p: int
    chunks: int
    rounds: Callable[[], Iterator[Round]]

    def __iter__(self) -> Iterator[Round]:
        return self.rounds()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        same = (self.kind, self.p, self.chunks) == (other.kind, other.p, other.chunks)
        return same and all(one == two for one, two in zip_longest(self, other))

    def __hash__(self) -> int:
        return hash((self.kind, self.p, self.chunks))

    def __str__(self) -> str:
        ranks, chunks = _count(self.p, "rank"), _count(self.chunks, "piece")
        lines = [f"{self.name} ({self.kind}): {ranks}, {chunks}"]
        return "\n".join(lines + [f"round {number}: {one}" for number, one in enumerate(self, start=1)])


Maker = Callable[..., Iterator[Round]]


def collective(
    kind: Kind, chunks: Callable[..., int] = lambda p: p
) -> Callable[[Maker], Callable[..., Schedule]]:
    """Make a generator of rounds, a function of p first, into a function that returns a Schedule.

    `pieces` says, from the same arguments, into how many pieces the array is cut: as many as ranks, unless
    told otherwise.
    """

    def decorate(make: Maker) -> Callable[..., Schedule]:
        @cache  # so that what is worked out for a schedule once can be looked up by it
        @wraps(make)
        def schedule(p: int, *arguments: object) -> Schedule:
            if p < 1:
                raise ValueError(f"expected at least one rank, got p = {p}")
            return Schedule(make.__name__, kind, p, chunks(p, *arguments), lambda: make(p, *arguments))

        return schedule

    return decorate


def uncut(p: int) -> int:
    """Return 1: for a collective that never cuts the array."""
    return 1


def powers(p: int) -> list[int]:
    """Return the powers of two below p: 1, 2, 4 …"""
    return [1 << k for k in range((p - 1).bit_length())]


def bounds(n: int, chunks: int) -> np.ndarray:
    """Return where n values are cut into pieces as equal as can be. Shape: (pieces + 1,), int64.

    Piece i is the values bounds[i] … bounds[i+1]-1; with fewer values than pieces some are empty.
    """
    return np.arange(chunks + 1) * n // chunks


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
