"""Wrap mpi4py's communicators: each wrapper is an `Intracomm` that changes how some calls are done.

Wrappers wrap one another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import (
    NotedCartcomm,
    NotedDistgraphcomm,
    NotedGraphcomm,
    NotedIntracomm,
    RawCartcomm,
    RawComm,
    RawDistgraphcomm,
    RawGraphcomm,
    RawIntracomm,
    calls_that_start,
    register,
)
from mpiwatch.report import MAKERS

RAW_TOPOLOGIES = RawCartcomm, RawGraphcomm, RawDistgraphcomm
TOPOLOGIES = NotedCartcomm, NotedGraphcomm, NotedDistgraphcomm


class CommWrapper(NotedIntracomm):
    """An `Intracomm` around another one, on the same handle: what it does not change, the inner one does.

    The class of the new object is derived from this class and from the class of the inner communicator, so a
    call goes from the outer one to the inner one and from there to the MPI library. All that is made from it
    (by Dup, Split, Create_cart and so on) is wrapped in the same way: see `_derived`.
    """

    made_by = ""  # the method of another communicator
    innermost = False  # if true, this class comes next to the MPI library, whatever else wraps it
    copies_requests = False  # whether it returns objects of its own with the handles of inner requests

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Any:
        """Wrap `comm`. Local: no rank waits for another."""
        if comm is None:  # mpi4py's Dup and Clone make their result so
            empty = RawIntracomm.__new__(cls)
            register(empty)
            return empty
        stacked = _with_topology(_stack(cls, _wrappers(comm)), _topology(comm))
        new: Any = RawIntracomm.__new__(stacked, comm)
        register(new)
        new._take_over(comm)
        return new

    def _take_over(self, inner: MPI.Intracomm) -> None:
        """Keep what the classes of the inner communicator have stored with it."""
        vars(self).update(getattr(inner, "__dict__", {}))

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        """Give a communicator that was made from this one what its class needs; `new` is never COMM_NULL.

        Called by all ranks of `new`, so it may communicate on it, except if `is_ready` is false: then `new`
        comes from Idup and cannot be used yet. Extend it with `super()._derived(new, is_ready)`.
        """

    def _renew(self, duplicate: Callable[[], MPI.Intracomm]) -> None:
        """Go on after a failed cell with a fresh handle (see mpiwatch.renewal).

        `duplicate` returns a fresh communicator of the same ranks, for messages of the wrapper itself; all
        ranks call it.
        """

    def _before_derivation(self, method: str) -> None:
        """Called before a method that makes a communicator; all ranks of this one call it."""

    def _before_schedule(self, name: str, array: np.ndarray | None) -> None:
        """Called by all ranks before they run the schedule of this name; raise an error to stop them.

        `array` is None if the ranks have not compared their arguments yet.
        """

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        """Return the methods that start a send and a receive of a schedule."""
        return self.Isend, self.Irecv

    def _derive(self, name: str, *arguments: Any) -> Any:
        if name != "Create_group":  # only the ranks of the group call it
            self._before_derivation(name)
        return self._wrapped(getattr(super(), name)(*arguments), name)

    def _derive_later(self, name: str, *arguments: Any) -> Any:
        new, request = getattr(super(), name)(*arguments)
        return self._wrapped(new, name, is_ready=False), request

    def _wrapped(self, new: Any, made_by: str, is_ready: bool = True) -> Any:
        """Return what the MPI library made from this communicator by a method, wrapped like this one."""
        if new == MPI.COMM_NULL:
            return new
        wrapped: Any = RawIntracomm.__new__(_with_topology(_wrappers(self), _topology(new)), new)
        register(wrapped)
        wrapped.made_by = made_by
        self._derived(wrapped, is_ready)
        return wrapped


@cache
def _stack(outer: Any, inner: Any) -> type:
    """Return the class of the wrapper `outer` around a communicator of the class `inner`."""
    if issubclass(outer, inner):
        return outer
    if issubclass(inner, outer):
        return inner
    bases = (inner, outer) if outer.innermost else (outer, inner)
    return type(outer.__name__, bases, {"__module__": outer.__module__, "__doc__": outer.__doc__})


def _wrappers(comm: MPI.Intracomm) -> type:
    """Return a communicator's class without the topology that it may have."""
    wrappers = vars(type(comm)).get("_wrappers", type(comm))
    return NotedIntracomm if wrappers in (RawIntracomm, *TOPOLOGIES, *RAW_TOPOLOGIES) else wrappers


def _topology(comm: MPI.Intracomm) -> type:
    return next((topology for topology in TOPOLOGIES if isinstance(comm, topology)), NotedIntracomm)


@cache
def _with_topology(wrappers: type, topology: type) -> type:
    """Return the class with the methods of a grid or graph, too. It remembers the class without them."""
    if topology is NotedIntracomm:
        return wrappers
    about = {"__module__": wrappers.__module__, "__doc__": wrappers.__doc__, "_wrappers": wrappers}
    derived = type(wrappers.__name__, (wrappers, topology), about)
    if topology is NotedCartcomm:
        add_methods(derived, ["Sub"], "_derive", topology)
    return derived


# Wrappers that care for requests make them poll by themselves.
for _name in (*calls_that_start(RawComm), *calls_that_start(RawIntracomm)):
    setattr(CommWrapper, _name, getattr(RawIntracomm, _name))
add_methods(CommWrapper, (*MAKERS, "Create_group"), "_derive")
add_methods(CommWrapper, ("Idup", "Idup_with_info"), "_derive_later")
