"""Whether a schedule does what its kind promises: followed contribution by contribution, without a value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import Round, Schedule, Transfer


class ScheduleError(ValueError):
    """A schedule does not do what its kind promises: in which round, which transfer, rank and piece."""


def holdings(schedule: Schedule) -> Iterator[np.ndarray]:
    """Yield who holds what before the first round and after each, of a right schedule or a wrong one.

    Shape of each: (ranks, pieces, ranks), int64: how many times rank r's piece i holds the contribution of
    rank c. All 0: rank r has nothing there yet.
    """
    p = schedule.p
    rank, held = np.arange(p), np.zeros((p, schedule.chunks, p), dtype=np.int64)
    if schedule.kind == "allgather":
        held[rank, rank, rank] = 1
    elif schedule.kind == "broadcast":
        held[0, :, 0] = 1
    else:
        held[rank, :, rank] = 1
    yield held.copy()
    for one in schedule:
        before = held.copy()
        for source, dest, first, stop, add in one:
            if add:
                held[dest, first:stop] += before[source, first:stop]
            else:
                held[dest, first:stop] = before[source, first:stop]
        yield held.copy()


def verify(schedule: Schedule) -> None:
    """Raise ScheduleError unless the schedule does what its kind promises, for every rank and piece.

    allreduce: every rank ends with every rank's contribution exactly once; reduce: rank 0 does;
    reduce-scatter: rank r does in piece r; allgather: starts with piece r on rank r alone, and every rank
    ends with all pieces; broadcast: every rank ends with what rank 0 had. On the way, no rank sends what it
    does not hold yet, adds a contribution that is in already, or destroys the last copy of one.
    """
    if schedule.kind in ("reduce-scatter", "allgather") and schedule.chunks != schedule.p:
        raise ScheduleError(
            f"{schedule.name}: {schedule.kind} has a piece for each of {schedule.p} ranks, got "
            f"{schedule.chunks} pieces"
        )
    steps = holdings(schedule)
    before = next(steps)
    for number, one in enumerate(schedule, start=1):
        try:
            for transfer in one:
                _possible(schedule, transfer, before)
            _in_order(one)
            after = next(steps)
            for transfer in one:
                _harmless(transfer, before, after)
        except ScheduleError as error:
            raise ScheduleError(f"{schedule.name}, {schedule.p} ranks, round {number}: {error}") from None
        before = after
    _complete(schedule, before)


def _possible(schedule: Schedule, transfer: Transfer, before: np.ndarray) -> None:
    """Raise unless ranks and pieces exist and the source holds what it sends."""
    source, dest, first, stop, add = transfer
    for rank in source, dest:
        if not 0 <= rank < schedule.p:
            raise ScheduleError(f"{transfer}: there is no rank {rank}, only 0 … {schedule.p - 1}")
    if source == dest:
        raise ScheduleError(f"{transfer}: rank {source} sends to itself")
    if not 0 <= first < stop <= schedule.chunks:
        raise ScheduleError(
            f"{transfer}: pieces {first} … {stop - 1} are not one or more of 0 … {schedule.chunks - 1}"
        )
    for chunk in range(first, stop):
        if not before[source, chunk].any():
            raise ScheduleError(f"{transfer}: rank {source} sends piece {chunk} before it has it")
        if add and not before[dest, chunk].any():
            raise ScheduleError(f"{transfer}: rank {dest} has no piece {chunk} yet to add to")


def _in_order(one: Round) -> None:
    """Raise if the round's outcome depends on which of its transfers arrives first."""
    writers: dict[tuple[int, int], Transfer] = {}
    for transfer in one:
        for chunk in range(transfer.first, transfer.stop):
            other = writers.setdefault((transfer.dest, chunk), transfer)
            if other is not transfer and not (other.add and transfer.add):
                raise ScheduleError(
                    f"{transfer} and {other} both write piece {chunk} of rank {transfer.dest}, and what is "
                    "left there depends on which arrives first"
                )


def _harmless(transfer: Transfer, before: np.ndarray, after: np.ndarray) -> None:
    """Raise if a contribution is in twice where the transfer wrote, or was there last and is lost."""
    _, dest, first, stop, _ = transfer
    for chunk in range(first, stop):
        twice = np.flatnonzero(after[dest, chunk] > 1)
        if len(twice):
            raise ScheduleError(
                f"{transfer}: rank {dest} adds rank {twice[0]}'s contribution to piece {chunk} a second time"
            )
        lost = np.flatnonzero(before[dest, chunk].astype(bool) & ~after[:, chunk].any(axis=0))
        if len(lost):
            raise ScheduleError(
                f"{transfer}: rank {dest} overwrites piece {chunk}, and nobody else has rank {lost[0]}'s "
                "contribution to it"
            )


def _complete(schedule: Schedule, held: np.ndarray) -> None:
    """Raise unless the ranks hold in the end what the schedule's kind promises."""
    p, chunks = schedule.p, schedule.chunks
    everyone = list(range(p))
    for rank in [0] if schedule.kind == "reduce" else everyone:
        for chunk in [rank] if schedule.kind == "reduce-scatter" else range(chunks):
            due = {"allgather": [chunk], "broadcast": [0]}.get(schedule.kind, everyone)
            has = np.flatnonzero(held[rank, chunk]).tolist()
            if has != due:
                raise ScheduleError(
                    f"{schedule.name}, {p} ranks, after the last round: rank {rank}'s piece {chunk} should "
                    f"hold {_of(due)} and holds {_of(has)}"
                )


def _of(ranks: list[int]) -> str:
    if not ranks:
        return "nothing"
    return f"the contribution{'s' * (len(ranks) > 1)} of {', '.join(f'rank {rank}' for rank in ranks)}"
