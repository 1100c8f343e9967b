"""Communicators, windows, files and requests of before a failed cell: each use raises `EndedError`.

`library_calls` knows the objects that are alive, and the line that made each.
"""

from __future__ import annotations

import re
from types import CodeType
from typing import Any

from mpi4py import MPI

from mpiwatch.library_calls import (
    NOTED,
    OF_OBJECTS,
    RawComm,
    RawIntercomm,
    RawIntracomm,
    live_objects,
)
from mpiwatch.places import cell_number, is_cell, place_of_instruction
from mpiwatch.requests import EndedError, PolledRequest

# Methods that no longer matter, and do nothing.
ENDING = "Free", "Disconnect", "Close"
# What can still be asked.
ASKING = re.compile(r"Get_\w+|Is_\w+|Compare|tomemory|toint|fromint|py2f|f2py|free|fromhandle")
OBJECT_CALLS = OF_OBJECTS | {"isend", "ibsend", "issend", "irecv", "iprobe", "improbe"}


def explanation(what: str, code: CodeType | None, instruction: int, because: str) -> str:
    """Return why something cannot be used any more, and what to do; `code` has made it, if it is known."""
    if code is None:
        return f"this {what} ended when {because}: make it anew"
    where = f" at {place_of_instruction(code, instruction, is_running=False)}"
    number = cell_number(code.co_filename) if is_cell(code.co_filename) else ""
    again = f"run cell [{number}] again" if number else "make it anew"
    return f"this {what}, made{where}, ended when {because}: {again}"


def _communicates(name: str) -> bool:
    return name in OBJECT_CALLS or (name[0].isupper() and not ASKING.fullmatch(name))


def _refuse(name: str) -> Any:
    def refuse(self: Any, *arguments: Any, **named: Any) -> Any:
        raise EndedError(vars(self)["_ended"])

    refuse.__name__ = name
    return refuse


def _getattr(self: Any, name: str) -> Any:
    """Refuse what its own class had, such as the methods of a grid."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise EndedError(vars(self)["_ended"])


def _do_nothing(self: Any) -> None:
    """Do nothing: what it would free has ended."""


def _ended_class(mpi4py_class: type, what: str) -> type:
    """Return a class whose methods raise EndedError, except those that ask for something."""
    methods: dict[str, Any] = {"__doc__": f"A {what} of before a failed cell.", "__getattr__": _getattr}
    for name in dir(mpi4py_class):
        if name in ENDING:
            methods[name] = _do_nothing
        elif callable(getattr(mpi4py_class, name)) and _communicates(name):
            methods[name] = _refuse(name)
    return type(f"Ended{mpi4py_class.__name__}", (mpi4py_class,), methods)


def _what(mpi4py_class: type) -> str:
    if issubclass(mpi4py_class, RawComm):
        return "communicator"
    return "window" if mpi4py_class.__name__ == "Win" else mpi4py_class.__name__.lower()


ENDED = {mpi4py_class: _ended_class(mpi4py_class, _what(mpi4py_class)) for mpi4py_class in NOTED}


def end_others(world: Any, because: str) -> list[Any]:
    """End all live communicators, windows and files but `world`; return copies of the communicators."""
    copies = []
    for ended, live in live_objects():
        mpi4py_class: Any = type(ended)
        while mpi4py_class not in NOTED:
            mpi4py_class = mpi4py_class.__base__
        if ended is world or ended is MPI.COMM_SELF or type(ended) is ENDED[mpi4py_class]:
            continue
        if isinstance(ended, RawComm) and ended != MPI.COMM_SELF and not is_freed(ended):
            copies.append((RawIntercomm if ended.Is_inter() else RawIntracomm)(ended))
        vars(ended).clear()
        ended._ended = explanation(_what(mpi4py_class), live.code, live.instruction, because)
        ended.__class__ = ENDED[mpi4py_class]
    return copies


def is_freed(comm: Any) -> bool:
    """Return whether a communicator does not exist any more; a copy of its handle may outlive it."""
    try:
        comm.Is_inter()
    except MPI.Exception:  # MPI.COMM_NULL, too
        return True
    return False


def end_request(request: Any, made: Any, because: str) -> None:
    """End a request, which has been cancelled or given up."""
    if isinstance(request, PolledRequest):
        request.end(explanation(f"request of {made.operation}", made.code, made.instruction, because))
