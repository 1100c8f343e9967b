"""The findings of strict mode, each with its line; what a program has to free, and messages' memory."""

from __future__ import annotations

import json
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as RAW_WORLD
from mpi4py.MPI import Datatype as RawDatatype  # mpi4py's own, also after `replace_classes`

from mpiwatch.arguments import WHOLE, parts_of
from mpiwatch.library_calls import LikeMpi4py, is_of_library, like
from mpiwatch.packages import belongs
from mpiwatch.places import place_of
from mpiwatch.report import FindingKind, ranks_phrase
from mpiwatch.signatures import ANY_TYPE, base_of
from mpiwatch.waiting import CollectiveError
from mpiwatch.wrapper import add_methods


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

    `is_remark`: it does no harm, such as a communicator that lives as long as the program. `kind`: what it is
    about, more finely than the category.
    """

    category: Category
    text: str
    place: str
    rank: int
    is_remark: bool = False
    kind: FindingKind = FindingKind.OTHER


class StrictError(CollectiveError):
    """An error that strict mode raises at once, because the program cannot continue.

    `reason`: its text without the rank. `rank`: the rank of the communicator, if it is about one.
    """

    def __init__(self, reason: str, rank: int | None = None) -> None:
        super().__init__(reason if rank is None else f"rank {rank}: {reason}")
        self.reason, self.rank = reason, rank


_found: list[Finding] = []  # by this process, since the last `take`
on_error: Callable[[Finding], object] | None = None  # called at once for each error, but not for remarks


def add(
    category: Category,
    text: str,
    place: str,
    is_remark: bool = False,
    kind: FindingKind = FindingKind.OTHER,
) -> None:
    """Keep a finding of this rank for the end of the cell or program; keep equal findings once."""
    finding = Finding(category, text, place, RAW_WORLD.rank, is_remark, kind)
    if finding not in _found:
        _found.append(finding)
        if on_error is not None and not is_remark:
            on_error(finding)


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
    return json.dumps(
        [
            asdict(finding) | {"category": finding.category.value, "kind": finding.kind.value}
            for finding in found
        ]
    )


def here() -> str:
    """Return the line of the program that led here."""
    return place_of(sys._getframe(1))


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


def track(made: Any, kind: str) -> Any:
    """Note that the program has made an object; return it."""
    if is_own_call():
        made._tracked = Tracked(kind, here(), weakref.ref(made))
        _made[made._tracked] = None
    return made


def forget(made: Any) -> None:
    """Note that the program has freed an object."""
    _made.pop(getattr(made, "_tracked", None), None)


def report_never_freed(only_dropped: bool) -> None:
    """Add a remark for each line whose objects were never freed; MPI frees them at its end.

    `only_dropped`: only objects that no variable refers to. Another one may have the same handle.
    """
    never_freed = [each for each in _made if each and (each.reference() is None or not only_dropped)]
    for each in never_freed:
        del _made[each]
    for (kind, place), number in Counter((each.kind, each.place) for each in never_freed).items():
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

    class Tracking(own, metaclass=LikeMpi4py):
        @staticmethod
        def adopt(made: Any) -> Any:
            return track(made if type(made) is Tracking else Tracking(made), kind)

        def _make(self, name: str, *arguments: Any) -> Any:
            return self.adopt(getattr(own, name)(self, *arguments))

        @classmethod
        def _make_from_class(cls, name: str, *arguments: Any) -> Any:
            return cls.adopt(getattr(own, name)(*arguments))

        def _free(self, name: str) -> None:
            getattr(own, name)(self)
            forget(self)

    for name in makers:
        is_of_class = getattr(getattr(own, name), "__self__", None) is own
        add_methods(Tracking, [name], "_make_from_class" if is_of_class else "_make", own)
    add_methods(Tracking, [freer], "_free", own)
    like(Tracking, own)
    return Tracking


# The memory that calls under way use

MOST_PARTS = 10_000

Parts = tuple[tuple[int, int], ...]  # of memory: the first byte of each, and the one after its last


def check_dtype(call: str, rank: int, buffer: Any, datatype: MPI.Datatype) -> None:
    """Report a datatype that is not the dtype of its array.

    No error: bytes of any array, any datatype for an array of bytes, two floats for a complex number, and
    integers of the other sign. Another width of the same kind is a remark: programs that use MPI.INT for
    small numbers in an array of int64 give the right results where the low bytes come first.
    """
    held, (name, _) = getattr(buffer, "dtype", None), base_of(datatype)
    if not isinstance(held, np.dtype) or held.itemsize == 1 or held.kind not in "iufc" or name in ANY_TYPE:
        return
    try:
        given = np.dtype(name)
    except TypeError:  # a pair, such as MPI.FLOAT_INT
        return
    is_same = held.itemsize == given.itemsize and {held.kind, given.kind} in ({held.kind}, {"i", "u"})
    is_half = held.kind == "c" and given.kind == "f" and held.itemsize == 2 * given.itemsize
    has_no_datatype = held.kind == "f" and held.itemsize == 2  # half precision
    if not (is_same or is_half or has_no_datatype):
        what = datatype.Get_name() or f"a datatype of {given}"
        is_remark = held.kind == given.kind or {held.kind, given.kind} == {"i", "u"}
        text = f"{call} was given {what} for an array of {held}"
        add(Category.PARAMETER_MATCHING, text, here(), is_remark)


def overlap(some: Parts, others: Parts) -> bool:
    """Return whether a part of `some` and one of `others` have bytes in common; each is in order."""
    i = j = 0
    while i < len(some) and j < len(others):
        if some[i][0] < others[j][1] and others[j][0] < some[i][1]:
            return True
        if some[i][1] <= others[j][1]:
            i += 1
        else:
            j += 1
    return False


def bytes_of(datatype: MPI.Datatype, count: int, first: int) -> Parts:
    """Return the bytes of `count` elements of a datatype, the first of them at byte `first`.

    Empty if they are too many parts to compare.
    """
    size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    lowest, span = datatype.Get_true_extent()
    at = first + lowest
    if size == extent == span or not size or not count:
        return ((at, at + count * size),)
    # MPI itself marks the bytes: it unpacks ones into zeros.
    marks = np.zeros(span, np.uint8)
    moved = RawDatatype.Create_hindexed(datatype, [1], [-lowest])
    whole = RawDatatype.Create_resized(moved, 0, span).Commit()
    RawDatatype.Unpack(whole, np.full(size, 0xFF, np.uint8), 0, marks, MPI.COMM_SELF)
    free_types([moved, whole])
    edges = np.flatnonzero(np.diff(marks != 0, prepend=False, append=False)).reshape(-1, 2).tolist()
    if len(edges) * count > MOST_PARTS:
        return ()
    return tuple(
        sorted((at + i * extent + begin, at + i * extent + end) for i in range(count) for begin, end in edges)
    )


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


class Region:
    """The memory of a call under way; it is reported if the program writes to it, or if two calls use it.

    `message`: the buffer of the call, with datatypes of its own. `is_written`: MPI writes to it.
    """

    def __init__(self, operation: str, place: str, message: Any, is_written: bool) -> None:
        self.operation, self.place, self.is_written = operation, place, is_written
        self.message, self.types = with_own_types(message)
        self.raw, self.parts = _used(self.message)
        start = self.raw.address
        self.addresses = tuple((start + first, start + last) for first, last in self.parts if last > first)
        for other in active:
            if (other.is_written or is_written) and overlap(self.addresses, other.addresses):
                use = "writing" if other.is_written else "reading"
                text = f"{operation} uses memory that {other.operation} ({other.place}) is still {use}"
                add(Category.LOCAL_CONCURRENCY, text, place, kind=FindingKind.MEMORY_IN_USE)
                break
        active.append(self)
        self.remember()

    def remember(self) -> None:
        """Compute the checksum of the memory as it is now."""
        self.checksum = 0
        for first, last in self.parts:
            self.checksum = zlib.crc32(memoryview(self.raw)[first:last], self.checksum)

    def check(self) -> None:
        """Report if the memory has changed since the checksum: the program has written to it."""
        before = self.checksum
        self.remember()
        if self.checksum != before:
            text = f"the program changed the buffer of {self.operation} before the call was complete"
            add(Category.LOCAL_CONCURRENCY, text, self.place, kind=FindingKind.BUFFER_CHANGED)

    def end(self, check: bool = True) -> None:
        """Note that the call has completed; report if its memory has changed in the meantime."""
        if self in active:
            active.remove(self)
            if check:
                self.check()
            free_types(self.types)


active: list[Region] = []  # of the calls under way


def _used(message: Any) -> tuple[Any, Parts]:
    """Return the buffer of a message, as bytes, and the parts of it that the message uses.

    These are without the gaps of its datatype. There are none if the message cannot be read.
    """
    try:
        part = next(parts_of(message, WHOLE, 1))
        (buffer, _, _, datatype), number, first = part.message, part.number, part.start
        raw = MPI.buffer(b"" if buffer is MPI.BOTTOM else buffer)
        plain = ((first, first + number * part.message.extent),)
        used = plain if datatype is None else bytes_of(datatype, number, first)
    except (AttributeError, TypeError, ValueError, BufferError, NotImplementedError, MPI.Exception):
        return MPI.buffer(b""), ()
    return raw, tuple((begin, min(end, raw.nbytes)) for begin, end in used if begin < raw.nbytes)
