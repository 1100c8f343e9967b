"""Check that a schedule computes its collective, by following every rank's input without any values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.schedules.schedule import Round, Schedule, Transfer


class ScheduleError(ValueError):
    """A schedule does not compute its collective; the message names the round, transfer, rank and chunk."""


def contents_by_round(schedule: Schedule) -> Iterator[np.ndarray]:
    """Yield what every rank holds before the first round and after each round, whether right or wrong.

    Element [r, i, c] of each array counts how many times rank c's input is in the sum that rank r holds in
    chunk i; all zeros mean that rank r holds nothing there yet. Shape of each: (ranks, chunks, ranks), int64.
    """
    p = schedule.p
    rank, held = np.arange(p), np.zeros((p, schedule.chunks, p), dtype=np.int64)
    if schedule.collective == "allgather":
        held[rank, rank, rank] = 1
    elif schedule.collective == "broadcast":
        held[0, :, 0] = 1
    else:
        held[rank, :, rank] = 1
    yield held.copy()
    for round_ in schedule:
        before = held.copy()
        for source, dest, first, stop, reduce in round_:
            if reduce:
                held[dest, first:stop] += before[source, first:stop]
            else:
                held[dest, first:stop] = before[source, first:stop]
        yield held.copy()


def verify(schedule: Schedule) -> None:
    """Raise ScheduleError unless the schedule computes its collective, for every rank and chunk.

    allreduce: every rank ends with every rank's input exactly once; reduce: rank 0 does; reduce-scatter: rank
    r does in chunk r; allgather: chunk r starts on rank r alone, and every rank ends with all chunks;
    broadcast: every rank ends with rank 0's input. On the way, no rank may send a chunk that it does not hold
    yet, add an input that is already in the sum, or overwrite the last copy of an input.
    """
    if schedule.collective in ("reduce-scatter", "allgather") and schedule.chunks != schedule.p:
        raise ScheduleError(
            f"{schedule.name}: {schedule.collective} on {schedule.p} ranks needs one chunk per rank, got "
            f"{schedule.chunks} chunks"
        )
    contents = contents_by_round(schedule)
    before = next(contents)
    for number, round_ in enumerate(schedule, start=1):
        try:
            for transfer in round_:
                _check_possible(schedule, transfer, before)
            _check_unambiguous(round_)
            after = next(contents)
            for transfer in round_:
                _check_harmless(transfer, before, after)
        except ScheduleError as error:
            raise ScheduleError(f"{schedule.name}, {schedule.p} ranks, round {number}: {error}") from None
        before = after
    _check_complete(schedule, before)


def _check_possible(schedule: Schedule, transfer: Transfer, before: np.ndarray) -> None:
    """Raise ScheduleError unless ranks and chunks exist and the source holds what it sends."""
    source, dest, first, stop, reduce = transfer
    for rank in source, dest:
        if not 0 <= rank < schedule.p:
            raise ScheduleError(f"{transfer}: there is no rank {rank}, expected 0 … {schedule.p - 1}")
    if source == dest:
        raise ScheduleError(f"{transfer}: rank {source} sends to itself")
    if not 0 <= first < stop <= schedule.chunks:
        raise ScheduleError(
            f"{transfer}: expected one or more of the chunks 0 … {schedule.chunks - 1}, "
            f"got {first} … {stop - 1}"
        )
    for chunk in range(first, stop):
        if not before[source, chunk].any():
            raise ScheduleError(f"{transfer}: rank {source} sends chunk {chunk} before it holds it")
        if reduce and not before[dest, chunk].any():
            raise ScheduleError(f"{transfer}: rank {dest} has no chunk {chunk} yet to add to")


def _check_unambiguous(round_: Round) -> None:
    """Raise ScheduleError if the result of the round depends on which transfer arrives first."""
    writers: dict[tuple[int, int], Transfer] = {}
    for transfer in round_:
        for chunk in range(transfer.first, transfer.stop):
            other = writers.setdefault((transfer.dest, chunk), transfer)
            if other is not transfer and not (other.reduce and transfer.reduce):
                raise ScheduleError(
                    f"{transfer} and {other} both write chunk {chunk} of rank {transfer.dest}, so the result "
                    "depends on which arrives first"
                )


def _check_harmless(transfer: Transfer, before: np.ndarray, after: np.ndarray) -> None:
    """Raise ScheduleError if the transfer adds an input a second time or overwrites its last copy."""
    _, dest, first, stop, _ = transfer
    for chunk in range(first, stop):
        twice = np.flatnonzero(after[dest, chunk] > 1)
        if len(twice):
            raise ScheduleError(
                f"{transfer}: rank {dest} adds rank {twice[0]}'s input to chunk {chunk} a second time"
            )
        lost = np.flatnonzero(before[dest, chunk].astype(bool) & ~after[:, chunk].any(axis=0))
        if len(lost):
            raise ScheduleError(
                f"{transfer}: rank {dest} overwrites chunk {chunk}, "
                f"the last copy of rank {lost[0]}'s input to it"
            )


def _check_complete(schedule: Schedule, held: np.ndarray) -> None:
    """Raise ScheduleError unless the ranks end with what the collective promises."""
    p, chunks = schedule.p, schedule.chunks
    everyone = list(range(p))
    for rank in [0] if schedule.collective == "reduce" else everyone:
        for chunk in [rank] if schedule.collective == "reduce-scatter" else range(chunks):
            expected = {"allgather": [chunk], "broadcast": [0]}.get(schedule.collective, everyone)
            got = np.flatnonzero(held[rank, chunk]).tolist()
            if got != expected:
                raise ScheduleError(
                    f"{schedule.name}, {p} ranks, after the last round: rank {rank}'s chunk {chunk} should "
                    f"hold {_inputs_of(expected)} but holds {_inputs_of(got)}"
                )


def _inputs_of(ranks: list[int]) -> str:
    if not ranks:
        return "nothing"
    inputs = "the inputs" if len(ranks) > 1 else "the input"
    return f"{inputs} of {', '.join(f'rank {rank}' for rank in ranks)}"
