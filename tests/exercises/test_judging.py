"""The judge knows no exercise: it judges a function of any course."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COURSE = '''
import numpy as np
from labkit.checks.exercise import Case, Exercise


def total(comm, x):
    """Return the sum of all ranks' x on every rank."""
    return comm.allreduce(x)


def cases():
    for p in 1, 3:
        yield Case(f"{p} ranks", tuple((np.float64(rank + 1),) for rank in range(p)))


TOTAL = Exercise(
    reference=total,
    cases=cases,
    hints=("One call is enough.",),
    expected=lambda case: [sum(x for (x,) in case.arguments)] * case.ranks,
    mistakes={"each rank returns its own x: add up those of all ranks": {"comm.allreduce(x)": "x"}},
)
'''
PROGRAM = """
import json, sys
from another_course import TOTAL
from labkit.checks.judging import judge_text

verdicts = [judge_text(TOTAL, text) for text in json.loads(sys.argv[1])]
print(json.dumps([[verdict.passed, verdict.finding] for verdict in verdicts]))
"""


@pytest.fixture
def course(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose programs can import another course's exercise."""
    (tmp_path / "another_course.py").write_text(COURSE)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_another_courses_exercise_is_judged(course: dict[str, str]) -> None:
    head = "def total(comm, x):\n    return "
    texts = [f"{head}comm.allreduce(x)\n", f"{head}x\n", f"{head}comm.bcast(x)\n"]
    command = [sys.executable, "-c", PROGRAM, json.dumps(texts)]
    done = subprocess.run(command, env=course, capture_output=True, text=True, timeout=300, check=True)
    (right, _), (known, sentence), (wrong, seen) = json.loads(done.stdout)
    assert right and not known and not wrong
    assert "each rank returns its own x" in sentence
    assert "with 3 ranks, on rank 0: " in seen
