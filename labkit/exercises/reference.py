"""The reference of an exercise as a function that a notebook or a cell on the ranks can call."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from labkit.checks.exercise import Exercise

REFERENCE = "<reference of "  # begins the name of the file of a reference that `check` returns


def reference_function(exercise: Exercise, names: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Return the reference as a function that looks names up in `names`, those of the notebook.

    So it calls the student's functions of earlier exercises. What the exercise's prelude imports and `names`
    lacks is added to it. Its text is not known to Python: `??` after the name would show it too early.
    """
    file = f"{REFERENCE}{exercise.name}>"
    namespace: dict[str, Any] = {"__name__": file}
    exec(exercise.prelude, namespace)
    exec(compile(exercise.text, file, "exec"), namespace)
    function: FunctionType = namespace.pop(exercise.name)
    names = {} if names is None else names
    for name, value in namespace.items():
        names.setdefault(name, value)
    reference = FunctionType(function.__code__, names, exercise.name, function.__defaults__)
    reference.__doc__ = function.__doc__
    reference.__kwdefaults__ = function.__kwdefaults__
    return reference
