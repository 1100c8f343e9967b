"""The program that runs a job and judges it, in a process that neither the notebook nor the job can change.

    python -m labkit.exercises.judging FOLDER

The folder holds `request.json`: an exercise's name, the text of the student's cell, and whether the job is to
run in a sandbox. The program prints the verdict, as JSON. No process of the job has its standard output.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30  # of address space, for the judge: a student's results can be large
MOST_WORDS = 2000  # characters of a finding
MOST_TEXTS = 3  # in one job on ranks: each case opens a communicator, of which about 60 can be watched


@dataclass(frozen=True)
class Verdict:
    """What is known about a student's function. If `check_failed`, nothing is, and `finding` says why."""

    passed: bool
    finding: str = ""
    cases: int = 0
    check_failed: bool = False
    printed: str = ""


def verdicts(name: str, texts: Sequence[str], folder: Path, deadline_s: float | None = None) -> list[Verdict]:
    """Run the function of this name, which each of the cells with these texts defines, and judge it.

    The folder must be empty: the jobs' files go there. `deadline_s` takes the place of the exercise's. Never
    raise an exception; call it in a process of its own, as it loads MPI without initialising it.
    """
    import mpi4py  # noqa: PLC0415  (only this process must not be an MPI process)

    mpi4py.rc.initialize = False
    from labkit.exercises import catalogue, ends, judge  # noqa: PLC0415
    from labkit.exercises.trial.launching import Task, Trial, run_job  # noqa: PLC0415

    def judged(trial: Trial, text: str) -> Verdict:
        found = ends.finding(trial, text, cases, limit_s, exercise.on_ranks)
        if found is None:
            found = judge.judge(exercise, cases, judge.outcomes(trial, cases))
        return Verdict(found is None, (found or "")[:MOST_WORDS], len(cases), printed=trial.printed)

    made: list[Verdict] = []
    while len(made) < len(texts):
        left = texts[len(made) :]
        try:
            exercise = catalogue.find(name)
            left = left[:MOST_TEXTS] if exercise.on_ranks else left
            limit_s = exercise.deadline_s if deadline_s is None else deadline_s
            cases = list(exercise.cases())
            if not cases:
                raise ends.CheckFailed("the exercise has no cases")
            ranks = max(case.ranks for case in cases) if exercise.on_ranks else 1
            task = Task(
                name=name,
                prelude=exercise.prelude,
                cases=tuple(cases),
                wrap=exercise.wrap,
                digest=exercise.digest,
                texts=tuple(left),
                ranks=ranks,
                on_ranks=exercise.on_ranks,
                deadline_s=limit_s,
            )
            job = folder / f"job-{len(made)}"
            job.mkdir()
            trials = run_job(job, task)
        except Exception as error:
            return [*made, *[_failed(error)] * (len(texts) - len(made))]
        for trial, text in zip(trials, left, strict=False):
            try:
                made.append(judged(trial, text))
            except Exception as error:
                made.append(_failed(error))
    return made


def _failed(error: Exception) -> Verdict:
    """Return the verdict that the check itself has failed."""
    is_known = type(error).__name__ == "CheckFailed"
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    return Verdict(False, text[:MOST_WORDS], check_failed=True)


def main(folder: Path) -> None:
    """Judge the request in the folder."""
    from labkit.exercises.trial import sandbox  # noqa: PLC0415

    answer = os.dup(sys.stdout.fileno())  # no process that this one starts inherits the new descriptor
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    request: dict[str, Any] = json.loads((folder / "request.json").read_text())
    sandbox.in_use = request["sandboxed"]
    with suppress(ValueError, OSError):  # a lower limit holds already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    job = folder / "job"
    job.mkdir()
    (found,) = verdicts(request["name"], [request["text"]], job)
    with open(answer, "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
