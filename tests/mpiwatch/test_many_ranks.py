"""Reports of 256 ranks, on one machine or on 64, stay short and name the ranks that differ."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import pytest

from labkit.plots.hang import hang
from mpiwatch.recorder import Call, CellState, Death, FlightRecorder, Slot, WaitingIn
from mpiwatch.report import Mismatch, Reason, Report, rank_lines, render, title
from mpiwatch.snapshot import take_snapshot

RANKS, LINES, CHARACTERS = 256, 40, 250
FLOAT32, SUM = b"float32", b"SUM"
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
        slot.error = f"ValueError: {rank} at train.py line {rank}".encode()


def a_circle(rank: int, slot: Slot) -> None:
    slot.waiting_in, slot.message_operation = WaitingIn.MESSAGE, b"Recv"
    slot.message_peer, slot.message_tag, slot.message_number = (rank - 1) % RANKS, 0, 1
    slot.place = PLACE


def each_has_its_own_count(rank: int, slot: Slot) -> None:
    waits(slot, 8, rank)


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
    each_raised_its_own_error: (
        Reason.RANK_ENDED,
        [
            "ranks 1–255 (64 hosts) never",
            "  ranks 1–255 (64 hosts) never joined #1: they raised ValueError\n",
        ],
    ),
    a_circle: (
        Reason.CIRCLE,
        [
            "ranks 0 → 255 → 254 → … → 1 → 0 wait",
            "ranks 0–255 (64 hosts) are waiting in Recv (from diff",
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
    assert len(text.splitlines()) <= LINES and max(map(len, text.splitlines())) <= CHARACTERS, text
    for part in CASES[case][1]:
        assert part in text, text
    assert len(Report.from_json(report.to_json()).ranks) == RANKS
    figure = hang(report)
    figure.savefig(io.BytesIO())
    assert figure.get_figheight() < 12 and figure.axes[0].get_title().lower() == title(report).lower()


@pytest.mark.parametrize("recorder", [RANKS], indirect=True)
def test_ranks_that_do_too_many_things_are_counted(recorder: FlightRecorder) -> None:
    for rank, slot in enumerate(recorder.slots):
        slot.pid = os.getpid()
        waits(slot, *([8] * (1 + rank % 20)))
    recorder.slots[77].waiting_in, recorder.slots[77].cell_state = WaitingIn.NOTHING, CellState.RETURNED
    report = take_snapshot(recorder, Reason.TIMED_OUT, 20.0, range(RANKS), 0)
    lines = rank_lines(report)
    assert any("rank 77 " in line for line in lines) and "more ranks" in lines[-1], lines
    assert len(render(report).splitlines()) <= LINES
