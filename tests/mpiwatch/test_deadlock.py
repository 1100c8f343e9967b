"""When the watchdog says that the ranks are in a deadlock."""

from __future__ import annotations

import os

import pytest

from mpiwatch.recorder import CellState, FlightRecorder
from mpiwatch.snapshot import FRESH_S, SLOW_DEADLINES, stuck_since

NOW_S, DEADLINE_S = 1000.0, 20.0
Rank = dict[str, object]  # fields of its slot
FINISHED: Rank = {"cell_state": CellState.RETURNED}
COMPUTING: Rank = {"sampled_s": NOW_S}


def stuck(seconds: float = DEADLINE_S + 1, call: str = "Waitall", line: int = 4, age_s: float = 0.1) -> Rank:
    at = {"mpi_call": call.encode(), "place": b"cell line %d" % line}
    return {"mpi_call_since_s": NOW_S - seconds, "sampled_s": NOW_S - age_s, **at}


WAITING: Rank = {"waiting_since_s": NOW_S - DEADLINE_S - 1, "sampled_s": NOW_S}  # in a watched call


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([stuck(), FINISHED], True),
        ([stuck(), stuck(line=5)], True),
        ([stuck(), stuck(call="Barrier")], True),
        ([stuck(), WAITING, FINISHED], True),
        ([stuck(), stuck(), FINISHED], True),
        ([stuck(), COMPUTING], False),
        ([stuck(), WAITING, COMPUTING, FINISHED], False),
        ([stuck(DEADLINE_S - 1), FINISHED], False),
        ([stuck(), stuck(DEADLINE_S - 1, line=5)], False),
        ([stuck(age_s=FRESH_S + 1), FINISHED], False),  # its watchdog has not sampled for a while
        ([WAITING, WAITING, FINISHED], False),  # a watched call ends by itself
        ([FINISHED, FINISHED], False),
        ([stuck(), stuck()], False),  # perhaps only slow
        ([stuck(SLOW_DEADLINES * DEADLINE_S + 1), stuck(SLOW_DEADLINES * DEADLINE_S + 1)], True),
        ([stuck()], False),
    ],
)
def test_a_deadlock_is_certain(ranks: list[Rank], expected: bool) -> None:
    for order in ranks, ranks[::-1]:
        recorder = FlightRecorder(FlightRecorder.create(len(ranks)))
        recorder.remove()
        for slot, fields in zip(recorder.slots, order, strict=True):
            for name, value in {"pid": os.getpid(), **fields}.items():
                setattr(slot, name, value)
        assert bool(stuck_since(recorder, NOW_S, DEADLINE_S)) == expected
