"""How a student's my_ddp.py does from week to week: a file beside it keeps the results of its runs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from labkit.checks.launching import mpiexec
from labkit.children import ChildError, run_child
from labkit.files import atomic_write, read_input
from labkit.text import counted
from mpiwatch import launch

DEADLINE_S = 120.0
ACCURACY = re.compile(r"^test accuracy (\S+) %$", re.MULTILINE)
STEP = re.compile(r"^a step takes (\S+) ms$", re.MULTILINE)


class Result(NamedTuple):
    """What a run of the program has printed."""

    ranks: int
    accuracy: float  # %
    step_ms: float


def run_program(target: Path, ranks: int) -> str:
    """Run the program; return one sentence on its accuracy and its step, beside those of the run before."""
    command = [*mpiexec(), "-n", str(ranks), sys.executable, str(target)]
    try:
        environment = {**os.environ, **launch.settings(), **launch.one_machine(), **launch.ONE_THREAD}
        output = run_child(command, deadline_s=DEADLINE_S, environment=environment).stdout
    except ChildError as error:
        return f"It did not run to its end: {error}."
    accuracy, step = ACCURACY.search(output), STEP.search(output)
    if accuracy is None or step is None:
        return f"It ran, but printed no accuracy and no time of a step: {output[-200:]!r}"
    result = Result(ranks, float(accuracy[1]), float(step[1]))
    file = target.with_suffix(".json")
    earlier = _earlier(file)
    _keep(file, [*earlier, result])
    text = f"On {counted(ranks, 'rank')}: test accuracy {result.accuracy:.2f} %, "
    text += f"a step takes {result.step_ms:.2f} ms"
    same = [old for old in earlier if old.ranks == ranks]
    if same:
        text += f" (before: {same[-1].accuracy:.2f} %, {same[-1].step_ms:.2f} ms)"
    return f"{text}."


def _earlier(file: Path) -> list[Result]:
    """Return the results of earlier runs, the newest last; none without such a file, or if it is damaged."""
    try:
        rows = json.loads(read_input(file))
        return [Result(int(row["ranks"]), float(row["accuracy"]), float(row["step_ms"])) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _keep(file: Path, results: list[Result]) -> None:
    rows = [result._asdict() for result in results]
    with atomic_write(file) as opened:
        opened.write(json.dumps(rows, indent=1).encode() + b"\n")
