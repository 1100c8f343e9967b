"""What a program has to free: communicators, windows, groups, datatypes and so on, each with its line."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import LikeMpi4py, is_of_library, like
from mpiwatch.packages import belongs
from mpiwatch.places import here
from mpiwatch.report import FindingKind
from mpiwatch.strict.findings import Category, add


def is_own_call() -> bool:
    """Return whether the program itself has made this call, rather than a library for its own use."""
    frame = sys._getframe(1)
    while frame.f_back and belongs(frame.f_globals.get("__name__", ""), ["mpiwatch"]):
        frame = frame.f_back
    return not is_of_library(frame)


@dataclass(frozen=True, eq=False)
class Tracked:
    """An object that has to be freed: its kind, the line that made it, and a weak reference to it."""

    kind: str
    place: str
    reference: weakref.ref[Any]


_made: dict[Tracked | None, None] = {}  # in the order in which they were made


def track(handle: Any, kind: str) -> Any:
    """Note that the program has made an object; return it."""
    if is_own_call():
        handle._tracked = Tracked(kind, here(), weakref.ref(handle))
        _made[handle._tracked] = None
    return handle


def forget(handle: Any) -> None:
    """Note that the program has freed an object."""
    _made.pop(getattr(handle, "_tracked", None), None)


def report_never_freed(only_dropped: bool) -> None:
    """Add a remark for each line whose objects were never freed; MPI frees them at its end.

    `only_dropped`: only objects that no variable refers to. Another one may have the same handle.
    """
    never_freed = [
        tracked for tracked in _made if tracked and (tracked.reference() is None or not only_dropped)
    ]
    for tracked in never_freed:
        del _made[tracked]
    for (kind, place), number in Counter((tracked.kind, tracked.place) for tracked in never_freed).items():
        text = f"{number} {kind}s were never freed" if number > 1 else f"the {kind} was never freed"
        is_communicator = kind == COMMUNICATOR
        about = FindingKind.COMMUNICATOR_NOT_FREED if is_communicator else FindingKind.OTHER
        add(Category.RESOURCE_LEAK, text, place, is_remark=True, kind=about)


COMMUNICATOR = "communicator"
# Class of mpi4py -> what an object of it is called, and the methods that make and that free one.
FREED: dict[str, tuple[str, str, str]] = {
    "Group": ("group", "Incl Excl Range_incl Range_excl Dup Union Intersection Difference", "Free"),
    "Datatype": (
        "datatype",
        "Dup Create_contiguous Create_vector Create_hvector Create_indexed Create_hindexed Create_resized "
        "Create_indexed_block Create_hindexed_block Create_subarray Create_darray Create_struct",
        "Free",
    ),
    "Op": ("reduction operation", "Create", "Free"),
    "Info": ("info object", "Dup Create", "Free"),
    "File": ("file", "Open", "Close"),
}


def tracking_names() -> dict[str, Any]:
    """Return classes that track their objects, by the names of those of `mpi4py.MPI` that they replace."""
    names: dict[str, Any] = {
        name: _tracking_class(getattr(MPI, name), kind, makers.split(), freer)
        for name, (kind, makers, freer) in FREED.items()
    }
    for name, value in vars(MPI).items():
        if type(value) is MPI.Datatype and value != MPI.DATATYPE_NULL:
            names[name] = names["Datatype"](value)  # so that types made from it are tracked
    return names


def _tracking_class(mpi4py_class: Any, kind: str, makers: Sequence[str], freer: str) -> Any:
    """Return a class that replaces mpi4py's `mpi4py_class` and tracks what its methods make and free."""

    class Tracking(mpi4py_class, metaclass=LikeMpi4py):
        @staticmethod
        def adopt(handle: Any) -> Any:
            return track(handle if type(handle) is Tracking else Tracking(handle), kind)

        def _make(self, name: str, *arguments: Any) -> Any:
            return self.adopt(getattr(mpi4py_class, name)(self, *arguments))

        @classmethod
        def _make_from_class(cls, name: str, *arguments: Any) -> Any:
            return cls.adopt(getattr(mpi4py_class, name)(*arguments))

        def _free(self, name: str) -> None:
            getattr(mpi4py_class, name)(self)
            forget(self)

    for name in makers:
        is_of_class = getattr(getattr(mpi4py_class, name), "__self__", None) is mpi4py_class
        add_methods(Tracking, [name], "_make_from_class" if is_of_class else "_make", mpi4py_class)
    add_methods(Tracking, [freer], "_free", mpi4py_class)
    like(Tracking, mpi4py_class)
    return Tracking
