"""Grade a submission, then a right answer, as nbgrader's step does; print both verdicts as JSON.

python -m tests.exercises.grade_one EXERCISE SANDBOXED < TEXT
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from labkit.checks import judging, sandbox
from labkit.exercises import catalogue


def main(name: str, sandboxed: bool) -> None:
    """Grade the text of the standard input, and the exercise's reference after it."""
    if sandboxed and sandbox.refusal():
        print(json.dumps({"refusal": sandbox.refusal()}))
        return
    exercise = catalogue.find(name)
    began = time.monotonic()
    verdict = judging.grade_text(exercise, sys.stdin.read(), sandboxed=sandboxed)
    seconds = time.monotonic() - began
    following = judging.grade_text(exercise, exercise.text, sandboxed=sandboxed)
    print(json.dumps({"verdict": asdict(verdict), "seconds": seconds, "following": asdict(following)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "yes")
