"""All exercises, notebook by notebook: each module `nb*` of this room exports `EXERCISES`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from labkit.exercises.exercise import Exercise


class UnknownExercise(LookupError):
    """There is no exercise of this name."""


def modules() -> list[str]:
    """Return the names of the modules that hold exercises, sorted."""
    return [
        f"{__name__}.{info.name}" for info in pkgutil.iter_modules(__path__) if info.name.startswith("nb")
    ]


@cache
def exercises() -> dict[str, Exercise]:
    """Return all exercises by name, in the notebooks' order. Raise ValueError if a name is used twice."""
    found: dict[str, Exercise] = {}
    for module in modules():
        for exercise in _of(module):
            if exercise.name in found:
                raise ValueError(f"two exercises are called {exercise.name}")
            found[exercise.name] = exercise
    return found


def find(name: str) -> Exercise:
    """Return an exercise by the name of its function. Import no other notebook's exercises."""
    module = module_of(name)
    return next(exercise for exercise in _of(module) if exercise.name == name)


@cache
def module_of(name: str) -> str:
    """Return the module that holds an exercise. Raise UnknownExercise if there is none."""
    for module in modules():
        stem = Path(__path__[0]) / module.rpartition(".")[2]
        files = sorted(stem.glob("*.py")) if stem.is_dir() else [stem.with_suffix(".py")]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        if f"def {name}(" in text and any(exercise.name == name for exercise in _of(module)):
            return module
    raise UnknownExercise(f"there is no exercise called {name}")


def _of(module: str) -> list[Exercise]:
    found: list[Exercise] = importlib.import_module(module).EXERCISES
    return found
