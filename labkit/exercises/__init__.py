"""Check a student's function on ranks: result, traffic, edge cases; and say what is wrong, and where.

`__all__` is what a notebook imports. It is loaded when it is first used: the job that runs a student's code
imports modules of this room, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.exercises.allreduce_contest import contest
    from labkit.exercises.checking import answer, check, hint, whose
    from labkit.exercises.collecting import collect, own
    from labkit.exercises.on_call import incident
    from labkit.exercises.record import progress

__all__ = ["answer", "check", "collect", "contest", "hint", "incident", "own", "progress", "whose"]

_HOMES = {"contest": "allreduce_contest", "incident": "on_call", "progress": "record"}
_HOMES |= {"collect": "collecting", "own": "collecting"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'checking')}"), name)
