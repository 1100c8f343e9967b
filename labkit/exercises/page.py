"""The page of what is done: a table of all exercises, for a notebook or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from labkit.exercises import catalogue, record
from labkit.exercises.exercise import Exercise
from mpiwatch.wording import counted

STATES = {"done": "done", "tried": "tried", "": "not yet"}
MARKS = {"done": "✔", "tried": "…", "": " "}


@dataclass(frozen=True)
class Progress:
    """All exercises and what is done. A notebook shows it as a table; `str` gives the same as text."""

    exercises: Sequence[Exercise]
    states: Mapping[str, str]

    @property
    def points(self) -> int:
        """Return the points of the exercises that are done."""
        return sum(each.points for each in self.exercises if self.states.get(each.name) == "done")

    def summary(self) -> str:
        """Return how many exercises are done, and how many points that gives."""
        done = sum(self.states.get(each.name) == "done" for each in self.exercises)
        points = sum(each.points for each in self.exercises)
        return f"{done} of {len(self.exercises)} exercises, {self.points} of {points} points"

    def __str__(self) -> str:
        lines = []
        width = max((len(each.name) for each in self.exercises), default=0)
        for each in self.exercises:
            state = self.states.get(each.name, "")
            stars = "★" * each.difficulty + "☆" * (5 - each.difficulty)
            points = counted(each.points, "point")
            lines.append(
                f"{MARKS[state]} {each.notebook}  {each.name:<{width}}  {stars}  {points:<8}  {STATES[state]}"
            )
        return "\n".join([*lines, self.summary()])

    def _repr_html_(self) -> str:
        rows = []
        for each in self.exercises:
            state = self.states.get(each.name, "")
            cells = (
                each.notebook,
                f"{escape(each.title)} (<code>{each.name}</code>)",
                "★" * each.difficulty + "☆" * (5 - each.difficulty),
                f"{each.minutes} min",
                str(each.points),
                f"{MARKS[state]} {STATES[state]}",
            )
            rows.append("<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells))
        names = "notebook", "exercise", "difficulty", "time", "points", "state"
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>{self.summary()}</p>"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(str(self))  # type: ignore[attr-defined]


def progress() -> Progress:
    """Return all exercises and what is done: the last line of a cell shows it."""
    known = record.load()
    states = {name: entry.get("state", "") for name, entry in known.items()}
    return Progress(
        list(catalogue.exercises().values()), {name: s for name, s in states.items() if s in STATES}
    )
