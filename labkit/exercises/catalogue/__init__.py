"""All exercises, notebook by notebook: those that the modules `nb*` of this room define, in their order."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from labkit.exercises.exercise import Exercise

ROOM = Path(__path__[0]).parent


class UnknownExercise(LookupError):
    """There is no exercise of this name."""


def modules() -> list[str]:
    """Return the names of the modules that hold exercises, sorted."""
    room = __name__.rpartition(".")[0]
    found = [(info.name, room) for info in pkgutil.iter_modules([str(ROOM)])]
    found += [(info.name, __name__) for info in pkgutil.iter_modules(__path__)]
    return [f"{place}.{name}" for name, place in sorted(found) if name.startswith("nb")]


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
        stem = ROOM.joinpath(*module.split(".")[2:])
        files = sorted(stem.glob("*.py")) if stem.is_dir() else [stem.with_suffix(".py")]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        if f"def {name}(" in text and any(exercise.name == name for exercise in _of(module)):
            return module
    raise UnknownExercise(f"there is no exercise called {name}")


def _of(module: str) -> list[Exercise]:
    loaded = importlib.import_module(module)
    found = [each for each in vars(loaded).values() if isinstance(each, Exercise)]
    return found or list(loaded.EXERCISES)
