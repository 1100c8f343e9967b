"""All exercises, notebook by notebook: those that the modules `nb00` … `nb10` define, in their order."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from labkit.checks.exercise import Exercise, exercises_of


class UnknownExercise(LookupError):
    """There is no exercise of this name."""


@cache
def exercises() -> dict[str, Exercise]:
    """Return all exercises by name, in the notebooks' order."""
    return {exercise.name: exercise for file in _files() for exercise in _of(file)}


@cache
def find(name: str) -> Exercise:
    """Return an exercise by the name of its function. Import no other notebook's exercises.

    Raise UnknownExercise if there is none.
    """
    files = [file for file in _files() if f"\ndef {name}(" in file.read_text(encoding="utf-8")]
    matching = [exercise for file in files for exercise in _of(file) if exercise.name == name]
    if not matching:
        near = "".join(
            f": did you mean {suggestion}?" for suggestion in get_close_matches(name, exercises(), n=1)
        )
        raise UnknownExercise(f"there is no exercise called {name}{near}")
    return matching[0]


@cache
def questions() -> dict[str, str]:
    """Return the model answers to the questions in the notebooks, by the names of the questions."""
    modules = (importlib.import_module(f"labkit.exercises.{file.stem}") for file in _files())
    return {name: model for module in modules for name, model in getattr(module, "QUESTIONS", {}).items()}


def _files() -> list[Path]:
    return sorted(Path(__file__).parent.glob("nb*.py"))


def _of(file: Path) -> list[Exercise]:
    return exercises_of(f"labkit.exercises.{file.stem}")
