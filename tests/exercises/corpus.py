"""The corpus: every reference, and every mistake with the finding that it must get.

    python -m tests.exercises.corpus [NAME …]

runs it, or the exercises of these names or notebooks ("nb03"), and prints each fault.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import NamedTuple

from labkit.exercises import catalogue
from labkit.exercises.exercise import CAUGHT, Verdict
from labkit.exercises.judge import Judge, do_not_be_an_mpi_process
from labkit.exercises.launching import Job, scratch_folder

MOST_TEXTS = 3  # in one job on ranks: each case opens a communicator, of which about 60 can be watched


class Answer(NamedTuple):
    """A submission. `words` must stand in its finding; None if it is a reference, which must pass."""

    words: str | None
    text: str


def answers(name: str) -> list[Answer]:
    """Return the reference of an exercise and its mistakes."""
    exercise = catalogue.find(name)
    wrong = [Answer(each.lstrip(f"{CAUGHT} "), exercise.mistaken(each)) for each in exercise.mistakes]
    return [Answer(None, exercise.text), *wrong]


def submit(name: str, *texts: str, deadline_s: float | None = None) -> list[Verdict]:
    """Return the verdicts on the texts of cells. This process must not be an MPI process."""
    do_not_be_an_mpi_process()
    exercise = catalogue.find(name)
    exercise = replace(exercise, deadline_s=deadline_s or exercise.deadline_s)
    cases, made = list(exercise.cases()), list[Verdict]()
    while left := texts[len(made) :][: MOST_TEXTS if exercise.on_ranks else None]:
        with scratch_folder() as folder, Job(folder, exercise, cases, len(left)) as job:
            judge = Judge(job, exercise, cases)
            for text in left:
                made.append(judge.verdict(text))
                if not job.is_running:
                    break
    return made


def faults(name: str, tried: list[Answer]) -> list[str]:
    """Return which answers to an exercise do not get what they must get, and what they get."""
    found = submit(name, *(answer.text for answer in tried))
    said = [(answer, fault(answer, verdict)) for answer, verdict in zip(tried, found, strict=True)]
    return [f"{(answer.words or 'reference')[:50]}: {text}" for answer, text in said if text]


def fault(answer: Answer, found: Verdict) -> str:
    """Return why an answer does not get what it must get; an empty text if it does."""
    if found.check_failed:
        return f"the check failed: {found.finding}"
    if answer.words is None:
        return "" if found.passed else f"the reference is refused: {found.finding}"
    if found.passed:
        return f"passes, but must get: {answer.words}"
    return "" if answer.words in found.finding else f"gets: {found.finding}\n    must get: {answer.words}"


def main(wanted: list[str]) -> int:
    count, tried_any = 0, False
    for name, exercise in catalogue.exercises().items():
        if wanted and not {name, f"nb{exercise.notebook}"} & set(wanted):
            continue
        began, tried, tried_any = time.monotonic(), answers(name), True
        found = faults(name, tried)
        count += len(found)
        print(f"{time.monotonic() - began:4.1f} s  {name}: {len(tried)} answers, {len(found)} faults")
        for text in found:
            print(f"  {text}", flush=True)
    if not tried_any:
        print(f"there is no exercise or file of exercises named {' or '.join(wanted)}")
        return 1
    print(f"{count} faults")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
