"""Communicators that observe which of their methods a student's function calls."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from mpi4py import MPI

from mpiwatch.wrapper import CommWrapper

LEFT_OUT = "f2py", "py2f", "fromhandle", "fromint", "toint", "free", "Create_from_group", "Get_parent", "Join"
METHODS = [
    name
    for name, value in inspect.getmembers(MPI.Intracomm, callable)
    if not name.startswith("_") and name not in LEFT_OUT
]


def observing(names: Iterable[str], observe: Callable[[str, list[Any]], object]) -> type[CommWrapper]:
    """Return a class of communicators that call `observe(name, arguments)` before each of these methods.

    So do the communicators made from them. Calls that other wrappers make inside a call are not observed.
    """
    inside = threading.local()

    class Observing(CommWrapper):
        pass

    def observed(name: str) -> Callable[..., Any]:
        def call(self: Observing, *arguments: Any, **named: Any) -> Any:
            following = getattr(super(Observing, self), name)
            if getattr(inside, "is_inside", False):
                return following(*arguments, **named)
            observe(name, [*arguments, *named.values()])
            inside.is_inside = True
            try:
                return following(*arguments, **named)
            finally:
                inside.is_inside = False

        return wraps(getattr(MPI.Intracomm, name))(call)

    for name in set(names) & set(METHODS):  # an old mpi4py has fewer
        setattr(Observing, name, observed(name))
    return Observing
