"""How a student's my_ddp.py does from week to week: a file beside it keeps the results of its runs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from labkit.checks.launching import mpiexec
from labkit.children import ChildError, run_child
from labkit.colours import COLOURS
from labkit.files import atomic_write, read_input
from labkit.text import counted
from mpiwatch import launch

DEADLINE_S = 120.0
ACCURACY = re.compile(r"^test accuracy (\S+) %$", re.MULTILINE)
BUSIEST = re.compile(r"^the busiest rank: (\d+) bytes$", re.MULTILINE)  # labkit.exercises.counted_run
STEP = re.compile(r"^a step takes (\S+) ms$", re.MULTILINE)


class WeeksRun(NamedTuple):
    """What a run of the program has printed."""

    ranks: int
    accuracy: float  # %
    step_ms: float
    average: str = ""  # with which the bytes were counted; empty if all averages are the MPI library's
    nbytes: int | None = None  # that the busiest rank sends and receives in an epoch, in messages that count


def run_program(target: Path, ranks: int, average: str = "") -> tuple[str, list[WeeksRun]]:
    """Run the program; return what it does, beside the run before, and all results on as many ranks.

    `average` is an average of the student's own: with it, the bytes of one more epoch are counted.
    """
    try:
        output = output_on_ranks(ranks, str(target))
        accuracy, step = ACCURACY.search(output), STEP.search(output)
        if accuracy is None or step is None:
            return f"It ran, but printed no accuracy and no time of a step: {output[-200:]!r}", []
        counted_bytes = None
        if average:
            words = "-m", "labkit.exercises.counted_run", str(target), "--average", average, "--epochs", "1"
            match = BUSIEST.search(output_on_ranks(ranks, *words))
            counted_bytes = int(match[1]) if match else None
    except ChildError as error:
        return f"It did not run to its end: {error}.", []
    result = WeeksRun(ranks, float(accuracy[1]), float(step[1]), average, counted_bytes)
    file = target.with_suffix(".json")
    earlier = _earlier(file)
    _keep(file, [*earlier, result])
    same = [old for old in earlier if old.ranks == ranks]
    return "\n".join(_sentences(result, same)), [*same, result]


def output_on_ranks(ranks: int, *words: str) -> str:
    """Return what Python prints on several ranks, each with one thread. Raise ChildError if it fails."""
    command = [*mpiexec(), "-n", str(ranks), sys.executable, *words]
    environment = {**os.environ, **launch.settings(), **launch.one_machine(), **launch.ONE_THREAD}
    return run_child(command, deadline_s=DEADLINE_S, environment=environment).stdout


def _sentences(result: WeeksRun, same: list[WeeksRun]) -> list[str]:
    """Return what a run has shown, beside the one before on as many ranks."""
    text = f"On {counted(result.ranks, 'rank')}: test accuracy {result.accuracy:.2f} %, "
    text += f"a step takes {result.step_ms:.2f} ms"
    if same:
        text += f" (before: {same[-1].accuracy:.2f} %, {same[-1].step_ms:.2f} ms)"
    if result.nbytes is None:
        return [
            f"{text}.",
            "MPI's Allreduce computes the mean; the messages inside the library are not counted.",
        ]
    size = _kilobytes(result.nbytes)
    traffic = f"With --average {result.average}, the busiest rank sends and receives {size} in an epoch"
    old = [earlier for earlier in same if earlier.nbytes is not None]
    if old:
        traffic += f" (before: {_kilobytes(old[-1].nbytes or 0)} with {old[-1].average})"
    return [f"{text}.", f"{traffic}."]


def _kilobytes(nbytes: int) -> str:
    return f"{nbytes / 1e3:,.1f} kB"


def figure(results: list[WeeksRun]) -> Any:
    """Return a figure of the weeks: the time of a step, the accuracy, and the busiest rank's bytes, by run.

    The titles hold the first and the last number, for those who do not see the curves.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow, and only notebooks draw)
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    counted_kb = [math.nan if result.nbytes is None else result.nbytes / 1e3 for result in results]
    panels: dict[str, list[float]] = {
        "a step (ms)": [result.step_ms for result in results],
        "test accuracy (%)": [result.accuracy for result in results],
        "busiest rank, an epoch (kB)": counted_kb,
    }
    drawn = Figure(figsize=(8.8, 2.4), layout="constrained")
    for axes, (label, values), hue in zip(drawn.subplots(1, 3), panels.items(), COLOURS[::2], strict=False):
        numbers = range(1, len(values) + 1)
        axes.plot(numbers, values, "o-", color=hue)
        known = [value for value in values if not math.isnan(value)]
        changes = f"{known[0]:.5g} → {known[-1]:.5g}" if known else "not counted yet"
        axes.set(xlabel="run", ylabel=label, title=changes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return drawn


def _earlier(file: Path) -> list[WeeksRun]:
    """Return the results of earlier runs, the newest last; none without such a file, or if it is damaged."""
    try:
        rows = json.loads(read_input(file))
        return [_result(row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _result(row: dict[str, Any]) -> WeeksRun:
    nbytes = row.get("nbytes")  # missing in files of older versions
    known = None if nbytes is None else int(nbytes)
    average = str(row.get("average", ""))
    return WeeksRun(int(row["ranks"]), float(row["accuracy"]), float(row["step_ms"]), average, known)


def _keep(file: Path, results: list[WeeksRun]) -> None:
    rows = [result._asdict() for result in results]
    with atomic_write(file) as opened:
        opened.write(json.dumps(rows, indent=1).encode() + b"\n")
