"""Communicators that wrap one another, each an mpi4py `Intracomm` that changes how some calls are done."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from mpi4py import MPI

TOPOLOGIES = MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm


class CommWrapper(MPI.Intracomm):
    """An `Intracomm` around another one, on the same handle: what it does not change, the inner one does.

    The class of the new object is derived from this class and from the class of the inner communicator, so a
    call goes from the outer one to the inner one and from there to the MPI library. All that is made from it
    (by Dup, Split, Create_cart and so on) is wrapped in the same way: see `_derived`.
    """

    innermost = False  # if true, this class comes next to the MPI library, whatever else wraps it
    copies_requests = False  # whether it returns objects of its own with the handles of inner requests

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Any:
        """Wrap `comm`. Local: no rank waits for another."""
        if comm is None:  # mpi4py's Dup and Clone make their result so
            return MPI.Intracomm.__new__(cls)
        made = _with_topology(_stack(cls, _wrappers(comm)), _topology(comm))  # type: ignore[arg-type]
        new: Any = MPI.Intracomm.__new__(made, comm)
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

    def _renewed(self) -> None:
        """Forget what was made from this communicator: its handle is new (see mpiwatch.renewal)."""

    def _renew_with(self, own: MPI.Intracomm, reset: Callable[[], object]) -> None:
        """Renew `own`, a duplicate for messages of the wrapper, with this communicator; then call `reset`."""

    def _before_derivation(self, method: str) -> None:
        """Called before a method that makes a communicator; all ranks of this one call it."""

    def _before_schedule(self, name: str, array: np.ndarray | None) -> None:
        """Called by all ranks before they run the schedule of this name; raise an error to stop them.

        `array` is None if the ranks have not compared their arguments yet.
        """

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        """Return the methods that start a send and a receive of a schedule."""
        return self.Isend, self.Irecv

    def _wrapped(self, new: Any, is_ready: bool = True) -> Any:
        """Return what the MPI library made from this communicator, wrapped like this one."""
        if new == MPI.COMM_NULL:
            return new
        made: Any = MPI.Intracomm.__new__(_with_topology(_wrappers(self), _topology(new)), new)
        self._derived(made, is_ready)
        return made


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
    kept = vars(type(comm)).get("_wrappers", type(comm))
    return MPI.Intracomm if kept in TOPOLOGIES else kept


def _topology(comm: MPI.Intracomm) -> type:
    return next((topology for topology in TOPOLOGIES if isinstance(comm, topology)), MPI.Intracomm)


@cache
def _with_topology(wrappers: type, topology: type) -> type:
    """Return the class with the methods of a grid or graph, too. It remembers the class without them."""
    if topology is MPI.Intracomm:
        return wrappers
    about: dict[str, Any] = {
        "__module__": wrappers.__module__,
        "__doc__": wrappers.__doc__,
        "_wrappers": wrappers,
    }
    if topology is MPI.Cartcomm:
        about["Sub"] = _deriving("Sub")
    return type(wrappers.__name__, (wrappers, topology), about)


def _deriving(name: str) -> Callable[..., Any]:
    def derive(self: CommWrapper, *arguments: Any, **named: Any) -> Any:
        if name != "Create_group":  # only the ranks of the group call it
            self._before_derivation(name)
        return self._wrapped(getattr(super(CommWrapper, self), name)(*arguments, **named))

    return like_mpi4py(derive, name)


def _deriving_later(name: str) -> Callable[..., Any]:
    def derive(self: CommWrapper, *arguments: Any, **named: Any) -> Any:
        new, request = getattr(super(CommWrapper, self), name)(*arguments, **named)
        return self._wrapped(new, is_ready=False), request

    return like_mpi4py(derive, name)


def like_mpi4py(method: Callable[..., Any], name: str, own: type = MPI.Cartcomm) -> Callable[..., Any]:
    """Return the method with the name and the docstring of mpi4py's own."""
    method.__name__, method.__doc__ = name, getattr(own, name).__doc__
    return method


def renamed(read: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that reads arguments, with the name of the call that an error about them is of."""
    code = read.__code__.replace(co_name=name, co_qualname=name)
    return FunctionType(code, read.__globals__, name, read.__defaults__)


for _name in (
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent"),
):
    setattr(CommWrapper, _name, _deriving(_name))
for _name in "Idup", "Idup_with_info":
    setattr(CommWrapper, _name, _deriving_later(_name))
