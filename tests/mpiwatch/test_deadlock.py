"""When the watchdog says that the ranks are in a deadlock."""

from __future__ import annotations

import pytest

from mpiwatch.snapshot import FRESH_S, SLOW_DEADLINES, Sample, is_deadlock

NOW_S, DEADLINE_S = 1000.0, 20.0
FINISHED = Sample(is_finished=True)
COMPUTING = Sample(False, sampled_s=NOW_S)


def stuck(
    seconds: float = DEADLINE_S + 1, call: str = "Waitall", line: int = 4, age_s: float = 0.1
) -> Sample:
    return Sample(False, NOW_S - seconds, NOW_S - age_s, call, f"cell line {line}")


WAITING = stuck(call="")._replace(place="")  # in a watched call


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
def test_a_deadlock_is_certain(ranks: list[Sample], expected: bool) -> None:
    assert is_deadlock(ranks, NOW_S, DEADLINE_S) == expected
    assert is_deadlock(ranks[::-1], NOW_S, DEADLINE_S) == expected
