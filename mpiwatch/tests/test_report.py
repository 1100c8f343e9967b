"""A hang report as data, text and table, made from what a flight recorder holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs import thorough
from mpiwatch import packages
from mpiwatch.places import place_in
from mpiwatch.recorder import HISTORY_CALLS, Call, CellState, Death, FlightRecorder, Slot, WaitingIn
from mpiwatch.report import (
    Activity,
    CallRecord,
    Entry,
    MessageRecord,
    Mismatch,
    RankState,
    Reason,
    Report,
    Status,
    advice,
    rank_lines,
    render,
    table,
    title,
)
from mpiwatch.snapshot import mismatch, take_snapshot

FLOAT32, SUM = b"float32", b"SUM"
LINES = [
    "comm.allreduce(mask | other)",
    "x = 1 | 2; time.sleep(100)",
    """print('single', "double", f"{x!r:>{width}}", "%s %(name)d" % {})""",
    "comm.bcast('\\n\\t\\\\')",
    "größe = 'é' + '漢字' + '🙂'; print(größe)  # ✓ – · “quoted”",
    "plt.title('$x_1 | x_2$')",
    "",
]
OTHER_REASONS = [reason for reason in Reason if reason not in (Reason.INTERRUPTED, Reason.TIMED_OUT)]


def note(recorder: FlightRecorder, rank: int, number: int, operation: str, **details: int | bytes) -> None:
    """Note a call of a collective, as `meet` does."""
    slot = recorder.slots[rank]
    known: dict[str, int | bytes] = {"root": -1, "count": -1, "line": 3 + number, **details}
    slot.history[slot.calls_noted % HISTORY_CALLS] = Call(
        number=number, row=0, operation=operation.encode(), file=b"cell", **known
    )
    slot.calls_noted += 1


def rank_1_raised(recorder: FlightRecorder) -> Report:
    """Return the report when rank 1 of three raised between the first and the second collective."""
    for rank, slot in enumerate(recorder.slots):
        note(recorder, rank, 1, "Bcast", count=10, dtype=FLOAT32, root=0)
        if rank != 1:
            note(recorder, rank, 2, "Allreduce", count=10, dtype=FLOAT32, reduction=SUM)
            slot.waiting_in = WaitingIn.COLLECTIVE
            slot.place = b"cell line 5: `comm.Allreduce(x, y)`"
    recorder.set_cell_state(1, CellState.RAISED, "ZeroDivisionError: division by zero")
    return take_snapshot(recorder, Reason.RANK_ENDED, 2.0, range(3), 0)


def a_report(*ranks: RankState, reason: Reason = Reason.TIMED_OUT, communicator: int | None = 0) -> Report:
    return Report(reason, 2.0, ranks, communicator, reporter=0)


def a_call(number: int = 1, operation: str = "Barrier") -> CallRecord:
    return CallRecord(0, number, operation, None, None, None, None, "cell", 3)


WAITING_ACTIVITIES = (Activity.WAITING_IN_COLLECTIVE, Activity.WAITING_FOR_MESSAGE)
WAITING = RankState(0, Activity.WAITING_IN_COLLECTIVE, calls=(a_call(),))


def test_the_text_names_the_missing_rank_and_what_it_did(recorder: FlightRecorder) -> None:
    assert render(rank_1_raised(recorder)).splitlines() == [
        "rank 1 never joined collective #2 (Allreduce, 10 float32, SUM).",
        "  ranks 0, 2 are waiting in Allreduce (#2, 10 float32, SUM) at cell line 5: `comm.Allreduce(x, y)`",
        "  rank 1 finished collective #1 (Bcast, cell line 4) but never joined #2: "
        "it raised ZeroDivisionError: division by zero",
        "",
        "          #1 Bcast  #2 Allreduce",
        "  rank 0  ✓         waiting",
        "  rank 1  ✓         – raised",
        "  rank 2  ✓         waiting",
        "",
        "No data has moved and the ranks are ready: fix the cell and run it again.",
    ]


def test_the_table_shows_who_has_called_what(recorder: FlightRecorder) -> None:
    report = rank_1_raised(recorder)
    done, waiting = Entry(Status.DONE, "done"), Entry(Status.WAITING, "waiting")
    assert table(report).columns == ["#1 Bcast", "#2 Allreduce"]
    assert table(report).rows == [
        ("rank 0", [done, waiting]),
        ("rank 1", [done, Entry(Status.ABSENT, "raised")]),
        ("rank 2", [done, waiting]),
    ]


def test_a_rank_that_has_not_started_the_cell_is_not_said_to_have_returned(recorder: FlightRecorder) -> None:
    for rank in range(3):
        recorder.set_cell_state(rank, CellState.RUNNING)
        recorder.set_cell_state(rank, CellState.RETURNED)
    for rank, count in [(0, 10), (2, 11)]:
        recorder.set_cell_state(rank, CellState.RUNNING)
        recorder.slots[rank].calls_before_cell = 6
        recorder.slots[rank].waiting_in = WaitingIn.COLLECTIVE
        note(recorder, rank, 7, "Allreduce", count=count, dtype=FLOAT32)
    report = take_snapshot(recorder, Mismatch.COUNT, 2.0, range(3), 0)
    assert [title(report), *rank_lines(report)] == [
        "Collective mismatch: the ranks called collective #1 with different counts.",
        "  rank 0 is waiting in Allreduce (#1, 10 float32)",
        "  rank 2 is waiting in Allreduce (#1, 11 float32)",
        "  rank 1 never joined #1: it has not started the cell",
    ]
    assert table(report).rows[1:] == [
        ("rank 1", [Entry(Status.ABSENT, "not started")]),
        ("rank 2", [Entry(Status.WAITING, "waiting in Allreduce (11 float32)")]),
    ]


@pytest.mark.parametrize("recorder", [2], indirect=True)
def test_calls_of_earlier_cells_do_not_name_a_column(recorder: FlightRecorder) -> None:
    for rank in range(2):
        note(recorder, rank, 1, "Bcast")
        recorder.set_cell_state(rank, CellState.RUNNING)
        recorder.slots[rank].calls_before_cell = 1
    note(recorder, 1, 2, "Barrier")
    recorder.slots[1].waiting_in = WaitingIn.COLLECTIVE
    recorder.set_cell_state(0, CellState.RETURNED)
    report = take_snapshot(recorder, Reason.RANK_ENDED, 2.0, range(2), 1)
    assert table(report).columns == ["#1 Barrier"]
    assert rank_lines(report)[1] == "  rank 0 never joined #1: it has returned from the cell"


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("activity", list(Activity))
@pytest.mark.parametrize("reason", [Reason.TIMED_OUT, *map(thorough, OTHER_REASONS)])
def test_a_student_line_is_quoted_as_it_is(reason: Reason, activity: Activity, line: str) -> None:
    place = f"cell line 3: `{line}`"
    raised, blocked = activity is Activity.RAISED, activity is Activity.WAITING_FOR_MESSAGE
    rank = RankState(
        1,
        activity,
        place="" if raised else place,
        error=f"ValueError: {line}" if raised else "",
        message=MessageRecord("recv", 0, None) if blocked else None,
        calls=(a_call(),),
    )
    report = a_report(WAITING, rank, replace(rank, rank=2), reason=reason)
    assert Report.from_json(report.to_json()) == report
    runs = Activity.IN_MPI_CALL, Activity.RUNNING, Activity.UNRESPONSIVE
    shows_place = activity in (*WAITING_ACTIVITIES, *runs)
    assert render(report).count(f" at {place}\n") == shows_place
    assert render(report).count(f"raised ValueError: {line}\n") == raised


def test_ranks_that_run_no_cell_have_returned_from_none() -> None:
    report = a_report(RankState(0, Activity.RETURNED), RankState(1, Activity.NOT_STARTED))
    assert rank_lines(report, in_cell=False) == [
        "  rank 0 has returned",
        "  rank 1 has not started",
    ]
    assert rank_lines(report)[0] == "  rank 0 has returned from the cell"


def test_a_library_may_leave_out_the_word_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.advice, "cell", "cell")
    packages.advise(cell="")
    assert place_in([("<ipython-input-1>", 4)]) == "line 4"


def test_a_report_of_an_interrupted_rank() -> None:
    report = Report(Reason.INTERRUPTED, 0.0, reporter=2)
    assert Report.from_json(report.to_json()) == report
    assert render(report) == "rank 2 was interrupted while it was waiting."


def test_a_rank_that_joined_too_late_is_no_missing_rank() -> None:
    report = a_report(WAITING, replace(WAITING, rank=1))
    assert title(report) == "All ranks joined collective #1 (Barrier), but not within 2 s."
    assert advice(report) == ["Run the cell again, or allow more time: `comm.deadline_s = 60`."]


# What one rank does, and what several do.
DOING = {
    RankState(1, Activity.RUNNING, "cell line 2: `pass`"): "it is at cell line 2: `pass`|they are at",
    RankState(1, Activity.RUNNING): "it is running|they are running",
    RankState(
        1, Activity.IN_MPI_CALL, "x.py line 4", mpi_call="Waitall"
    ): "it is in Waitall at x.py line 4|they are",
    RankState(1, Activity.RETURNED): "it has returned from the cell|they have returned from the cell",
    RankState(1, Activity.RAISED, error="KeyError: 1"): "it raised KeyError: 1|they raised KeyError: 1",
    RankState(1, Activity.NOT_STARTED): "it has not started the cell|they have not started the cell",
    RankState(1, Activity.EXITED): "it has ended its program|they have ended their programs",
    RankState(1, Activity.DEAD): "it has died|they have died",
    RankState(
        1, Activity.UNRESPONSIVE, "x.py line 4"
    ): "it does not respond; last seen at x.py line 4|they do not respond; last",
}


@pytest.mark.parametrize("rank", DOING)
def test_each_activity_of_one_rank_and_of_several(rank: RankState) -> None:
    one, many = DOING[rank].split("|")
    assert rank_lines(a_report(WAITING, rank))[1] == f"  rank 1 never joined #1: {one}"
    lines = rank_lines(a_report(WAITING, rank, replace(rank, rank=2)))
    assert len(lines) == 2 and lines[1].startswith(f"  ranks 1, 2 never joined #1: {many}")


@pytest.mark.parametrize(
    ("message", "missing", "details"),
    [
        (MessageRecord("recv", 3, 7), "send from rank 3 (tag 7)", "from rank 3, tag 7"),
        (MessageRecord("Ssend", 1, None), "receive on rank 1", "to rank 1"),
        (MessageRecord("Probe", None, None), "send from any rank", "from any rank"),
    ],
)
def test_a_report_about_a_message(message: MessageRecord, missing: str, details: str) -> None:
    waiting = RankState(0, Activity.WAITING_FOR_MESSAGE, "cell line 2", message=message)
    report = a_report(RankState(1, Activity.RUNNING), waiting, communicator=None)
    call = message.operation
    assert title(report) == f"rank 0 is waiting in {call}: no matching {missing}."
    assert rank_lines(report) == [
        f"  rank 0 is waiting in {call} ({details}) at cell line 2",
        "  rank 1 is running",
    ]
    assert advice(report)[-1] == (
        "The ranks are ready: fix the cell and run it again. Messages that this cell has sent cannot reach "
        "a later cell."
    )
    assert table(report).columns == []


def test_ranks_that_wait_for_the_same_message_share_a_line() -> None:
    message = MessageRecord("recv", 0, None)
    first = RankState(1, Activity.WAITING_FOR_MESSAGE, message=message, calls=(a_call(1),))
    second = replace(first, rank=2, calls=(a_call(1), a_call(2)))
    lines = rank_lines(a_report(replace(WAITING, calls=(a_call(3),)), first, second))
    assert lines == [
        "  ranks 1, 2 are waiting in recv (from rank 0)",
        "  rank 0 is waiting in Barrier (#3)",
    ]


def test_a_rank_of_a_stopped_cell_has_not_joined_yet() -> None:
    behind = RankState(1, Activity.RUNNING, "cell line 4", calls=(a_call(1),))
    report = a_report(replace(WAITING, calls=(a_call(2),)), behind, reason=Reason.STOPPED)
    assert rank_lines(report)[1] == (
        "  rank 1 finished collective #1 (Barrier, cell line 3) but has not joined #2: it is at cell line 4"
    )


def test_a_slow_rank_is_given_a_way_to_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    report = a_report(WAITING, RankState(1, Activity.RUNNING), RankState(2, Activity.RETURNED))
    assert advice(report)[0] == ("If rank 1 is only slow, allow more time: `comm.deadline_s = 60`.")
    assert "`comm.deadline_s = 300`" in advice(replace(report, deadline_s=100, world_size=4))[0]
    monkeypatch.setattr(packages.advice, "more_time", "start({ranks}, {seconds})")
    assert "allow more time: start(4, 300)." in advice(replace(report, deadline_s=100, world_size=4))[0]


@pytest.mark.parametrize("field", list(Mismatch))
def test_calls_that_differ_in_one_field_are_a_mismatch_of_that_field(field: Mismatch) -> None:
    known: dict[str, Any] = {"root": 0, "count": 10, "dtype": FLOAT32, "reduction": SUM}
    known["operation"] = b"Allreduce"
    name = field.name.lower()
    one, other = Call(**known), Call(**{**known, name: known[name] * 2 or 1})
    assert mismatch(one, one) is None and mismatch(one, other) is field
    assert f"different {name}s" in title(replace(a_report(WAITING), mismatch=field))


# Reports of 256 ranks, on 64 machines, stay short and name the ranks that differ.

RANKS, MOST_LINES, MOST_CHARACTERS = 256, 40, 250
PLACE = b"train.py line 7: `comm.Allreduce(MPI.IN_PLACE, gradient)`"


def calls(slot: Slot, *counts: int) -> None:
    """Note calls of Allreduce; the slot waits in the last one."""
    for number, count in enumerate(counts, start=1):
        slot.history[number - 1] = Call(number, 0, -1, count, 7, b"Allreduce", FLOAT32, SUM, b"train.py")
    slot.calls_noted = len(counts)


def waits(slot: Slot, *counts: int) -> None:
    calls(slot, *counts)
    slot.waiting_in, slot.place = WaitingIn.COLLECTIVE, PLACE


def one_is_missing(rank: int, slot: Slot) -> None:
    waits(slot, 8, 8)
    if rank == 100:
        slot.waiting_in, slot.calls_noted, slot.cell_state = WaitingIn.NOTHING, 1, CellState.RETURNED


def every_other_one_is_missing(rank: int, slot: Slot) -> None:
    waits(slot, 8)
    if rank % 2:
        slot.waiting_in, slot.calls_noted, slot.cell_state = WaitingIn.NOTHING, 0, CellState.EXITED


def each_raised_its_own_error(rank: int, slot: Slot) -> None:
    waits(slot, 8)
    if rank:
        slot.waiting_in, slot.calls_noted, slot.cell_state = WaitingIn.NOTHING, 0, CellState.RAISED
        slot.error, slot.error_type = f"ValueError: {rank} at train.py line {rank}".encode(), b"ValueError"


def a_circle(rank: int, slot: Slot) -> None:
    slot.waiting_in, slot.message_operation = WaitingIn.MESSAGE, b"Recv"
    slot.message_peer, slot.message_tag, slot.message_number = (rank - 1) % RANKS, 0, 1
    slot.place = PLACE


def each_has_its_own_count(rank: int, slot: Slot) -> None:
    waits(slot, 8, rank)


def one_sends_and_the_others_receive(rank: int, slot: Slot) -> None:
    a_circle(rank, slot)
    if rank == 40:
        slot.message_operation = b"Send"


def some_have_other_counts(rank: int, slot: Slot) -> None:
    waits(slot, 8, rank if 100 <= rank < 130 else 7)


def a_host_is_lost(rank: int, slot: Slot) -> None:
    waits(slot, 8)
    if rank // 4 == 25:
        slot.has_died = Death.UNREACHABLE


CASES: dict[Callable[[int, Slot], None], tuple[Reason | Mismatch, list[str]]] = {
    one_is_missing: (
        Reason.RANK_ENDED,
        [
            "rank 100 (host n25) never joined collective #2",
            "  ranks 0–99, 101–255 (64 hosts) are waiting in ",
        ],
    ),
    every_other_one_is_missing: (
        Reason.RANK_ENDED,
        [
            "128 ranks (1, 3, 5, …, 255) (64 hosts) never joined",
            "  128 ranks (0, 2, 4, …, 254) (64 hosts) are",
        ],
    ),
    a_circle: (
        Reason.CIRCLE,
        [
            "ranks 0 → 255 → 254 → … → 1 → 0 wait",
            "ranks 0–255 (64 hosts) are waiting in Recv (from diff",
        ],
    ),
    one_sends_and_the_others_receive: (
        Reason.TIMED_OUT,
        [
            "ranks 0–39, 41–255 (64 hosts) are waiting in Recv (from diff",
            "rank 40 (host n10) is waiting in Send",
        ],
    ),
    each_raised_its_own_error: (
        Reason.RANK_ENDED,
        [
            "ranks 1–255 (64 hosts) never",
            "  ranks 1–255 (64 hosts) never joined #1: they raised ValueError\n",
        ],
    ),
    each_has_its_own_count: (
        Mismatch.COUNT,
        ["different counts", "ranks 0–255 (64 hosts) are waiting in"],
    ),
    some_have_other_counts: (
        Mismatch.COUNT,
        ["0–99, 130–255", "(#2, 7 float32, SUM)", "… and 19 more ranks"],
    ),
    a_host_is_lost: (
        Reason.RANK_ENDED,
        ["ranks 100–103 (host n25) never joined", "ranks 100–103 (host n25) never joined #1: they cannot be"],
    ),
}


def report_of(recorder: FlightRecorder, case: Callable[[int, Slot], None]) -> Report:
    for rank, slot in enumerate(recorder.slots):
        slot.pid, slot.host = os.getpid(), b"n%d" % (rank // 4)
        case(rank, slot)
    return take_snapshot(recorder, CASES[case][0], 20.0, range(RANKS), 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("recorder", [RANKS], indirect=True)
def test_a_report_of_many_ranks_stays_short(
    recorder: FlightRecorder, case: Callable[[int, Slot], None]
) -> None:
    report = report_of(recorder, case)
    text = render(report)
    assert len(text.splitlines()) <= MOST_LINES and max(map(len, text.splitlines())) <= MOST_CHARACTERS, text
    for part in CASES[case][1]:
        assert part in text, text
    assert len(Report.from_json(report.to_json()).ranks) == RANKS
