"""The reference solution of an exercise: its text, and the function that stands in for the student's."""

from __future__ import annotations

import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from typing import Any

from labkit.exercises.exercise import Exercise


def reference_text(exercise: Exercise) -> str:
    """Return the reference's source text, without the comments that linters read."""
    text = textwrap.dedent(inspect.getsource(exercise.reference))
    return re.sub(r"[ \t]*# (type: ignore|noqa)\b.*", "", text)


def reference_function(exercise: Exercise) -> Callable[..., Any]:
    """Return the reference as a function that uses only what the exercise's prelude imports."""
    text, file = reference_text(exercise), f"<reference of {exercise.name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace: dict[str, Any] = {"__name__": file}
    exec(exercise.prelude, namespace)
    exec(compile(text, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[exercise.name]
    return function


def is_reference(function: Callable[..., Any], exercise: Exercise) -> bool:
    """Tell whether a function is the reference, as `check` returns it or as the catalogue holds it."""
    return (
        function is exercise.reference or function.__code__.co_filename == f"<reference of {exercise.name}>"
    )
