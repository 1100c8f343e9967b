"""What every rank is doing, at which line, and whether the ranks can ever go on.

It is read from the flight recorder alone: the watchdog of each rank notes at which line its program is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from time import monotonic, sleep
from typing import NamedTuple

from mpiwatch.recorder import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    HISTORY_CALLS,
    NO_RENDEZVOUS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    Call,
    CellState,
    Death,
    FlightRecorder,
    ReportRequest,
    Slot,
    WaitingIn,
    read_members,
    write_request,
)
from mpiwatch.report import (
    SENDS,
    UNKNOWN,
    Activity,
    CallRecord,
    MessageRecord,
    Mismatch,
    RankState,
    Reason,
    Report,
    numbered_line,
    ranks_in_short,
)

SAMPLED_S = 1.0  # for the watchdogs to sample all ranks anew, which takes a quarter of a second


# What the ranks are doing

FRESH_S = 2.0  # an older sample proves nothing: the rank may compute in C code that blocks its other threads

POLL_S = 0.01
HUB_S = 30.0  # for the hub to make a report


def mismatch(one: Call | CallRecord, other: Call | CallRecord) -> Mismatch | None:
    """Return in what two calls differ that should be the same; None if they fit together."""
    for field in Mismatch:
        first, second = (getattr(call, field.name.lower()) for call in (one, other))
        if first != second and not {first, second} & {UNKNOWN, b"", None}:
            return field
    return None


def take_snapshot(
    recorder: FlightRecorder,
    why: Reason | Mismatch,
    deadline_s: float,
    members: Collection[int],
    reporter: int | None,
    *,
    age_s: float = 0.0,
) -> Report:
    """Return a report of what the ranks are doing.

    The report shows the `members` and all ranks that wait. It is about the collective that `reporter` is
    waiting in, or that any rank is waiting in if `reporter` is None. `age_s`: how old the lines of running
    ranks may be; if they are older, wait for the watchdogs.
    """
    since_s = monotonic() - age_s
    while monotonic() < since_s + SAMPLED_S and any(
        _is_running(recorder, rank) and recorder.slots[rank].sampled_s < since_s
        for rank in range(recorder.size)
    ):
        sleep(POLL_S)
    ranks = [_observe(recorder, rank, since_s) for rank in range(recorder.size)]
    ranks = _count_from_cell_start(recorder, ranks)
    calls = ranks[reporter].calls if isinstance(why, Mismatch) and reporter is not None else ()
    if calls:
        ranks = [_as_called(recorder.slots[rank.rank], rank, calls[-1]) for rank in ranks]
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
    differences = filter(None, (mismatch(one, other) for one, other in combinations(different, 2)))
    return replace(report, mismatch=next(differences, None))


def _is_running(recorder: FlightRecorder, rank: int) -> bool:
    """Return whether a rank of this machine is alive and, as far as it has noted, runs code of its own."""
    slot = recorder.slots[rank]
    is_elsewhere = slot.machine != recorder.head.machine or slot.cell_state != CellState.RUNNING
    is_waiting = slot.waiting_in != WaitingIn.NOTHING or is_in_mpi_call(slot, monotonic())
    return not (is_elsewhere or is_waiting) and recorder.is_alive(rank)


def _observe(recorder: FlightRecorder, rank: int, since_s: float) -> RankState:
    """Return what a rank is doing; its line, if it runs, was sampled after `since_s` or not long before."""
    slot = recorder.slots[rank]
    calls = tuple(_record(recorder, call) for call in recorder.last_calls(rank))
    caught = _text(slot.failed_call) if slot.cell_state != CellState.RAISED else ""
    seen = RankState(rank, Activity.DEAD, calls=calls, host=_text(slot.host), failed_call=caught)
    noted = replace(seen, place=_text(slot.place))
    if slot.has_died == Death.UNREACHABLE:
        return replace(seen, activity=Activity.UNREACHABLE)
    if slot.has_died:
        code = slot.exit_code if slot.has_exited else None
        return replace(noted, error=_text(slot.error), exit_code=code)
    if not recorder.is_alive(rank):
        return _ended(recorder, slot, seen) if slot.has_exited else seen
    return _observe_alive(recorder, slot, seen, since_s)


def _observe_alive(recorder: FlightRecorder, slot: Slot, seen: RankState, since_s: float) -> RankState:
    """Return what a rank is doing whose process is alive; `seen`: what is known of it without its state."""
    noted = replace(seen, place=_text(slot.place))
    waiting = _waiting(recorder, slot, noted)
    if waiting is not None:
        return waiting
    if slot.cell_state != CellState.RUNNING:
        return _ended(recorder, slot, seen)
    if is_in_mpi_call(slot, monotonic()):
        call, can_leave = _text(slot.mpi_call), bool(slot.can_leave)
        return replace(noted, activity=Activity.IN_MPI_CALL, mpi_call=call, can_leave=can_leave)
    # A rank may have left a wait a moment ago. The notes of a rank on another machine arrive later.
    limit_s = SAMPLED_S if slot.machine == recorder.head.machine else FRESH_S
    has_answered = slot.sampled_s >= since_s or monotonic() - slot.sampled_s < limit_s
    activity = Activity.RUNNING if has_answered else Activity.UNRESPONSIVE
    return replace(seen, activity=activity, place=_text(slot.running_at))


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
        error, error_type = _text(slot.error), _text(slot.error_type)
        return replace(seen, activity=Activity.RAISED, error=error, error_type=error_type)
    return replace(seen, activity=Activity.RETURNED)


def _waiting(recorder: FlightRecorder, slot: Slot, noted: RankState) -> RankState | None:
    """Return what a rank is waiting in, if it is waiting; `noted`: at the line that it has noted."""
    if slot.waiting_in == WaitingIn.MESSAGE:
        message = MessageRecord(
            _text(slot.message_operation),
            peer=slot.message_peer if slot.message_peer >= 0 else None,
            tag=slot.message_tag if slot.message_tag >= 0 else None,
            purpose=_text(slot.message_purpose),
            origin=_text(slot.message_origin),
            polls=slot.message_polls,
            rival=_text(slot.message_rival),
        )
        return replace(noted, activity=Activity.WAITING_FOR_MESSAGE, message=message)
    if not noted.calls:
        return None
    last, waiting = noted.calls[-1], replace(noted, activity=Activity.WAITING_IN_COLLECTIVE)
    is_running, call = slot.cell_state == CellState.RUNNING, _text(slot.mpi_call)
    if slot.waiting_in == WaitingIn.COLLECTIVE:
        return waiting
    if slot.joined_word == NO_RENDEZVOUS:
        is_inside = is_running and is_in_mpi_call(slot, monotonic()) and call == last.operation
        return replace(waiting, mpi_call=call) if is_inside else None
    if is_running and _has_just_called(recorder, slot):
        return replace(waiting, place=_running_place(slot, last))
    return None


def _count_from_cell_start(recorder: FlightRecorder, ranks: list[RankState]) -> list[RankState]:
    """Number the world's collectives from the start of the cell, if all ranks agree on where that was.

    Drop the world's collectives of earlier cells, except one that a rank is waiting in. Those of another
    communicator are numbered from its making.
    """
    started = [rank for rank in ranks if rank.activity is not Activity.NOT_STARTED] or ranks
    before = {recorder.slots[rank.rank].calls_before_cell for rank in started}
    first = before.pop() if len(before) == 1 else None

    def renumbered(rank: RankState) -> Iterator[CallRecord]:
        for call in rank.calls:
            if call.communicator != 0:
                made_at = recorder.rows[call.communicator].first_number
                if call.number > made_at:  # not of a communicator that had this row before
                    yield replace(call, number=call.number - made_at)
            elif first is None:
                yield call
            elif call.number > first:
                yield replace(call, number=call.number - first)
            elif call is rank.calls[-1] and _is_waiting(rank):
                yield call

    return [replace(rank, calls=tuple(renumbered(rank))) for rank in ranks]


def _lags(recorder: FlightRecorder, slot: Slot) -> bool:
    """Tell whether other ranks have started a cell since this rank ended its last one."""
    running = [other for other in recorder.slots if other.cell_state == CellState.RUNNING]
    return bool(running) and all(
        other.cells_started > slot.cells_started and other.cell_state_since_s > slot.cell_state_since_s
        for other in running
    )


def _as_called(slot: Slot, rank: RankState, of_all: CallRecord) -> RankState:
    """Return the state of a rank as of when it made its part of a call, if it has made it."""
    # A call of a communicator that was freed may have the same row and number: the last one counts.
    about = of_all.communicator, of_all.number
    places = [i for i, call in enumerate(rank.calls) if (call.communicator, call.number) == about]
    if not places:
        return rank
    call, later = rank.calls[places[-1]], rank.calls[places[-1] + 1 :]
    waiting = replace(rank, activity=Activity.WAITING_IN_COLLECTIVE)
    if later:
        calls = rank.calls[: places[-1] + 1]
        return replace(waiting, calls=calls, place=_line(call), message=None)
    if rank.activity is Activity.RUNNING:
        return replace(waiting, place=_running_place(slot, call))
    if rank.activity is Activity.IN_MPI_CALL:
        is_older = _text(slot.place_label) == call.file and slot.place_line != call.line
        return replace(waiting, place=_line(call) if is_older else rank.place or _line(call))
    return rank


def _running_place(slot: Slot, call: CallRecord) -> str:
    """Return the line at which a rank makes a call, which may have begun since its line was sampled."""
    is_older = _text(slot.running_label) == call.file and slot.running_line != call.line
    return _line(call) if is_older else _text(slot.running_at) or _line(call)


def _line(call: CallRecord) -> str:
    return numbered_line(call.file, call.line)


def _has_just_called(recorder: FlightRecorder, slot: Slot) -> bool:
    """Tell whether a rank is in its last collective, but too recently to have noted that it waits."""
    number = slot.history[(slot.calls_noted - 1) % HISTORY_CALLS].number
    this_epoch = number >> (EPOCH_SHIFT - NUMBER_SHIFT) == recorder.head.epoch & EPOCH_MASK
    return bool(this_epoch and slot.joined_word >> NUMBER_SHIFT != number)


def _communicator_of(recorder: FlightRecorder, row: int) -> str:
    """Return the members of a communicator and how it was made; empty for the world."""
    if not 0 < row < len(recorder.rows):  # the rank may be writing it at this moment
        return ""
    made_by = _text(recorder.rows[row].made_by)
    members = ranks_in_short(read_members(recorder.rows[row], recorder.size))
    return f"{members} ({made_by})" if made_by else members


def _record(recorder: FlightRecorder, call: Call) -> CallRecord:
    return CallRecord(
        communicator=call.row,
        number=call.number & NUMBER_MASK,
        operation=_text(call.operation),
        root=None if call.root == UNKNOWN else call.root,
        count=None if call.count == UNKNOWN else call.count,
        dtype=_text(call.dtype) or None,
        reduction=_text(call.reduction) or None,
        file=_text(call.file),
        line=call.line,
        on=_communicator_of(recorder, call.row),
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

    The hub answers late if rank 0 runs code that blocks other threads. Give up after `patience_s`; without
    that limit, publish what this machine knows if the hub does not answer for HUB_S. `progress` lets MPI move
    messages.
    """
    deadline = monotonic() + min(patience_s, HUB_S)
    if recorder.head.hub:
        write_request(recorder.slots[rank], epoch, request)
    while recorder.head.hub and recorder.head.epoch == epoch and monotonic() < deadline:
        progress()
        sleep(POLL_S)
    if not recorder.head.hub or patience_s > HUB_S:
        with recorder.locked():
            if recorder.head.epoch == epoch:
                recorder.publish(take_snapshot(recorder, *request))


# Whether they can ever go on: ranks in blocking messages that wait for one another are stuck at once; ranks
# inside MPI calls that are not watched count as stuck after a deadline.

SLOW_DEADLINES = 3  # if all ranks are in the same call, which may only be slow


class Blocked(NamedTuple):
    """The blocking call that a rank waits in, and which messages it has under way besides.

    `peer` is a rank in the world, or -1 for any rank. Only messages of non-blocking calls count as under way.
    """

    peer: int
    sends: bool  # or receives
    has_sends: bool = False
    has_receives: bool = False
    number: int = 0  # counts the rank's waits


def waits(recorder: FlightRecorder) -> dict[int, Blocked]:
    """Return what the ranks wait in that are in a blocking message, by rank."""
    return {
        rank: Blocked(
            slot.message_peer,
            _text(slot.message_operation) in SENDS,
            bool(slot.has_sends),
            bool(slot.has_receives),
            slot.message_number,
        )
        for rank, slot in enumerate(recorder.slots)
        if slot.waiting_in == WaitingIn.MESSAGE and slot.message_number
    }


def stuck_ranks(waiting: Mapping[int, Blocked], size: int) -> set[int]:
    """Return the ranks that can never go on, whatever is done by the ranks that do not wait.

    A rank is stuck if each rank that could end its wait is stuck, and has no message under way that does.
    """
    stuck = set(waiting)
    while True:
        free = set()
        for rank in stuck:
            peer = waiting[rank].peer
            if any(
                _may_end(rank, sender, waiting, stuck) for sender in ((peer,) if peer >= 0 else range(size))
            ):
                free.add(rank)
        if not free:
            return stuck
        stuck -= free


def _may_end(rank: int, peer: int, waiting: Mapping[int, Blocked], stuck: set[int]) -> bool:
    """Tell whether a peer may end a rank's wait, now or later."""
    if peer not in stuck:
        return True
    mine, theirs = waiting[rank], waiting[peer]
    if mine.sends:
        return theirs.has_receives or (not theirs.sends and theirs.peer in (rank, -1))
    return theirs.has_sends or (theirs.sends and theirs.peer == rank)


def closure(rank: int, waiting: Mapping[int, Blocked]) -> list[int]:
    """Return all ranks that a stuck rank waits for, directly or through others, and the rank itself."""
    reached, news = {rank}, [rank]
    while news:
        peer = waiting[news.pop()].peer
        others = {peer} if peer >= 0 else set(waiting)
        news += others - reached
        reached |= others
    return sorted(reached)


def confirmation(rank: int, waiting: Mapping[int, Blocked]) -> int:
    """Return a number for a stuck rank, the ranks that it waits for, and the very waits they are in."""
    key = tuple((other, waiting[other].number) for other in closure(rank, waiting))
    return hash(key) & 0x7FFF_FFFF_FFFF_FFFF  # numbers hash alike in all processes


def stuck_since(recorder: FlightRecorder, now_s: float, deadline_s: float) -> dict[int, tuple[float, float]]:
    """Return since when each unfinished rank has been stuck, and when its watchdog last sampled it.

    Times are in seconds on the clock that all processes share. The result is empty if the ranks may go on:
    not all of them have been stuck for `deadline_s`, or none is inside MPI, since a watched call ends by
    itself. If all ranks are in the same call at the same line, it must be SLOW_DEADLINES times as long.
    """
    since: dict[int, tuple[float, float]] = {}
    calls = set()
    for rank, slot in enumerate(recorder.slots):
        if slot.cell_state != CellState.RUNNING or not recorder.is_alive(rank):
            continue
        sampled_s, is_inside = slot.sampled_s, not slot.waiting_since_s
        since_s = slot.mpi_call_since_s if is_inside else slot.waiting_since_s
        if not since_s or now_s - sampled_s >= FRESH_S:
            return {}
        calls.add((slot.mpi_call, slot.place) if is_inside else ())
        since[rank] = since_s, sampled_s
    in_same_call = len(since) == recorder.size and len(calls) == 1
    least_s = deadline_s * (SLOW_DEADLINES if in_same_call else 1)
    is_deadlock = any(calls) and all(now_s - since_s > least_s for since_s, _ in since.values())
    return since if is_deadlock else {}


class Suspicion:
    """Finds a deadlock if two looks, one after the other, show all ranks stuck."""

    def __init__(self, recorder: FlightRecorder) -> None:
        self.recorder = recorder
        # Since when each rank has been stuck, and when that was seen.
        self.suspected: tuple[dict[int, float], float] = ({}, 0.0)

    def is_certain(self, now_s: float, deadline_s: float) -> bool:
        """Return whether the ranks are in a deadlock."""
        stuck = stuck_since(self.recorder, now_s, deadline_s)
        since = {rank: since_s for rank, (since_s, _) in stuck.items()}
        if self.suspected[0] != since:
            self.suspected = since, now_s
        return bool(stuck) and all(sampled_s > self.suspected[1] for _, sampled_s in stuck.values())
