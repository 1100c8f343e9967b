"""Check a student's function on ranks: result, traffic, edge cases; and say what is wrong, and where.

`check`, `hint` and `progress` are what a notebook imports. They are loaded when they are first used: the job
that runs a student's code imports modules of this room, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.exercises.checking import check, hint
    from labkit.exercises.record import progress

__all__ = ["check", "hint", "progress"]

_HOMES = {"check": "checking", "hint": "checking", "progress": "record"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
