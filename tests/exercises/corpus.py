"""The corpus: every reference, and every wrong answer with the finding that it must get.

    python -m tests.exercises.corpus [NAME …]

runs it, or the exercises of these names or notebooks ("nb03"), and prints each finding.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from labkit.exercises import catalogue
from labkit.exercises.judging import Verdict, verdict
from labkit.exercises.reference import reference_text
from tests.exercises import wrong


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
    modules = [info.name for info in pkgutil.iter_modules(wrong.__path__)]
    return [
        Answer(*entry)
        for module in modules
        for entry in importlib.import_module(f"{wrong.__name__}.{module}").WRONG
    ]


def submit(name: str, text: str, deadline_s: float | None = None) -> Verdict:
    """Return the verdict on a cell's text. This process must not be an MPI process."""
    with TemporaryDirectory(prefix="labkit-exercise-", ignore_cleanup_errors=True) as folder:
        return verdict(name, text, Path(folder), deadline_s)


def fault(answer: Answer) -> str:
    """Return why an answer does not get what it must get; an empty text if it does."""
    found = submit(answer.name, answer.text)
    if found.check_failed:
        return f"the check failed: {found.finding}"
    if answer.words is None:
        return "" if found.passed else f"the reference is refused: {found.finding}"
    if found.passed:
        return f"passes, but must get: {answer.words}"
    return "" if answer.words in found.finding else f"gets: {found.finding}\n    must get: {answer.words}"


def main(wanted: list[str]) -> int:
    faults = 0
    for answer in [*references(), *wrong_answers()]:
        module = catalogue.module_of(answer.name).rpartition(".")[2]
        if wanted and not {answer.name, module} & set(wanted):
            continue
        began = time.monotonic()
        found = fault(answer)
        faults += bool(found)
        print(f"{time.monotonic() - began:4.1f} s  {answer.label}{': ' * bool(found)}{found}", flush=True)
    print(f"{faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
