"""The list of all exercises for instructors: minutes, points, and the mistakes that the checks name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.exercises.exercise import Exercise
from mpiwatch.wording import counted

HEAD = """\
# The exercises

Made by `labkit solutions` from `labkit/exercises/catalogue`. Minutes are those of the exercises for a student
with the prerequisites; reading and the other cells take more time. Difficulty runs from 1, a formula
to type, to 5, an idea to find.
"""


def markdown(exercises: Iterable[Exercise], titles: dict[str, str]) -> str:
    """Return the list as a Markdown text. `titles` maps a notebook's number, as "05", to its title."""
    by_notebook: dict[str, list[Exercise]] = {number: [] for number in titles}
    for exercise in exercises:
        by_notebook.setdefault(exercise.notebook, []).append(exercise)
    every = [exercise for some in by_notebook.values() for exercise in some]
    rows = [_row(titles.get(number, number), some) for number, some in by_notebook.items()]
    table = ["| Notebook | Exercises | Minutes | Points |", "|---|---|---|---|", *rows, _row("all", every)]
    parts = [HEAD, "\n".join(table)]
    for number, some in by_notebook.items():
        if some:
            parts += [f"## {titles.get(number, number)}", *map(_section, some)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _row(title: str, exercises: Sequence[Exercise]) -> str:
    minutes = sum(exercise.minutes for exercise in exercises)
    points = sum(exercise.points for exercise in exercises)
    return f"| {title} | {len(exercises)} | {minutes} | {points} |"


def _section(exercise: Exercise) -> str:
    """Return the section of an exercise: its numbers, and the mistakes that its check names."""
    points = counted(exercise.points, "point")
    difficulty = f"difficulty {exercise.difficulty} of 5"
    lines = [
        f"### {exercise.title}",
        "",
        f"`{exercise.name}` · {difficulty} · {exercise.minutes} minutes · {points}",
        "",
    ]
    return "\n".join([*lines, *(f"- {mistake.rstrip('.')}." for mistake in exercise.suspects)])
