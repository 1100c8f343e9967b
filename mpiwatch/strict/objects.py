"""Track what a program has to free: communicators, windows, files, groups, datatypes, each with its line."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import Datatype as RawDatatype  # mpi4py's own, also after `replace_classes`

import mpiwatch
from mpiwatch.requests import LikeMpi4py, like
from mpiwatch.source import student_line_of
from mpiwatch.strict.findings import Category, Finding


@dataclass(frozen=True)
class Tracked:
    """An object that has to be freed: its kind, the line that made it, and a weak reference to it."""

    kind: str
    place: str
    reference: weakref.ref[Any]


_made: dict[int, Tracked] = {}  # numbered in the order in which they were made


def is_own_call() -> bool:
    """Return whether the program itself has made this call, rather than the lab for its own use."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("mpiwatch"):
        frame = frame.f_back
    return not frame.f_globals.get("__name__", "").startswith(tuple(mpiwatch.libraries))


def here() -> str:
    """Return the line of the program that led here."""
    return student_line_of(sys._getframe(1))


def track(made: Any, kind: str) -> Any:
    """Note that the program has made an object; return it."""
    if is_own_call():
        made._tracked = key = len(_made) + max(_made, default=0) + 1
        _made[key] = Tracked(kind, here(), weakref.ref(made))
    return made


def forget(made: Any) -> None:
    """Note that the program has freed an object."""
    _made.pop(getattr(made, "_tracked", -1), None)


def never_freed(rank: int, only_lost: bool) -> list[Finding]:
    """Return a remark for each line whose objects were never freed; MPI frees them at its end.

    `only_lost`: only objects that no variable refers to. Another one may have the same handle.
    """
    numbers: dict[tuple[str, str], int] = {}
    for key, each in list(_made.items()):
        if each.reference() is None or not only_lost:
            del _made[key]
            made = each.kind, each.place
            numbers[made] = numbers.get(made, 0) + 1
    return [
        Finding(
            Category.RESOURCE_LEAK,
            f"{number} {kind}s were never freed" if number > 1 else f"the {kind} was never freed",
            place,
            rank,
            is_remark=True,
        )
        for (kind, place), number in numbers.items()
    ]


def with_own_types(message: Any) -> tuple[Any, list[RawDatatype]]:
    """Return a message with duplicates of its derived datatypes, and these.

    A program may free a datatype while a call that uses it is under way.
    """
    if not isinstance(message, (list, tuple)):
        return message, []
    types: list[RawDatatype] = []
    parts = list(message)
    for index, part in enumerate(parts):
        if isinstance(part, RawDatatype) and part != MPI.DATATYPE_NULL and not part.is_predefined:
            parts[index] = RawDatatype.Dup(part)
            types.append(parts[index])
    return (parts, types) if types else (message, [])


def free_types(types: list[RawDatatype]) -> None:
    """Free the duplicates that `with_own_types` has made."""
    while types:
        RawDatatype.Free(types.pop())


def _tracked_class(own: Any, kind: str, makers: str, class_makers: str, freers: str) -> Any:
    """Return a class that replaces mpi4py's `own` and tracks what its methods make and free."""
    made: Any = LikeMpi4py(own.__name__, (own,), {})

    def adopt(result: Any) -> Any:
        return track(result if type(result) is made else made(result), kind)

    def maker(name: str) -> Callable[..., Any]:
        def make(self: Any, *arguments: Any, **named: Any) -> Any:
            return adopt(getattr(own, name)(self, *arguments, **named))

        return make

    def class_maker(name: str) -> Callable[..., Any]:
        def make(cls: Any, *arguments: Any, **named: Any) -> Any:
            return adopt(getattr(own, name)(*arguments, **named))

        return make

    def freer(name: str) -> Callable[..., Any]:
        def free(self: Any) -> None:
            getattr(own, name)(self)
            forget(self)

        return free

    for names, function in (makers, maker), (freers, freer):
        for name in names.split():
            setattr(made, name, function(name))
    for name in class_makers.split():
        setattr(made, name, classmethod(class_maker(name)))
    made.adopt = staticmethod(adopt)
    like(made, own)
    return made


def replace_classes() -> Any:
    """Replace classes of `mpi4py.MPI` by classes that track their objects; return the class of groups."""
    group = _tracked_class(
        MPI.Group,
        "group",
        "Incl Excl Range_incl Range_excl Dup",
        "Union Intersection Difference",
        "Free",
    )
    datatype = _tracked_class(
        MPI.Datatype,
        "datatype",
        "Dup Create_contiguous Create_vector Create_hvector Create_indexed Create_hindexed Create_resized "
        "Create_indexed_block Create_hindexed_block Create_subarray Create_darray",
        "Create_struct",
        "Free",
    )
    own = MPI.Datatype
    for name, value in list(vars(MPI).items()):
        if type(value) is own and value != MPI.DATATYPE_NULL:
            setattr(MPI, name, datatype(value))  # so that types made from it are tracked
    replaced = {
        "Group": group,
        "Datatype": datatype,
        "Op": _tracked_class(MPI.Op, "reduction operation", "", "Create", "Free"),
        "Info": _tracked_class(MPI.Info, "info object", "Dup", "Create", "Free"),
        "File": _tracked_class(MPI.File, "file", "", "Open", "Close"),
    }
    for name, cls in replaced.items():
        setattr(MPI, name, cls)
    return group
