"""The findings of strict mode, each with its line, and what a program has to free."""

from __future__ import annotations

import json
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as RAW_WORLD

import mpiwatch
from mpiwatch.errors import CollectiveError
from mpiwatch.requests import LikeMpi4py, like
from mpiwatch.source import student_line_of
from mpiwatch.wording import ranks_phrase


class Category(Enum):
    """Categories of errors, as named by the MPI Bugs Initiative."""

    CALL_MATCHING = "call matching"
    PARAMETER_MATCHING = "parameter matching"
    REQUEST_LIFECYCLE = "request lifecycle"
    EPOCH_LIFECYCLE = "epoch lifecycle"
    RESOURCE_LEAK = "resource leak"
    MESSAGE_RACE = "message race"
    LOCAL_CONCURRENCY = "local concurrency"
    GLOBAL_CONCURRENCY = "global concurrency"


@dataclass(frozen=True)
class Finding:
    """An error that a rank of the world has found. If another rank is involved, `text` names it.

    `is_remark`: it does no harm, such as a communicator that lives as long as the program.
    """

    category: Category
    text: str
    place: str
    rank: int
    is_remark: bool = False


class StrictError(CollectiveError):
    """An error that strict mode raises at once, because the program cannot continue."""


_found: list[Finding] = []  # by this process, since the last `take`


def add(category: Category, text: str, place: str, is_remark: bool = False) -> None:
    """Keep a finding of this rank for the end of the cell or program; keep equal findings once."""
    finding = Finding(category, text, place, RAW_WORLD.rank, is_remark)
    if finding not in _found:
        _found.append(finding)


def take() -> list[Finding]:
    """Return the findings since the last call."""
    found, _found[:] = list(_found), []
    return found


def render(found: Iterable[Finding]) -> str:
    """Return the errors and the remarks, one line for each; equal findings of several ranks share a line."""
    found = list(found)
    parts = []
    for name, a_name, is_remark in ("errors", "an error", False), ("remarks", "a remark", True):
        lines = _lines(each for each in found if each.is_remark == is_remark)
        if lines:
            number = f"{len(lines)} {name}" if len(lines) > 1 else a_name
            verb = "has" if is_remark else "found"
            parts += [f"Strict mode {verb} {number}:", *lines]
    return "\n".join(parts)


def _lines(found: Iterable[Finding]) -> list[str]:
    groups: dict[tuple[Category, str, str], list[int]] = {}
    for finding in found:
        groups.setdefault((finding.category, finding.text, finding.place), []).append(finding.rank)
    order = list(Category)
    return [
        f"  {category.value}: {ranks_phrase(sorted(set(ranks)))}: {text}" + (f" ({place})" if place else "")
        for (category, text, place), ranks in sorted(
            groups.items(), key=lambda group: (order.index(group[0][0]), group[0][2], group[1])
        )
    ]


def to_json(found: Sequence[Finding]) -> str:
    """Return the findings as JSON: a list of objects."""
    return json.dumps([asdict(finding) | {"category": finding.category.value} for finding in found])


def here() -> str:
    """Return the line of the program that led here."""
    return student_line_of(sys._getframe(1))


def is_own_call() -> bool:
    """Return whether the program itself has made this call, rather than the lab for its own use."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("mpiwatch"):
        frame = frame.f_back
    return not frame.f_globals.get("__name__", "").startswith(tuple(mpiwatch.libraries))


@dataclass(frozen=True, eq=False)
class Tracked:
    """An object that has to be freed: its kind, the line that made it, and a weak reference to it."""

    kind: str
    place: str
    reference: weakref.ref[Any]


_made: dict[Tracked | None, None] = {}  # in the order in which they were made


def track(made: Any, kind: str) -> Any:
    """Note that the program has made an object; return it."""
    if is_own_call():
        made._tracked = Tracked(kind, here(), weakref.ref(made))
        _made[made._tracked] = None
    return made


def forget(made: Any) -> None:
    """Note that the program has freed an object."""
    _made.pop(getattr(made, "_tracked", None), None)


def report_never_freed(only_lost: bool) -> None:
    """Add a remark for each line whose objects were never freed; MPI frees them at its end.

    `only_lost`: only objects that no variable refers to. Another one may have the same handle.
    """
    never_freed = [each for each in _made if each and (each.reference() is None or not only_lost)]
    for each in never_freed:
        del _made[each]
    for (kind, place), number in Counter((each.kind, each.place) for each in never_freed).items():
        text = f"{number} {kind}s were never freed" if number > 1 else f"the {kind} was never freed"
        add(Category.RESOURCE_LEAK, text, place, is_remark=True)


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


def replace_classes() -> None:
    """Replace classes of `mpi4py.MPI` by classes that track their objects."""
    own_datatype = MPI.Datatype
    for name, (kind, makers, freer) in FREED.items():
        setattr(MPI, name, _tracking_class(getattr(MPI, name), kind, makers.split(), freer))
    for name, value in list(vars(MPI).items()):
        if type(value) is own_datatype and value != MPI.DATATYPE_NULL:
            setattr(MPI, name, MPI.Datatype(value))  # so that types made from it are tracked


def _tracking_class(own: Any, kind: str, makers: Sequence[str], freer: str) -> Any:
    """Return a class that replaces mpi4py's `own` and tracks what its methods make and free."""
    tracking: Any = LikeMpi4py(own.__name__, (own,), {})

    def adopt(made: Any) -> Any:
        return track(made if type(made) is tracking else tracking(made), kind)

    def maker(name: str) -> Any:
        def make(self: Any, *arguments: Any, **named: Any) -> Any:
            return adopt(getattr(own, name)(self, *arguments, **named))

        def make_from_class(cls: Any, *arguments: Any, **named: Any) -> Any:
            return adopt(getattr(own, name)(*arguments, **named))

        is_of_class = getattr(getattr(own, name), "__self__", None) is own
        return classmethod(make_from_class) if is_of_class else make

    def free(self: Any) -> None:
        getattr(own, freer)(self)
        forget(self)

    for name in makers:
        setattr(tracking, name, maker(name))
    setattr(tracking, freer, free)
    tracking.adopt = staticmethod(adopt)
    like(tracking, own)
    return tracking
