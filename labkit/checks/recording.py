"""Communicators that record which of their methods a student's function calls."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import mpiwatch
from labkit.checks.exercise import Call
from labkit.comm import CountingComm
from labkit.comm.counting import LIBRARY, SENDING, wrap
from mpiwatch.layers import CommWrapper, here, nbytes, note_starts, world_ranks
from mpiwatch.report import MAKERS, NONBLOCKING_RECEIVES

mpiwatch.register("labkit.checks", wraps=True)  # a report names the student's line

METHODS = *SENDING, *LIBRARY, "Recv", "recv", *NONBLOCKING_RECEIVES, *MAKERS

_calls = threading.local()  # how many noted calls a thread is inside


def is_in_call() -> bool:
    """Tell whether the student's function, and not the job itself, makes the present call."""
    return getattr(_calls, "depth", 0) > 0


class Counting(CountingComm):
    """Counts what the function sends: of an array, its own bytes, also where a lower-case method pickles it.

    It wraps the strict communicator, because strict mode sends messages by a route of its own.
    """

    innermost = False

    @staticmethod
    def object_bytes(message: Any) -> int:
        return _size(message)


# The sends of this case that can be started again, by identity: communicator, peer and bytes.
_persistent: dict[int, tuple[Any, int, int]] = {}


class OpenRequest(NamedTuple):
    """A request, the call that made it, and the student's line."""

    request: Any
    operation: str
    place: str


def _count_starts(comm: Counting, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
    request = call()
    if kwargs["dest"] != MPI.PROC_NULL:
        _persistent[id(request)] = comm, kwargs["dest"], nbytes(kwargs["buf"])
        _kept.append(request)  # so that no other request gets its id
    return request


def count_start(request: Any) -> None:
    """Count the message of a persistent send that starts."""
    if id(request) in _persistent:
        comm, dest, size = _persistent[id(request)]
        comm.counts.add(comm._first_ranks()[dest], size)


def forget_requests() -> None:
    """Forget the persistent requests of the case that has ended."""
    _persistent.clear()
    _kept.clear()


_kept: list[Any] = []
wrap(Counting, ("Send_init", "Ssend_init", "Rsend_init", "Bsend_init"), _count_starts)
note_starts(count_start)


def recording(
    note: Callable[[Call], object],
    names: Iterable[str] = METHODS,
    open_requests: list[OpenRequest] | None = None,
) -> type[CommWrapper]:
    """Return a class of communicators that note each call of these methods before they make it.

    They add the requests that they return to `open_requests`. So do the communicators made from them. Calls
    that other wrappers make inside a call are not noted.
    """
    inside = threading.local()

    class Recording(CommWrapper):
        pass

    def noted(comm: Any, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
        if getattr(inside, "is_inside", False):
            return call()
        inside.is_inside = True
        _calls.depth = getattr(_calls, "depth", 0) + 1
        try:
            note(_call_with_sizes(comm, name, kwargs))
            result = call()
            if open_requests is not None and isinstance(result, MPI.Request):
                open_requests.append(OpenRequest(result, name, here()))
            return result
        finally:
            inside.is_inside = False
            _calls.depth -= 1

    wrap(Recording, names, noted)
    return Recording


def _call_with_sizes(comm: MPI.Intracomm, name: str, kwargs: Mapping[str, Any]) -> Call:
    if name.islower():
        sizes = [_size(next(iter(kwargs.values()), None))]
    else:
        buffers = [kwargs[key] for key in ("buf", "sendbuf", "recvbuf") if key in kwargs]
        sizes = [size for size in map(_buffer_size, buffers) if size is not None]
    number = kwargs.get("dest", kwargs.get("source"))
    peer = int(number) if isinstance(number, (int, np.integer)) else -1  # mpi4py refuses all else
    if 0 <= peer < comm.size:
        peer = world_ranks(comm.Get_group())[peer]
    least, most = min(sizes, default=0), max(sizes, default=0)
    return Call(name, least, most, peer, time.perf_counter(), comm.size)


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
