"""The reference solution of an exercise: its text, and the function that stands in for the student's."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from types import FunctionType
from typing import Any

from labkit.exercises.exercise import Exercise


def reference_text(exercise: Exercise) -> str:
    """Return the reference's source text, without the comments that linters read."""
    return exercise.text


def reference_function(exercise: Exercise, names: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Return the reference as a function that looks names up in `names`, those of the notebook.

    So it calls the student's functions of earlier exercises. What the exercise's prelude imports and `names`
    lacks is added to it.
    """
    text, file = reference_text(exercise), f"<reference of {exercise.name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    own: dict[str, Any] = {"__name__": file}
    exec(exercise.prelude, own)
    exec(compile(text, file, "exec"), own)
    function: FunctionType = own.pop(exercise.name)
    if names is None:
        names = {}
    for name, value in own.items():
        names.setdefault(name, value)
    reference = FunctionType(
        function.__code__, names, exercise.name, function.__defaults__, function.__closure__
    )
    reference.__doc__, reference.__kwdefaults__ = function.__doc__, function.__kwdefaults__
    return reference


def is_reference(function: Callable[..., Any], exercise: Exercise) -> bool:
    """Tell whether a function is the reference, as `check` returns it or as the catalogue holds it."""
    return (
        function is exercise.reference or function.__code__.co_filename == f"<reference of {exercise.name}>"
    )
