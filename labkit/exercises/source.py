"""The text of the cell in which a student has written a function, and whether it is still a stub."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

from mpiwatch.source import is_cell


def cell_text(function: Callable[..., Any]) -> str:
    """Return the text of the cell that defines a function; outside notebooks, of the function alone.

    Raise OSError if the text is not known.
    """
    file = function.__code__.co_filename
    if is_cell(file) and (lines := linecache.getlines(file)):
        return "".join(lines)
    return textwrap.dedent(inspect.getsource(function))


def is_stub(text: str, name: str) -> bool:
    """Tell whether the function of this name in a cell has no code: a docstring and `pass`, say."""
    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return False
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    return bool(found) and all(map(_does_nothing, found[-1].body))


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return statement.exc is not None and "NotImplementedError" in ast.dump(statement.exc)
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
