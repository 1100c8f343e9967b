"""The message arguments of mpi4py: arrays, other buffers, and lists such as [buffer, count, type].

mpi4py takes [buffer, type], [buffer, count], [buffer, count, type], [buffer, (count, displacement), type] and
[buffer, count, displacement, type]. In collectives with counts for each rank (Allgatherv and the like), count
and displacement are sequences. A datatype is an `MPI.Datatype` or its code, such as "d".

This module parses them, checks that a buffer holds what it is given, and returns the signature that must be
equal on all ranks of a collective.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from mpiwatch import opcodes
from mpiwatch.opcodes import DTYPES, UNKNOWN

# What the counts in a message argument are of: see `reaches`.
WHOLE, BLOCK, COUNTS, TYPES = range(4)
# Strict mode looks at the datatype of each list, too.
on_list: Callable[[str, int, Any, MPI.Datatype], None] | None = None

NO_BUFFER = (type(None), MPI.InPlaceType, MPI.BottomType)

# mpi4py's predefined operations are single objects. Operations that the caller has made are all alike here.
REDUCTIONS = {id(getattr(MPI, name)): number for number, name in enumerate(opcodes.REDUCTIONS)}
# Collective -> what the counts of its buffers are of; the buffer to send comes first.
LAYOUTS = {
    "bcast": (WHOLE,),
    "reduce": (WHOLE, WHOLE),
    "allreduce": (WHOLE, WHOLE),
    "gather": (WHOLE, BLOCK),
    "gatherv": (WHOLE, COUNTS),
    "scatter": (BLOCK, WHOLE),
    "scatterv": (COUNTS, WHOLE),
    "allgather": (WHOLE, BLOCK),
    "allgatherv": (WHOLE, COUNTS),
    "alltoall": (BLOCK, BLOCK),
    "alltoallv": (COUNTS, COUNTS),
    "alltoallw": (TYPES, TYPES),
    "reduce_scatter": (WHOLE, WHOLE),
    "reduce_scatter_block": (BLOCK, WHOLE),
    "scan": (WHOLE, WHOLE),
    "exscan": (WHOLE, WHOLE),
}
TO_ROOT, FROM_ROOT = ("reduce", "gather", "gatherv"), ("scatter", "scatterv")


class Message(NamedTuple):
    """The parts of a message argument; None stands for what it leaves out."""

    buffer: Any
    count: Any = None  # elements, or those for each rank
    displacement: Any = None  # elements from the start of the buffer, or those for each rank
    datatype: MPI.Datatype | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether it says how many elements are sent, as one number."""
        return isinstance(self.count, (int, np.integer))


def parse(message: Any, for_each_rank: bool = False) -> Message:
    """Return the parts of a message argument; a ValueError if mpi4py takes no such list.

    `for_each_rank`: it is of a collective in which a list holds the counts of all ranks, and not a count and
    a displacement.
    """
    if not isinstance(message, (list, tuple)):
        return Message(message)
    pair = tuple if for_each_rank else (tuple, list)
    displacement = datatype = None
    if len(message) == 2:
        buffer, count = message
        if isinstance(count, (MPI.Datatype, str)):
            count, datatype = None, count
    elif len(message) == 3:
        buffer, count, datatype = message
    elif len(message) == 4:
        buffer, count, displacement, datatype = message
    else:
        raise ValueError(
            f"expected a message of 2 to 4 items, such as [buffer, count, type], got {len(message)}"
        )
    if len(message) < 4 and isinstance(count, pair):
        count, displacement = count
    return Message(buffer, count, displacement, _datatype(datatype))


def _datatype(datatype: MPI.Datatype | str | None) -> MPI.Datatype | None:
    return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype


def is_in_place(sendbuf: Any) -> bool:
    """Tell whether a collective's argument says that the values to send are in the other one."""
    return sendbuf is None or isinstance(sendbuf, MPI.InPlaceType)


class Reach(NamedTuple):
    """A part of a message: `number` elements of `datatype`, and the bytes of the buffer that they touch."""

    number: int
    datatype: MPI.Datatype | None
    first: int  # in bytes from the start of the buffer
    last: int
    whose: str = ""  # in a collective, which ranks' part it is


def check_fits(call: str, rank: int, message: Any, layout: int = WHOLE, blocks: int = 1) -> None:
    """Raise ValueError if a list such as [array, count, datatype] reaches beyond its array.

    Neither mpi4py nor MPI notices: MPI reads or writes whatever memory comes next. `call` and `rank` are for
    the text; `layout` and `blocks`: see `reaches`. What mpi4py does not take is left to mpi4py.
    """
    if not isinstance(message, (list, tuple)):
        return
    try:
        buffer = message[0]
        if isinstance(buffer, NO_BUFFER):
            return
        held = MPI.buffer(buffer).nbytes
        text = ""
        for part in reaches(message, layout, blocks):
            is_plain = part.datatype is None or part.datatype.is_predefined
            low, high = (0, held) if is_plain else _memory(buffer, held)
            if part.first < low or part.last > high:
                text = _excess(part, buffer)
                break
            if on_list is not None and part.datatype is not None:
                on_list(call, rank, buffer, part.datatype)
    except (TypeError, ValueError, LookupError, BufferError, NotImplementedError, MPI.Exception):
        return
    if text:
        raise ValueError(f"rank {rank}: {call} {text}")


def reaches(message: Any, layout: int = WHOLE, blocks: int = 1) -> Iterator[Reach]:
    """Yield the parts of a message argument that is a list, with the bytes that they touch.

    `layout` says what the count in it is of: of all elements (WHOLE), or of each of `blocks` equal blocks
    (BLOCK); or it has a count for each of `blocks` ranks (COUNTS), or also a datatype for each (TYPES).
    """
    if layout == TYPES:
        buffer, *rest, types = message
        counts, places = (rest[0] if len(rest) == 1 else rest) or ([1] * blocks, [0] * blocks)
        for rank, (count, place, datatype) in enumerate(zip(counts, places, types, strict=True)):
            each = Message(buffer, datatype=_datatype(datatype))
            yield from _reach(each, elements(each), count, place, 1, f" for rank {rank}")
        return
    parts = parse(message, for_each_rank=layout == COUNTS)
    element = elements(parts)
    extent = element.extent
    if layout != COUNTS:
        start = int(parts.displacement or 0) * extent
        if parts.is_counted:
            whose = f" for each of {blocks} ranks" if blocks > 1 else ""
            yield from _reach(parts, element, parts.count, start, blocks, whose)
        else:
            held = MPI.buffer(parts.buffer).nbytes
            yield from _reach(parts, element, (held - start) // max(1, extent), start)
    elif parts.count is not None:  # otherwise, mpi4py divides what the buffer holds
        counts = [parts.count] * blocks if parts.is_counted else list(parts.count)
        places = parts.displacement
        if places is None:
            places = [0, *accumulate(counts[:-1])]
        elif isinstance(places, (int, np.integer)):
            places = [places * rank for rank in range(blocks)]
        for rank, (count, place) in enumerate(zip(counts, places, strict=True)):
            yield from _reach(parts, element, count, int(place) * extent, 1, f" for rank {rank}")


def _reach(  # noqa: PLR0917
    parts: Message, element: Element, count: Any, start: int, blocks: int = 1, whose: str = ""
) -> Iterator[Reach]:
    count = int(count)
    if count > 0 and element.size:
        steps = element.extent * (count * blocks - 1)
        first = start + element.first + min(0, steps)
        last = start + element.first + element.length + max(0, steps)
        yield Reach(count, parts.datatype, first, last, whose)


class Element(NamedTuple):
    """An element of a message, in bytes: its data, the step to the next one, and which bytes it touches."""

    size: int
    extent: int
    first: int
    length: int


def elements(parts: Message) -> Element:
    """Return what an element of a message looks like in memory."""
    if parts.datatype is None:
        size = itemsize(parts.buffer)
        return Element(size, size, 0, size)
    datatype = parts.datatype
    return Element(datatype.Get_size(), datatype.Get_extent()[1], *datatype.Get_true_extent())


def _memory(buffer: Any, held: int) -> tuple[int, int]:
    """Return which bytes a datatype with gaps may reach, from the start of the buffer.

    It may leave a row and go on in the array that the row is part of: [grid[0, 1:], 1, column].
    """
    whole = buffer
    while isinstance(getattr(whole, "base", None), np.ndarray):
        whole = whole.base
    if whole is buffer:
        return 0, held
    if not whole.flags.forc:
        return -sys.maxsize, sys.maxsize
    before = buffer.ctypes.data - whole.ctypes.data
    return -before, whole.nbytes - before


def _excess(part: Reach, buffer: Any) -> str:
    datatype = part.datatype
    name = getattr(buffer, "dtype", "elements") if datatype is None else datatype.Get_name()
    return (
        f"was given {part.number} × {name or 'a derived datatype'}{part.whose}, which are bytes "
        f"{part.first} to {part.last} of a buffer that holds {what_it_holds(buffer)}; "
        "MPI would read or write beyond it"
    )


def what_it_holds(buffer: Any) -> str:
    """Return the size of a buffer in words: 32 bytes (4 float64)."""
    dtype, held = getattr(buffer, "dtype", None), MPI.buffer(buffer).nbytes
    return f"{held} bytes" if dtype is None else f"{held} bytes ({held // dtype.itemsize} {dtype})"


def flat(message: Any) -> np.ndarray | None:
    """Return the values of a message as a flat array of a NumPy dtype, on the same memory.

    None if it has no such form: a derived datatype, counts for each rank, or a buffer that NumPy cannot read.
    A ValueError says what is wrong with a message that mpi4py does not take either.
    """
    buffer, count, displacement, datatype = parse(message)
    try:
        array = np.asarray(buffer if isinstance(buffer, np.ndarray) else memoryview(buffer))
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return None
    if not array.flags.forc:
        raise ValueError(f"expected a contiguous array, got strides {array.strides} for shape {array.shape}")
    array = array.reshape(-1, order="A")
    if datatype is not None:
        if not datatype.is_predefined:
            return None
        try:
            array = array.view(dtlib.to_numpy_dtype(datatype))
        except (TypeError, ValueError):
            return None
    first = 0 if displacement is None else displacement
    last = array.size if count is None else count
    if not all(isinstance(number, (int, np.integer)) for number in (first, last)):
        return None
    if count is not None:
        last += first
    if not 0 <= first <= last <= array.size:
        raise ValueError(f"expected a buffer of at least {last} values, got {array.size}")
    return array[first:last]


def nbytes(message: Any, blocks: int = 1) -> int:
    """Return how many bytes mpi4py sends for a message; a count in it is that of each of `blocks` blocks."""
    if type(message) is np.ndarray:
        return message.nbytes
    parts = parse(message)
    if parts.is_counted:
        size = itemsize(parts.buffer) if parts.datatype is None else parts.datatype.Get_size()
        return int(parts.count) * size * blocks
    held = 0 if parts.buffer is None or parts.buffer is MPI.BOTTOM else MPI.buffer(parts.buffer).nbytes
    if parts.datatype is None:
        return held
    return held // max(1, parts.datatype.extent) * parts.datatype.Get_size()


def itemsize(buffer: Any) -> int:
    """Return the size of a buffer's elements in bytes, for all buffers that mpi4py takes."""
    try:
        return memoryview(buffer).itemsize
    except (TypeError, ValueError, BufferError):
        pass
    on_device = getattr(buffer, "__cuda_array_interface__", None)
    dtype = np.from_dlpack(buffer).dtype if on_device is None else np.dtype(on_device["typestr"])
    return dtype.itemsize


def check_message(comm: MPI.Comm, call: str, buffer: Any, peer: int, blocks: int = 1) -> None:
    """Raise ValueError for a message that reaches beyond its array; MPI ignores it if `peer` is PROC_NULL."""
    if peer != MPI.PROC_NULL:
        check_fits(call, comm.rank, buffer, BLOCK if blocks > 1 else WHOLE, blocks)


def check_buffers(comm: MPI.Intracomm, call: str, buffers: Sequence[Any], root: int = UNKNOWN) -> None:
    """Raise ValueError if a collective, blocking or not, is given more than one of its buffers holds.

    The rank that has it learns so before other ranks rely on it.
    """
    name = _plain_name(call)
    for index, (buffer, layout) in enumerate(zip(buffers, LAYOUTS.get(name, ()), strict=False)):
        if not isinstance(buffer, (list, tuple)) or (
            comm.rank != root and name in (TO_ROOT if index else FROM_ROOT)  # MPI ignores it
        ):
            continue
        if name == "reduce_scatter_block" and is_in_place(buffers[0]):
            layout = BLOCK  # noqa: PLW2901
        check_fits(call, comm.rank, buffer, layout, 1 if layout == WHOLE else comm.size)


@cache
def _parameters(call: str) -> tuple[list[str], dict[str, Any], inspect.Signature]:
    """Return the names and defaults of the parameters of a communicator's method, and its signature."""
    parameters = list(inspect.signature(getattr(MPI.Intracomm, call)).parameters.values())[1:]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return [each.name for each in parameters], defaults, inspect.Signature(parameters)


def arguments_of(call: str, arguments: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a communicator's method by the names that mpi4py gives them.

    Raise TypeError if mpi4py does not take them.
    """
    names, defaults, whole = _parameters(call)
    given = defaults | dict(zip(names, arguments, strict=False)) | named
    if len(given) != len(names) or len(arguments) > len(names):
        whole.bind(*arguments, **named)
    return given


def _plain_name(call: str) -> str:
    """Return `gather` for Gather, Igather and Gather_init."""
    name = call.removesuffix("_init").lower()
    return name[1:] if call[0] == "I" else name


def signature(message: Any, blocks: int = 1, for_each_rank: bool = False) -> tuple[int, int]:
    """Return how many elements a block of a message has, and the number of their dtype; UNKNOWN if unclear.

    `message`: what mpi4py takes, an array or a list such as [array, count, datatype]. A count in it is that
    of one block; an array without a count holds `blocks` of them. `for_each_rank`: the message has a count
    for each rank.

    Raise ValueError for an array that is not contiguous: the rank that has it learns so before other ranks
    rely on it.
    """
    if type(message) is np.ndarray:
        _check_contiguous(message)
        size = message.size
        return (size if blocks == 1 else size // blocks), DTYPES.get(message.dtype.num, UNKNOWN)
    if message is None:
        return 0, UNKNOWN
    try:
        parts = parse(message, for_each_rank)
    except (TypeError, ValueError):  # mpi4py says what is wrong with it
        return UNKNOWN, UNKNOWN
    if isinstance(parts.buffer, np.ndarray):
        _check_contiguous(parts.buffer)
    dtype = _dtype(parts)
    count = UNKNOWN if for_each_rank or dtype == UNKNOWN else _count(parts, blocks)
    return count, dtype


def _count(parts: Message, blocks: int) -> int:
    if parts.is_counted:
        return int(parts.count)
    try:
        size = itemsize(parts.buffer) if parts.datatype is None else parts.datatype.Get_size()
        return nbytes(parts.buffer) // size // blocks
    except (TypeError, ValueError, BufferError):
        return UNKNOWN


def check_writable(buffer: Any) -> None:
    """Raise ValueError, on the rank that has it, for an array to receive into that is read-only."""
    if type(buffer) is np.ndarray and not buffer.flags.writeable:
        raise ValueError("expected a writable array to receive into, got a read-only one")


def _check_contiguous(array: np.ndarray) -> None:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError(
            f"expected a contiguous array, got strides {array.strides} for shape {array.shape}; "
            "send a copy: np.ascontiguousarray(…)"
        )


def _dtype(parts: Message) -> int:
    buffer, datatype = parts.buffer, parts.datatype
    try:
        if datatype is not None:
            dtype = np.dtype(datatype.typechar if datatype.is_predefined else object)
        elif isinstance(buffer, np.ndarray):
            dtype = buffer.dtype
        else:
            dtype = np.dtype(memoryview(buffer).format)
    except (TypeError, ValueError, BufferError):
        return UNKNOWN
    return DTYPES.get(dtype.num, UNKNOWN)
