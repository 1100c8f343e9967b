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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.exercises.exercise import Case
    from labkit.exercises.judge import MistakesMade
    from labkit.exercises.launching import Trial

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
    from labkit.exercises import catalogue, failures, judge  # noqa: PLC0415
    from labkit.exercises.launching import Job, Task  # noqa: PLC0415

    made: list[Verdict] = []
    while len(made) < len(texts):
        try:
            exercise = catalogue.find(name)
            left = texts[len(made) :][: MOST_TEXTS if exercise.on_ranks else None]
            limit_s = exercise.deadline_s if deadline_s is None else deadline_s
            cases = list(exercise.cases())
            if not cases:
                raise failures.CheckFailed("the exercise has no cases")
            task = Task(
                name=name,
                prelude=exercise.prelude,
                cases=tuple(cases),
                wrap=exercise.wrap,
                digest=exercise.digest,
                texts=len(left),
                ranks=max(case.ranks for case in cases) if exercise.on_ranks else 1,
                on_ranks=exercise.on_ranks,
                deadline_s=limit_s,
            )
            at = folder / f"job-{len(made)}"
            at.mkdir()
            with Job(at, task) as job:
                mistakes = judge.MistakesMade(job, exercise, cases)
                for text in left:
                    (trial,) = job.run([text], range(len(cases)))
                    made.append(_judged(trial, text, cases, limit_s, mistakes))
                    if not job.is_running:
                        break
        except Exception as error:
            return [*made, *[_failed(error)] * (len(texts) - len(made))]
    return made


def _judged(
    trial: Trial, text: str, cases: Sequence[Case], limit_s: float, mistakes: MistakesMade
) -> Verdict:
    from labkit.exercises import failures, judge  # noqa: PLC0415

    exercise = mistakes.exercise
    try:
        found = failures.finding(trial, text, cases, limit_s, exercise.on_ranks)
        if found is None:
            found = judge.judge(exercise, cases, judge.outcomes(trial, cases), mistakes)
    except Exception as error:
        return _failed(error)
    return Verdict(found is None, (found or "")[:MOST_WORDS], len(cases), printed=trial.printed)


def _failed(error: Exception) -> Verdict:
    """Return the verdict that the check itself has failed."""
    is_known = type(error).__name__ == "CheckFailed"
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    return Verdict(False, text[:MOST_WORDS], check_failed=True)


def main(folder: Path) -> None:
    """Judge the request in the folder."""
    from labkit.exercises import sandbox  # noqa: PLC0415

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
