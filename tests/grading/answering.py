"""Write answers into a notebook as a student does."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from nbformat.v4 import new_code_cell

from labkit.checks.exercise import Exercise
from labkit.cli.course import copies

ABOVE = "# My answer. It took me\n\n# an evening.\n\n"  # comments and empty lines above `%%px`


def put(notebook: Any, name: str, text: str) -> None:
    """Write a text in place of the stub of an exercise."""
    cell = stub_of(notebook, name)
    cell.source = copies.without_magic(cell.source)[0] + text


def type_in(notebook: Any, exercise: Exercise) -> None:
    """Type the reference's statements in below the stub's head and docstring, and comments above the cell."""
    cell = stub_of(notebook, exercise.name)
    magic, stub = copies.without_magic(cell.source)
    cell.source = ABOVE + magic + with_body(stub, exercise.name, body_of(exercise))


def type_in_with_helper(notebook: Any, exercise: Exercise) -> None:
    """Write the reference as a helper in a cell of its own, above the exercise's, which only calls it.

    The other functions of the exercise's cell, such as `chunk`, move into the helper's cell, too.
    """
    cell = stub_of(notebook, exercise.name)
    magic, stub = copies.without_magic(cell.source)
    parameters = list(inspect.signature(exercise.reference).parameters)
    helper_name = f"work_of_{exercise.name}"
    lines = stub.splitlines()
    node = copies.functions(stub)[exercise.name]
    others = "\n".join(lines[: node.lineno - 1])
    helper = exercise.text.replace(f"def {exercise.name}(", f"def {helper_name}(")
    notebook.cells.insert(notebook.cells.index(cell), new_code_cell(f"{magic}{others}\n\n\n{helper}"))
    call = f"    return {helper_name}({', '.join(parameters)})"
    cell.source = ABOVE + magic + with_body("\n".join(lines[node.lineno - 1 :]), exercise.name, call)


def stub_of(notebook: Any, name: str) -> Any:
    """Return the cell that a student writes the answer to an exercise in."""
    return next(pair.stub for pair in copies.pairs(notebook) if pair.name == name)


def with_body(stub: str, name: str, body: str) -> str:
    """Return a stub with a body in place of the comment below its docstring."""
    lines = stub.splitlines()
    end = copies.functions(stub)[name].end_lineno
    assert end is not None
    rest = end
    while rest < len(lines) and lines[rest].startswith("    #"):
        rest += 1
    return "\n".join([*lines[:end], body, *lines[rest:]])


def body_of(exercise: Exercise) -> str:
    """Return the text of the reference's statements, without its docstring."""
    node = copies.functions(exercise.text)[exercise.name]
    docstring = node.body[0]
    assert isinstance(docstring, ast.Expr)
    return "\n".join(exercise.text.splitlines()[docstring.end_lineno :])
