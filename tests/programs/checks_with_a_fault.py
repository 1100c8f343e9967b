"""Check a right answer and a wrong one while a guardian of the check has a fault; print the verdicts."""

from __future__ import annotations

import json
import os
import sys

from labkit.checks import judging, launching
from labkit.checks.judging import judge_text
from labkit.exercises import catalogue
from tests.programs import faulty

if __name__ == "__main__":
    launching.KEPT |= {faulty.FAULT, faulty.CALLS}
    judging.JUDGE = judging.FORKED = faulty.ME
    faulty.inject("check")
    for name in sys.argv[1:]:
        exercise = catalogue.find(name)
        right, wrong = exercise.text, exercise.mistaken(exercise.recognised[0])
        for text in (right, wrong):
            verdict = judge_text(exercise, text)
            print(json.dumps([name, verdict.passed, verdict.check_failed, verdict.finding]), flush=True)
    os._exit(0)
