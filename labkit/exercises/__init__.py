"""The exercises: tasks, references, cases, mistakes and hints; progress, my_ddp.py, contest, notebook 11.

`__all__` is what a notebook imports. A name's module is loaded when the name is first used: a job that runs a
student's code imports `labkit.exercises.wraps`, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    **dict.fromkeys(("answer", "check", "hint", "suspects", "whose"), "labkit.exercises.checking"),
    **dict.fromkeys(("collect", "own", "to_ranks"), "labkit.exercises.collecting"),
    "contest": "labkit.exercises.allreduce_contest",
    "incident": "labkit.exercises.on_call",
    "practice": "labkit.exercises.on_call",
    "progress": "labkit.exercises.record",
    "run_case": "labkit.exercises.watching",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
