"""What every rank is doing, read from the flight recorder and the ranks' stacks, and its publication."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from time import monotonic, sleep

from mpiwatch.opcodes import DTYPE_NAMES, OPERATION_NAMES, REDUCTIONS, UNKNOWN
from mpiwatch.recorder import (
    EPOCH_SHIFT,
    HISTORY_CALLS,
    NO_RENDEZVOUS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    PLACE_BYTES,
    Call,
    CellState,
    Death,
    FlightRecorder,
    ReportRequest,
    Slot,
    WaitingIn,
    fit,
    read_members,
    write_request,
)
from mpiwatch.report import Activity, CallRecord, MessageRecord, Mismatch, RankState, Reason, Report
from mpiwatch.source import request_stack, student_line

FRESH_S = 2.0  # an older sample proves nothing: the rank may compute in C code that blocks its other threads
EPOCH_MASK = (1 << (64 - EPOCH_SHIFT)) - 1

POLL_S = 0.01


def mismatch(one: Call | CallRecord, other: Call | CallRecord) -> Mismatch | None:
    """Return in what two calls differ that should be the same; None if they fit together."""
    if one.operation != other.operation:
        return Mismatch.OPERATION
    for field in (Mismatch.ROOT, Mismatch.COUNT, Mismatch.DTYPE, Mismatch.REDUCTION):
        first, second = (getattr(call, field.name.lower()) for call in (one, other))
        if first != second and not {first, second} & {UNKNOWN, None}:
            return field
    return None


def take_snapshot(
    recorder: FlightRecorder,
    why: Reason | Mismatch,
    deadline_s: float,
    members: Collection[int],
    reporter: int | None,
    *,
    observed: Mapping[int, RankState] | None = None,
) -> Report:
    """Return a report of what the ranks are doing; the caller holds the recorder's lock.

    The report shows the `members` and all ranks that wait. It is about the collective that `reporter` is
    waiting in, or that any rank is waiting in if `reporter` is None. `observed`: what ranks of other machines
    are doing, by rank, as those machines have seen it.
    """
    known = observed or {}
    ranks = [known.get(rank) or observe(recorder, rank) for rank in range(recorder.size)]
    ranks = _share_places(_count_from_cell_start(recorder, ranks))
    if isinstance(why, Mismatch) and reporter is not None and (calls := ranks[reporter].calls):
        ranks = [_as_called(rank, calls[-1].communicator, calls[-1].number) for rank in ranks]
    waiting = [rank for rank in ranks if _is_waiting(rank)]
    shown = [rank for rank in ranks if rank.rank in members or rank in waiting or rank.message is not None]
    of_all = reporter is None or why in (Reason.DEADLOCK, Reason.RANK_DIED)
    subjects = [rank for rank in waiting if of_all or rank.rank == reporter]
    report = Report(
        reason=Reason.MISMATCH if isinstance(why, Mismatch) else why,
        deadline_s=deadline_s,
        ranks=tuple(shown),
        communicator=subjects[0].calls[-1].communicator if subjects else None,
        reporter=reporter,
        mismatch=why if isinstance(why, Mismatch) else None,
        world_size=recorder.size,
        members=tuple(members),
    )
    return _with_difference(recorder, report) if report.is_without_rendezvous else report


def _is_waiting(rank: RankState) -> bool:
    """Return whether a rank is waiting in a collective, which is then the last of its calls."""
    return rank.activity is Activity.WAITING_IN_COLLECTIVE


def _with_difference(recorder: FlightRecorder, report: Report) -> Report:
    """Return the report with its communicator's members and with the mismatch of their calls, if any."""
    here = next(rank.rank for rank in report.ranks if report.is_waiting_here(rank))
    members = read_members(recorder.slots[here], recorder.size)
    shown = [rank for rank in report.ranks if rank.rank in members or rank.message or rank.mpi_call]
    report = replace(report, ranks=tuple(shown), members=tuple(members))
    calls = filter(None, map(report.joined_call, report.ranks))
    different = dict.fromkeys(replace(call, file="", line=0) for call in calls)
    found = filter(None, (mismatch(one, other) for one, other in combinations(different, 2)))
    return replace(report, mismatch=next(found, None))


def observe(recorder: FlightRecorder, rank: int) -> RankState:
    """Return what a rank is doing; a rank of another machine cannot be asked at which line it is."""
    slot = recorder.slots[rank]
    calls = tuple(_record(call) for call in recorder.last_calls(rank))
    seen = RankState(rank, Activity.DEAD, calls=calls, host=_text(slot.host))
    if not recorder.is_alive(rank):
        return _gone(recorder, slot, seen)
    if (waiting := _waiting(recorder, slot, seen)) is not None:
        return waiting
    if slot.cell_state != CellState.RUNNING:
        return _ended(recorder, slot, seen)
    if is_in_mpi_call(slot, monotonic()):
        return replace(
            seen, activity=Activity.IN_MPI_CALL, mpi_call=_text(slot.mpi_call), place=_text(slot.place)
        )
    if slot.machine != recorder.head.machine:
        return replace(seen, activity=Activity.RUNNING)
    frames = request_stack(slot.pid, recorder.stacks) if slot.writes_stack else []
    activity = Activity.RUNNING if frames else Activity.UNRESPONSIVE
    return replace(seen, activity=activity, place=_text(fit(student_line(frames), PLACE_BYTES)))


def _gone(recorder: FlightRecorder, slot: Slot, seen: RankState) -> RankState:
    """Return how a rank's process has ended."""
    if slot.has_died == Death.UNREACHABLE:
        return replace(seen, activity=Activity.UNREACHABLE)
    if slot.has_died:
        return replace(seen, error=_text(slot.error), place=_text(slot.place))
    return _ended(recorder, slot, seen) if slot.has_exited else seen


def is_in_mpi_call(slot: Slot, now_s: float) -> bool:
    """Return whether a rank's watchdog has seen it inside an MPI call, and is still sampling."""
    return bool(slot.mpi_call_since_s) and now_s - slot.sampled_s < FRESH_S


def _ended(recorder: FlightRecorder, slot: Slot, seen: RankState) -> RankState:
    """Return how a rank ended its program or its last cell."""
    if slot.cell_state == CellState.EXITED:
        return replace(seen, activity=Activity.EXITED)
    if _lags(recorder, slot):
        return replace(seen, activity=Activity.NOT_STARTED)
    if slot.cell_state == CellState.RAISED:
        return replace(seen, activity=Activity.RAISED, error=_text(slot.error))
    return replace(seen, activity=Activity.RETURNED)


def _waiting(recorder: FlightRecorder, slot: Slot, seen: RankState) -> RankState | None:
    """Return what a rank is waiting in, if it is waiting."""
    if slot.waiting_in == WaitingIn.MESSAGE:
        message = MessageRecord(
            OPERATION_NAMES[slot.message_operation],
            peer=slot.message_peer if slot.message_peer >= 0 else None,
            tag=slot.message_tag if slot.message_tag >= 0 else None,
            purpose=_text(slot.message_purpose),
            origin=_text(slot.message_origin),
            polls=slot.message_polls,
        )
        return replace(seen, activity=Activity.WAITING_FOR_MESSAGE, place=_text(slot.place), message=message)
    if not seen.calls:
        return None
    last = seen.calls[-1]
    if slot.waiting_in == WaitingIn.COLLECTIVE:
        place = _text(slot.place)
    elif slot.joined_word == NO_RENDEZVOUS:
        name = _text(slot.mpi_call)
        is_inside = is_in_mpi_call(slot, monotonic()) and slot.cell_state == CellState.RUNNING
        if not is_inside or name != last.operation:
            return None
        seen, place = replace(seen, mpi_call=name), _text(slot.place)
    elif slot.cell_state == CellState.RUNNING and _has_just_called(recorder, slot):
        place = _line(last)
    else:
        return None
    return replace(seen, activity=Activity.WAITING_IN_COLLECTIVE, place=place)


def _count_from_cell_start(recorder: FlightRecorder, ranks: list[RankState]) -> list[RankState]:
    """Number the world's collectives from the start of the cell, if all ranks agree on where that was.

    Drop the world's collectives of earlier cells, except one that a rank is waiting in.
    """
    started = [rank for rank in ranks if rank.activity is not Activity.NOT_STARTED] or ranks
    before = {recorder.slots[rank.rank].calls_before_cell for rank in started}
    if len(before) > 1:
        return ranks
    first = before.pop()

    def renumbered(rank: RankState) -> Iterator[CallRecord]:
        for call in rank.calls:
            if call.communicator == 0 and call.number > first:
                yield replace(call, number=call.number - first)
            elif call.communicator != 0 or (call is rank.calls[-1] and _is_waiting(rank)):
                yield call

    return [replace(rank, calls=tuple(renumbered(rank))) for rank in ranks]


def _share_places(ranks: list[RankState]) -> list[RankState]:
    """Give ranks in the same call the same place: a rank that has just called it has noted only the line."""
    places: dict[CallRecord, str] = {}
    for rank in ranks:
        if _is_waiting(rank):
            places[rank.calls[-1]] = max(places.get(rank.calls[-1], ""), rank.place, key=len)
    return [replace(rank, place=places[rank.calls[-1]]) if _is_waiting(rank) else rank for rank in ranks]


def _lags(recorder: FlightRecorder, slot: Slot) -> bool:
    """Tell whether other ranks have started a cell since this rank ended its last one."""
    running = [other for other in recorder.slots if other.cell_state == CellState.RUNNING]
    return bool(running) and all(
        other.cells_started > slot.cells_started and other.cell_state_since_s > slot.cell_state_since_s
        for other in running
    )


def _as_called(rank: RankState, row: int, number: int) -> RankState:
    """Return the state of a rank as of when it made a call of a row, if it has made that call."""
    # A call of a communicator that was freed may have the same row and number: the last one counts.
    places = [i for i, call in enumerate(rank.calls) if (call.communicator, call.number) == (row, number)]
    if not places:
        return rank
    call, later = rank.calls[places[-1]], rank.calls[places[-1] + 1 :]
    waiting = replace(rank, activity=Activity.WAITING_IN_COLLECTIVE)
    if later:
        calls = rank.calls[: places[-1] + 1]
        return replace(waiting, calls=calls, place=_line(call), message=None)
    if rank.activity in (Activity.RUNNING, Activity.IN_MPI_CALL):
        return replace(waiting, place=rank.place or _line(call))
    return rank


def _line(call: CallRecord) -> str:
    return f"{call.file} line {call.line}"


def _has_just_called(recorder: FlightRecorder, slot: Slot) -> bool:
    """Tell whether a rank is in its last collective, but too recently to have noted that it waits."""
    number = slot.history[(slot.calls_noted - 1) % HISTORY_CALLS].number
    this_epoch = number >> (EPOCH_SHIFT - NUMBER_SHIFT) == recorder.head.epoch & EPOCH_MASK
    return bool(this_epoch and slot.joined_word >> NUMBER_SHIFT != number)


def _record(call: Call) -> CallRecord:
    return CallRecord(
        communicator=call.row,
        number=call.number & NUMBER_MASK,
        operation=_text(call.schedule) or OPERATION_NAMES[call.operation],
        root=None if call.root == UNKNOWN else call.root,
        count=None if call.count == UNKNOWN else call.count,
        dtype=None if call.dtype == UNKNOWN else DTYPE_NAMES[call.dtype],
        reduction=None if call.reduction == UNKNOWN else REDUCTIONS[call.reduction],
        file=_text(call.file),
        line=call.line,
    )


def _text(field: bytes) -> str:
    return field.decode(errors="replace")  # the rank may be writing the field at this moment


def publish(  # noqa: PLR0917
    recorder: FlightRecorder,
    rank: int,
    epoch: int,
    request: ReportRequest,
    progress: Callable[[], object],
    patience_s: float = float("inf"),
) -> None:
    """Publish a report in this epoch, unless another rank does so first.

    The hub answers late if rank 0 runs code that blocks other threads. Give up after `patience_s`.
    `progress` lets MPI move messages.
    """
    deadline = monotonic() + patience_s
    if recorder.head.hub:
        write_request(recorder.slots[rank], epoch, request)
    while recorder.head.hub and recorder.head.epoch == epoch and monotonic() < deadline:
        progress()
        sleep(POLL_S)
    if not recorder.head.hub:
        with recorder.locked():
            if recorder.head.epoch == epoch:
                recorder.publish(take_snapshot(recorder, *request))
