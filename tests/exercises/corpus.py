"""The corpus: every reference, and every wrong answer with the finding that it must get.

    python -m tests.exercises.corpus [NAME …]

runs it, or the exercises of these names or notebooks ("nb03"), and prints each finding.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from labkit.exercises import catalogue
from labkit.exercises.judging import Verdict, verdicts
from labkit.exercises.launching import scratch_folder
from labkit.exercises.reference import reference_text


class Answer(NamedTuple):
    """A submission. `words` must stand in its finding; None if it is a reference, which must pass."""

    name: str
    words: str | None
    text: str

    @property
    def label(self) -> str:
        return f"{self.name}: {'reference' if self.words is None else self.words[:50]}"


def references() -> list[Answer]:
    return [Answer(name, None, reference_text(each)) for name, each in catalogue.exercises().items()]


def wrong_answers() -> list[Answer]:
    return [
        Answer(name, finding.lstrip("… "), exercise.mistaken(finding))
        for name, exercise in catalogue.exercises().items()
        for finding in exercise.mistakes
    ]


def submit(name: str, *texts: str, deadline_s: float | None = None) -> list[Verdict]:
    """Return the verdicts on the texts of cells. This process must not be an MPI process."""
    with scratch_folder() as folder:
        return verdicts(name, texts, folder, deadline_s)


def answers(name: str) -> list[Answer]:
    """Return the reference of an exercise and its wrong answers."""
    return [each for each in (*references(), *wrong_answers()) if each.name == name]


def faults(name: str, tried: list[Answer]) -> list[str]:
    """Return which answers to an exercise do not get what they must get, and what they get."""
    found = submit(name, *(answer.text for answer in tried))
    said = [(answer, fault(answer, verdict)) for answer, verdict in zip(tried, found, strict=True)]
    return [f"{answer.label}: {text}" for answer, text in said if text]


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
    for name in catalogue.exercises():
        module = catalogue.module_of(name).rpartition(".")[2]
        if wanted and not {name, module} & set(wanted):
            continue
        began, tried, tried_any = time.monotonic(), answers(name), True
        found = faults(name, tried)
        count += len(found)
        print(
            f"{time.monotonic() - began:4.1f} s  {name}: {len(tried)} answers, {len(found)} faults",
            flush=True,
        )
        for text in found:
            print(f"  {text}", flush=True)
    if not tried_any:
        print(f"there is no exercise or file of exercises named {' or '.join(wanted)}")
        return 1
    print(f"{count} faults")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
