"""Communicators that record which of their methods a student's function calls."""

from __future__ import annotations

import inspect
import pickle
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from mpi4py import MPI

import mpiwatch
from labkit.exercises.exercise import Call
from mpiwatch.wrapper import CommWrapper

mpiwatch.wrappers.append("labkit.exercises")  # a report names the student's line

PROBES = "Iprobe", "iprobe", "Improbe", "improbe"  # a student's loop may call one a million times
LEFT_OUT = (
    *PROBES,
    *("f2py", "py2f", "fromhandle", "fromint", "toint", "free", "Create_from_group", "Get_parent", "Join"),
)
METHODS = [
    name
    for name, value in inspect.getmembers(MPI.Intracomm, callable)
    if not name.startswith("_") and name not in LEFT_OUT
]


def recording(note: Callable[[Call], object], names: Collection[str] = METHODS) -> type[CommWrapper]:
    """Return a class of communicators that note each call of these methods before they make it.

    So do the communicators made from them. Calls that other wrappers make inside a call are not noted.
    """
    inside = threading.local()

    class Recording(CommWrapper):
        pass

    def recorded(name: str) -> Callable[..., Any]:
        def call(self: Recording, *arguments: Any, **named: Any) -> Any:
            following = getattr(super(Recording, self), name)
            if getattr(inside, "is_inside", False):
                return following(*arguments, **named)
            note(_call(name, arguments, named))
            inside.is_inside = True
            try:
                return following(*arguments, **named)
            finally:
                inside.is_inside = False

        return wraps(getattr(MPI.Intracomm, name))(call)

    for name in set(names) & set(METHODS):  # an old mpi4py has fewer
        setattr(Recording, name, recorded(name))
    return Recording


def _call(name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call:
    everything = [*arguments, *named.values()]
    if name.islower():
        sizes = [_size(everything[0] if everything else None)]
    else:
        sizes = [size for each in everything if (size := _buffer_size(each)) is not None]
    numbers = [int(each) for each in everything if isinstance(each, (int, np.integer))]
    peer = named.get("dest", named.get("source", numbers[0] if numbers else -1))
    return Call(name, min(sizes, default=0), max(sizes, default=0), int(peer), time.perf_counter())


def _buffer_size(buffer: Any) -> int | None:
    """Return the bytes of an array, or of its beginning: [array, count, …]. None for anything else."""
    array, *more = buffer if isinstance(buffer, (list, tuple)) and buffer else [buffer]
    if more and isinstance(more[0], (int, np.integer)) and hasattr(array, "itemsize"):
        return int(more[0] * array.itemsize)
    return getattr(array, "nbytes", None)


def _size(message: Any) -> int:
    """Return the bytes of an object that a call pickles, roughly."""
    if isinstance(message, (list, tuple)):
        return sum(map(_size, message))
    return int(message.nbytes) if hasattr(message, "nbytes") else len(pickle.dumps(message))
