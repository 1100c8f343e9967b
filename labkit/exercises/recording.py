"""The communicator that a student's function gets: it records which methods the function calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpiwatch.wrapper import CommWrapper


class Calls:
    """The names of the methods that the student's function has called, in order, each once."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.inside = threading.local()


class RecordingComm(CommWrapper):
    """An `Intracomm` that records the methods called on it and on communicators made from it.

    Calls that other wrappers make inside a call are not recorded.
    """

    calls: Calls

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.calls = self.calls


def recording(comm: MPI.Intracomm, calls: Calls) -> Any:
    """Return the communicator with its calls recorded."""
    made = RecordingComm(comm)
    made.calls = calls
    return made


def _recorded(name: str) -> Callable[..., Any]:
    def call(self: RecordingComm, *arguments: Any, **named: Any) -> Any:
        following = getattr(super(RecordingComm, self), name)
        calls = vars(self).get("calls")
        if calls is None or getattr(calls.inside, "is_inside", False):
            return following(*arguments, **named)
        calls.names[name] = None
        calls.inside.is_inside = True
        try:
            return following(*arguments, **named)
        finally:
            calls.inside.is_inside = False

    call.__name__, call.__doc__ = name, getattr(MPI.Intracomm, name).__doc__
    return call


_LEFT_OUT = {
    "f2py",
    "py2f",
    "fromhandle",
    "fromint",
    "toint",
    "free",
    "Create_from_group",
    "Get_parent",
    "Join",
}
for _name in dir(MPI.Intracomm):
    _method = getattr(MPI.Intracomm, _name)
    if callable(_method) and not _name.startswith("_") and _name not in _LEFT_OUT:
        setattr(RecordingComm, _name, _recorded(_name))
