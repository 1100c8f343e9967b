"""What a student has done so far: a small file, shared by the notebooks of a folder; its table.

`labkit/exercises/record_place.py` says where it is. A damaged one is kept under another name.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.checks.exercise import Exercise
from labkit.exercises import catalogue
from labkit.exercises.record_place import FILE, path, take_over
from labkit.files import atomic_write, locked, read_input
from labkit.text import COLUMNS, counted, wrapped

LOCK_S = 20.0  # for other notebooks that change the record, which takes milliseconds
# By exercise: "state" ("tried" or "done"), "checks": how often it was checked, "finding": of the last check,
# "hints": how many are open, "cell": the text that has passed, and "stub": that of the exercise then; by
# question: "answer" and "first", the first one; by incident also "scores".
Record = dict[str, dict[str, Any]]
__all__ = ["FILE", "path"]
STATES = {"done": "✔ done", "tried": "… tried", "": "  not yet"}


def load() -> Record:
    """Return what is done; nothing if there is no file. A damaged one gets another name, which is printed."""
    take_over(path())
    try:
        content = json.loads(read_input(path()))
        record = {str(name): dict(entry) for name, entry in content["exercises"].items()}
        for entry in record.values():
            texts = [entry.get(key, "") for key in ("state", "answer", "first", "finding", "cell", "stub")]
            numbers = [entry.get(key, 0) for key in ("hints", "checks")]
            if {type(text) for text in texts} != {str} or {type(number) for number in numbers} != {int}:
                raise TypeError
    except OSError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        names = (path().with_name(f"{path().name}.damaged-{number}") for number in itertools.count(1))
        new = next(name for name in names if not os.path.lexists(name))
        with suppress(OSError):  # another process has done it, or the folder cannot be written to
            path().rename(new)
            text = f"{path()} is damaged: it is now {new.name}, and all exercises count as not done."
            print(text, file=sys.stderr)
        return {}
    return record


def note(name: str, passed: bool, cell: str = "", finding: str = "") -> None:
    """Note that an exercise was checked, and what was found; keep the text of a cell that has passed.

    An exercise that is done stays done and keeps its text. Without a writable file, do nothing.
    """
    with suppress(OSError), _changing() as record:
        entry = record.setdefault(name, {})
        entry["state"] = "done" if passed or entry.get("state") == "done" else "tried"
        entry["checks"] = entry.get("checks", 0) + 1
        entry["finding"] = "" if passed else finding
        if passed and cell:
            entry["cell"], entry["stub"] = cell, catalogue.find(name).stub


def passed_cells() -> dict[str, str]:
    """Return the texts of the cells that have passed, by exercise; "" if the exercise has changed since."""
    cells = {}
    for name, entry in load().items():
        exercise = catalogue.exercises().get(name)
        if "cell" in entry and exercise is not None:
            cells[name] = entry["cell"] if entry.get("stub") == exercise.stub else ""
    return cells


def open_hint(name: str, count: int) -> int:
    """Open one more of an exercise's hints; return how many of the `count` are open now."""
    opened = 1
    with suppress(OSError), _changing() as record:
        entry = record.setdefault(name, {"state": ""})
        opened = entry["hints"] = min(count, int(entry.get("hints", 0)) + 1)
    return opened


def keep_answer(name: str, text: str, *, once: bool = False, **more: Any) -> bool:
    """Keep the answer to a question, and what else belongs to it; return whether it is the first.

    `once` keeps the first answer and no later one, otherwise both are kept. Without a writable file, do
    nothing.
    """
    is_first = False
    with suppress(OSError), _changing() as record:
        is_first = name not in record
        if is_first or not once:
            first = {} if is_first else {"first": first_answer(name, record)}
            record[name] = {"answer": text, **first, **more}
    return is_first


def first_answer(name: str, record: Record | None = None) -> str:
    """Return the first answer to a question; nothing if there is none."""
    entry = (load() if record is None else record).get(name, {})
    return str(entry.get("first", entry.get("answer", "")))


@contextmanager
def _changing() -> Iterator[Record]:
    """Change the record; other notebooks wait meanwhile."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with locked(path().with_name(f".{path().name}.lock"), LOCK_S):
        record = load()
        yield record
        with atomic_write(path()) as file:
            file.write(json.dumps({"exercises": record}, indent=1).encode() + b"\n")


@dataclass(frozen=True, repr=False)
class Progress:
    """All exercises and what is done, and the answers to questions: a text, and in a notebook a table."""

    exercises: Sequence[Exercise]
    states: Mapping[str, str]
    answers: Mapping[str, str]

    @property
    def points(self) -> int:
        """Return the points of the exercises that are done."""
        return sum(exercise.points for exercise in self.exercises if self.states.get(exercise.name) == "done")

    def summary(self) -> str:
        """Return how many exercises are done, and how many points that gives."""
        done = sum(self.states.get(exercise.name) == "done" for exercise in self.exercises)
        points = sum(exercise.points for exercise in self.exercises)
        return f"{done} of {len(self.exercises)} exercises, {self.points} of {points} points"

    def _rows(self) -> Iterator[tuple[Exercise, list[str]]]:
        """Yield each exercise with its stars, points and state."""
        for exercise in self.exercises:
            stars = "★" * exercise.heading.difficulty + "☆" * (5 - exercise.heading.difficulty)
            yield (
                exercise,
                [stars, counted(exercise.points, "point"), STATES[self.states.get(exercise.name, "")]],
            )

    def __repr__(self) -> str:
        width = max((len(exercise.name) for exercise in self.exercises), default=0)
        lines = [
            f"{state[0]} {exercise.notebook:<3} {exercise.name:<{width}}  {stars}  {points:<8}  {state[2:]}"
            for exercise, (stars, points, state) in self._rows()
        ]
        answers = [wrapped(f"Question {name}: {text}", COLUMNS) for name, text in self.answers.items()]
        return "\n".join([*lines, self.summary(), *answers])

    def _repr_html_(self) -> str:
        rows = []
        left = "style='text-align:left'"
        for exercise, (stars, points, state) in self._rows():
            link = f"<a href='{escape(exercise.heading.link)}'>{escape(exercise.heading.title)}</a>"
            in_words = f"difficulty {exercise.heading.difficulty} of 5"
            drawn = f"<span role='img' aria-label='{in_words}' title='{in_words}'>{stars}</span>"
            minutes, number = f"{exercise.heading.minutes} min", points.split()[0]
            cells = "".join(f"<td {left}>{cell}</td>" for cell in (drawn, minutes, number, state))
            title = f"<th scope='row' {left}>{link} (<code>{exercise.name}</code>)</th>"
            rows.append(f"<tr><td {left}>{exercise.notebook}</td>{title}{cells}</tr>")
        names = "notebook", "exercise", "difficulty", "time", "points", "state"
        head = "".join(f"<th scope='col' {left}>{name}</th>" for name in names)
        answers = "".join(f"<p>Question {name}: {escape(text)}</p>" for name, text in self.answers.items())
        return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>{self.summary()}</p>{answers}"


def progress(notebook: str = "") -> Progress:
    """Return what is done of all exercises, or of those of a notebook: "05". A cell's last line shows it."""
    known = load()
    states = {name: entry["state"] for name, entry in known.items() if entry.get("state") in STATES}
    answers = {name: entry["answer"] for name, entry in sorted(known.items()) if "answer" in entry}
    return Progress(
        [exercise for exercise in catalogue.exercises().values() if notebook in ("", exercise.notebook)],
        states,
        {name: text for name, text in answers.items() if name.startswith(notebook)},
    )
