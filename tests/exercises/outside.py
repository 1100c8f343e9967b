"""Answers from outside: right and wrong ones, written from the notebooks alone, in `answers/NN/name.txt`.

    python -m tests.exercises.outside [--folder FOLDER] [NAME …]

hands them in, or those of these exercises or notebooks ("nb03"), and prints for each exercise how many wrong
answers are accepted and right ones refused, and the finding of each wrong one, to be compared with its fault.
An answer begins with a line `=== wrong 3 | its fault`, or `=== right 1 | what is unusual about it`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat.v4 import new_code_cell

from labkit.checks.exercise import ORIGINALS, Exercise
from labkit.cli.course import copies
from labkit.exercises import catalogue
from tests.exercises.corpus import submit

FOLDER = Path(__file__).with_name("answers")
HEAD = re.compile(r"^=== (wrong|right) (\d+) \| (.*)\n", re.MULTILINE)


class Answer(NamedTuple):
    """An answer; `about` is its fault, or what is unusual about a right one."""

    is_right: bool
    number: int
    about: str
    text: str

    def __str__(self) -> str:
        """Return "wrong 3"."""
        return f"{'right' if self.is_right else 'wrong'} {self.number}"


def answers(name: str, folder: Path = FOLDER) -> list[Answer]:
    """Return the answers to an exercise; none if there is no file of them."""
    path = folder / catalogue.find(name).notebook / f"{name}.txt"
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    heads = list(HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        Answer(head[1] == "right", int(head[2]), head[3], text[head.end() : end].strip() + "\n")
        for head, end in zip(heads, ends, strict=True)
    ]


def in_notebook(exercise: Exercise, text: str) -> str:
    """Return an answer with the functions of its notebook's other cells that it calls, as a check does."""
    (path,) = ORIGINALS.glob(f"{exercise.notebook}_*.ipynb")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    others = [cell for cell in cells if exercise.name not in copies.functions(cell.source)]
    return copies.answer_with_helpers(exercise.name, [new_code_cell(text), *others], ())


def main(words: list[str]) -> int:
    """Print the table, and the findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", choices=["odd", "even"], help="numbers")
    parser.add_argument("--quiet", action="store_true", help="only what is accepted or refused wrongly")
    options = parser.parse_args(words)
    accepted = refused = wrong = right = 0
    for name, exercise in catalogue.exercises().items():
        if options.names and not {name, f"nb{exercise.notebook}"} & set(options.names):
            continue
        tried, began = answers(name, options.folder), time.monotonic()
        if options.only:
            tried = [each for each in tried if each.number % 2 == (options.only == "odd")]
        lines, faults = [], [0, 0]
        texts = [in_notebook(exercise, each.text) for each in tried]
        for answer, verdict in zip(tried, submit(name, *texts), strict=True):
            is_fault = verdict.passed != answer.is_right
            faults[answer.is_right] += is_fault
            mark = "!!" if is_fault or verdict.check_failed else "  "
            if is_fault or verdict.check_failed or not (answer.is_right or options.quiet):
                lines.append(f"{mark} {answer}: {answer.about}\n       -> {verdict.finding or 'accepted'}")
        right += sum(each.is_right for each in tried)
        wrong += sum(not each.is_right for each in tried)
        accepted, refused = accepted + faults[0], refused + faults[1]
        seconds = time.monotonic() - began
        said = f"{faults[0]} wrong accepted, {faults[1]} right refused"
        print(f"{seconds:5.1f} s  {name}: {len(tried)} answers, {said}")
        print(*lines, sep="\n", flush=True)
    print(f"{accepted} of {wrong} wrong answers accepted, {refused} of {right} right ones refused")
    return int(accepted + refused > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
