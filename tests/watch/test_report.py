"""A hang's report, in words and as a picture, from what a board says."""

from __future__ import annotations

import os

import pytest

from labkit.plots.hang import hang as picture
from labkit.watch.flight_recorder import layout
from labkit.watch.flight_recorder.layout import FlightRecorder
from labkit.watch.flight_recorder.opcodes import OPS
from labkit.watch.flight_recorder.report import table
from labkit.watch.flight_recorder.snapshot import take_snapshot


@pytest.fixture
def report() -> dict:
    """Rank 1 of three has raised between the first and the second collective."""
    recorder = FlightRecorder(FlightRecorder.create(3))
    try:
        for rank in range(3):
            slot = recorder.slots[rank]
            slot.pid, slot.state = os.getpid(), layout.RUNS
            for number, op in [(1, "Bcast"), (2, "Allreduce")][: 1 if rank == 1 else 2]:
                slot.history[slot.calls] = layout.Call(
                    number, 0, OPS[op], -1, 10, 11, -1, 3 + number, b"cell"
                )
                slot.calls += 1
            slot.waits = layout.IN_COLLECTIVE if rank != 1 else layout.AWAKE
            slot.where = b"cell line 5: `comm.Allreduce(x, y)`"
        recorder.enter(1, layout.RAISED, "ZeroDivisionError: division by zero")
        return take_snapshot(recorder, "late", 2.0, range(3), 0)
    finally:
        recorder.remove()


def test_the_words(report: dict) -> None:
    assert report["text"].splitlines()[:3] == [
        "rank 1 never joined collective #2 (Allreduce).",
        "  ranks 0, 2 wait in Allreduce (#2, 10 float32) at cell line 5: `comm.Allreduce(x, y)`",
        "  rank 1 finished collective #1 (Bcast, cell line 4) and never joined #2: "
        "it raised ZeroDivisionError: division by zero",
    ]


def test_a_rank_that_has_not_begun_the_cell_is_no_rank_that_has_returned_from_it() -> None:
    recorder = FlightRecorder(FlightRecorder.create(3))
    try:
        for rank in range(3):
            recorder.slots[rank].pid = os.getpid()
            recorder.enter(rank, layout.RUNS)
            recorder.enter(rank, layout.RETURNED)
        for rank, count in [(0, 10), (2, 11)]:
            recorder.enter(rank, layout.RUNS)
            slot = recorder.slots[rank]
            slot.first, slot.calls, slot.waits = 6, 1, layout.IN_COLLECTIVE
            slot.history[0] = layout.Call(7, 0, OPS["Allreduce"], -1, count, 11, -1, 2, b"cell")
        report = take_snapshot(recorder, "count", 2.0, range(3), 0)
    finally:
        recorder.remove()
    assert report["text"].splitlines()[:4] == [
        "The ranks do not agree on collective #1: its count differs.",
        "  rank 0 waits in Allreduce (#1, 10 float32)",
        "  rank 2 waits in Allreduce (#1, 11 float32)",
        "  rank 1 never joined #1: it has not begun the cell",
    ]
    assert table(report)[1][1] == ["rank 1", "– not begun"]


def test_a_rank_that_has_only_just_come_is_shown_with_those_it_waits_with() -> None:
    recorder = FlightRecorder(FlightRecorder.create(2))
    try:
        for slot in recorder.slots:
            slot.pid, slot.state, slot.calls = os.getpid(), layout.RUNS, 1
            slot.history[0] = layout.Call(1, 0, OPS["Barrier"], -1, -1, -1, -1, 3, b"cell")
        recorder.slots[1].waits, recorder.slots[1].where = (
            layout.IN_COLLECTIVE,
            b"cell line 3: `comm.Barrier()`",
        )
        report = take_snapshot(recorder, "stopped", 2.0, range(2), None)
    finally:
        recorder.remove()
    assert (
        report["text"].splitlines()[1] == "  ranks 0, 1 wait in Barrier (#1) at cell line 3: `comm.Barrier()`"
    )


def test_the_picture(report: dict) -> None:
    header, rows = table(report)
    assert header == ["", "#1 Bcast", "#2 Allreduce"]
    assert rows == [["rank 0", "✓", "waits"], ["rank 1", "✓", "– raised"], ["rank 2", "✓", "waits"]]
    axes = picture(report).axes[0]
    assert [text.get_text() for text in axes.texts] == ["done", "waits", "done", "raised", "done", "waits"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
