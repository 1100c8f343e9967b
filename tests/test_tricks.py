"""Code that a third-year student can read aloud: tricks stand only where a reason is named."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = "labkit", "mpiwatch/src", "benchmarks", "tools"
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

# What reads or changes Python's inside -> the files that may use it, each with the reason.
FRAMES = "a report names the program's line; traceback.extract_stack takes 28 µs in place of 1"
TRICKS = {
    "_getframe": {
        "mpiwatch/src/mpiwatch/collectives.py": FRAMES,
        "mpiwatch/src/mpiwatch/communicators.py": FRAMES,
        "mpiwatch/src/mpiwatch/library_calls.py": FRAMES,
        "mpiwatch/src/mpiwatch/message_waits.py": FRAMES,
        "mpiwatch/src/mpiwatch/messages.py": FRAMES,
        "mpiwatch/src/mpiwatch/places.py": FRAMES,
        "mpiwatch/src/mpiwatch/strict/communicators.py": FRAMES,
        "mpiwatch/src/mpiwatch/strict/freed.py": FRAMES,
        "mpiwatch/src/mpiwatch/trace_recorder.py": FRAMES,
        "labkit/cluster/engine_guards.py": "the line of a call that ends the rank's process",
        "labkit/exercises/checking.py": "the cell that calls `check`, whose variables it reads",
    },
    "_current_frames": {
        "mpiwatch/src/mpiwatch/collectives.py": "two threads in one communicator's collectives",
        "mpiwatch/src/mpiwatch/library_calls.py": "the line at which the main thread waits for another",
        "mpiwatch/src/mpiwatch/waiting.py": "whether another thread may make an MPI call",
        "mpiwatch/src/mpiwatch/watchdog.py": "the line at which the main thread is",
    },
    "f_locals": {"mpiwatch/src/mpiwatch/collectives.py": "which communicator the other thread is inside"},
    "memmove": {"mpiwatch/src/mpiwatch/renewal.py": "`comm` and `MPI.COMM_WORLD` go on after a failed cell"},
    "get_objects": {},
    "get_referrers": {},
    "getrefcount": {},
    "co_code": {},
    "get_instructions": {},
    "setprofile": {},
    "settrace": {},
}


@cache
def nodes(path: Path) -> list[Any]:
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def names_in(path: Path) -> set[str]:
    """Return the attributes and imported names that a file uses."""
    attributes = {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}
    imported = {
        alias.name for node in nodes(path) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return attributes | imported


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_stands_only_where_its_reason_is_named(trick: str) -> None:
    assert {name_of(path) for path in FILES if trick in names_in(path)} == set(TRICKS[trick])


def places(condition: Callable[[Any], bool]) -> list[str]:
    """Return the lines of all files with a node of which a condition holds."""
    return [f"{name_of(path)}:{node.lineno}" for path in FILES for node in nodes(path) if condition(node)]


def test_no_assignment_inside_an_expression() -> None:
    assert places(lambda node: isinstance(node, ast.NamedExpr)) == [], "give the assignment a line of its own"


def is_truth(node: ast.expr) -> bool:
    """Return whether an expression is seen to be true or false."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("bool", "any", "all", "isinstance")
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, ast.Compare | ast.BoolOp)


def is_text_or_list(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def multiplies_text(node: ast.AST) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    pairs = (node.left, node.right), (node.right, node.left)
    return any(is_text_or_list(one) and is_truth(other) for one, other in pairs)


def test_no_text_is_multiplied_by_a_truth_value() -> None:
    assert places(multiplies_text) == [], "write `text if condition else other`"


def has_two_conditions(node: ast.AST) -> bool:
    parts = (node.test, node.body, node.orelse) if isinstance(node, ast.IfExp) else ()
    return any(isinstance(part, ast.IfExp) for part in parts)


def test_no_condition_stands_inside_another_condition_of_an_expression() -> None:
    assert places(has_two_conditions) == [], "use if, elif and else"


def test_the_test_sees_what_it_forbids() -> None:
    text = "if (x := f()):\n    y = 's' * (n > 1)\nz = 1 if a else 2 if b else 3\n"
    found = list(ast.walk(ast.parse(text)))
    assert any(isinstance(node, ast.NamedExpr) for node in found)
    assert any(map(multiplies_text, found)) and any(map(has_two_conditions, found))
