"""Read the message arguments of mpi4py's calls, and check that a buffer holds what a call is given.

mpi4py takes the message arguments [buffer, type], [buffer, count], [buffer, count, type],
[buffer, (count, displacement), type] and [buffer, count, displacement, type]. In collectives with counts for
each rank (Allgatherv and the like), count and displacement are sequences. A datatype is an `MPI.Datatype` or
its code, such as "d".

What cannot be read here is left to mpi4py, which says what is wrong with it: these functions raise nothing
but `ValueError`, for what mpi4py and MPI would not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Intracomm as RawIntracomm  # mpi4py's own, also after `library_calls.install`
from mpi4py.util import dtlib

from mpiwatch import modes
from mpiwatch.report import UNKNOWN

# What the counts in a message argument are of: see `reaches`.
WHOLE, BLOCK, COUNTS, TYPES = range(4)
# Strict mode looks at the datatype of each list, too.

NO_BUFFER = (type(None), MPI.InPlaceType, MPI.BottomType)

# The name of the dtype with this type number in NumPy; C's long and long long may share a name.
DTYPES: dict[int, str] = {
    dtype.num: dtype.name for dtype in map(np.dtype, np.typecodes["All"]) if dtype.kind in "biufc"
}
# mpi4py's predefined operations are single objects. Operations that the caller has made are all alike here.
REDUCTIONS = {
    id(value): name for name, value in vars(MPI).items() if type(value) is MPI.Op and name != "OP_NULL"
}
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
REDUCING = "reduce", "allreduce", "scan", "exscan"  # what is sent and received is alike
# Collective -> which of its buffers has blocks of the same size on all ranks: at the root, and elsewhere.
UNIFORM = {
    **{"gather": (1, 0), "gatherv": (1, 0), "scatter": (0, 1), "scatterv": (0, 1)},
    **{"allgather": (1, 1), "allgatherv": (1, 1)},
}


class BufferSpec(NamedTuple):
    """The parts of a message argument; None stands for what it leaves out."""

    buffer: Any
    count: Any = None  # elements, or those for each rank
    displacement: Any = None  # elements from the start of the buffer, or those for each rank
    datatype: MPI.Datatype | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether it says how many elements are sent, as one number."""
        return isinstance(self.count, (int, np.integer))

    @property
    def size(self) -> int:
        """Return the bytes of data in an element."""
        return itemsize(self.buffer) if self.datatype is None else self.datatype.Get_size()

    @property
    def extent(self) -> int:
        """Return the bytes from an element to the next one."""
        return itemsize(self.buffer) if self.datatype is None else self.datatype.Get_extent()[1]

    @property
    def held(self) -> int:
        """Return the bytes that the buffer holds."""
        return 0 if self.buffer is None or self.buffer is MPI.BOTTOM else MPI.buffer(self.buffer).nbytes


def parse(message: Any, for_each_rank: bool = False) -> BufferSpec:
    """Return the parts of a message argument; a ValueError if mpi4py takes no such list.

    `for_each_rank`: it is of a collective in which a list holds the counts of all ranks, and not a count and
    a displacement.
    """
    if not isinstance(message, (list, tuple)):
        return BufferSpec(message)
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
    return BufferSpec(buffer, count, displacement, _datatype(datatype))


def _datatype(datatype: MPI.Datatype | str | None) -> MPI.Datatype | None:
    return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype


def has_counts(call: str, place: int) -> bool:
    """Return whether a collective's buffer at this place, -1 for the last, has a count for each rank."""
    layouts = LAYOUTS.get(plain_name(call), ())
    return bool(layouts) and layouts[place] == COUNTS


def in_one_piece(message: Any) -> Any:
    """Return a message with counts for each rank as one with their sum; as it is if it has displacements.

    Without displacements, the ranks' parts follow one another.
    """
    try:
        buffer, counts, displacements, datatype = parse(message, for_each_rank=True)
        if displacements is not None or counts is None or isinstance(counts, (int, np.integer)):
            return message
        whole = [buffer, sum(map(int, counts))]
        return whole if datatype is None else [*whole, datatype]
    except Exception:  # mpi4py says what is wrong with it
        return message


def is_in_place(sendbuf: Any) -> bool:
    """Tell whether a collective's argument says that the values to send are in the other one."""
    return sendbuf is None or isinstance(sendbuf, MPI.InPlaceType)


class Part(NamedTuple):
    """A part of a message: `number` elements in each of `blocks` blocks, the first of which is at `start`."""

    message: BufferSpec
    number: int
    start: int = 0  # in bytes
    blocks: int = 1
    whose: str = ""  # in a collective, which ranks' part it is


def check_fits(call: str, rank: int, message: Any, layout: int = WHOLE, blocks: int = 1) -> None:
    """Raise ValueError if a list such as [array, count, datatype] reaches beyond its array.

    Neither mpi4py nor MPI notices: MPI reads or writes whatever memory comes next. `call` and `rank` are for
    the text; `layout` and `blocks`: see `parts_of`. What mpi4py does not take is left to mpi4py.
    """
    if not isinstance(message, (list, tuple)) or isinstance(next(iter(message), None), NO_BUFFER):
        return
    excess = ""
    try:
        for part in parts_of(message, layout, blocks):
            excess = excess or _excess(call, rank, part)
    except Exception:  # mpi4py says what is wrong with it
        return
    if excess:
        raise ValueError(f"rank {rank}: {call} {excess}; MPI would read or write beyond it")


def parts_of(message: Any, layout: int, blocks: int) -> Iterator[Part]:
    """Yield the parts of a message argument.

    `layout` says what the count in it is of: of all elements (WHOLE), or of each of `blocks` equal blocks
    (BLOCK); or it has a count for each of `blocks` ranks (COUNTS), or also a datatype for each (TYPES).
    """
    if layout == TYPES:
        buffer, *rest, types = message
        counts, starts = (rest[0] if len(rest) == 1 else rest) or ([1] * blocks, [0] * blocks)
        for rank, (count, start, datatype) in enumerate(zip(counts, starts, types, strict=True)):
            in_block = BufferSpec(buffer, datatype=_datatype(datatype))
            yield Part(in_block, int(count), start, whose=f" for rank {rank}")
        return
    parts = parse(message, for_each_rank=layout == COUNTS)
    extent, counts, places = parts.extent, parts.count, parts.displacement
    if layout != COUNTS:
        start = int(places or 0) * extent
        if parts.is_counted:
            whose = f" for each of {blocks} ranks" if blocks > 1 else ""
            yield Part(parts, int(counts), start, blocks, whose)
        else:
            yield Part(parts, (parts.held - start) // max(1, extent), start)
        return
    if counts is None or parts.is_counted:  # without counts, mpi4py divides what the buffer holds
        counts = [parts.held // max(1, extent) // blocks if counts is None else counts] * blocks
    counts = list(counts)
    if places is None:
        places = [0, *accumulate(counts[:-1])]
    elif isinstance(places, (int, np.integer)):
        places = [places * rank for rank in range(blocks)]
    for rank, (count, place) in enumerate(zip(counts, places, strict=True)):
        yield Part(parts, int(count), int(place) * extent, whose=f" for rank {rank}")


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


def _excess(call: str, rank: int, part: Part) -> str:
    """Return in words how a part of a message reaches beyond the buffer; empty if it does not."""
    (buffer, _, _, datatype), size = part.message, part.message.size
    if part.number <= 0 or not size:
        return ""
    low, high = 0, part.message.held
    offset, length = (0, size) if datatype is None else datatype.Get_true_extent()
    if datatype is not None and not datatype.is_predefined:
        low, high = _memory(buffer, high)
    steps = part.message.extent * (part.number * part.blocks - 1)
    first = part.start + offset + min(0, steps)
    last = part.start + offset + length + max(0, steps)
    if (low <= first and last <= high) or (datatype is not None and uses_addresses(datatype)):
        if modes.registered is not None and datatype is not None:
            modes.registered.check_message(call, rank, buffer, datatype)
        return ""
    name = getattr(buffer, "dtype", "elements") if datatype is None else datatype.Get_name()
    return (
        f"was given {part.number} × {name or 'a derived datatype'}{part.whose}, which are bytes "
        f"{first} to {last} of a buffer that holds {what_it_holds(buffer)}"
    )


def uses_addresses(datatype: MPI.Datatype) -> bool:
    """Return whether a datatype's displacements may be addresses: they may lead into other memory."""
    if datatype.is_predefined:
        return False
    combiner = datatype.Get_envelope()[-1]
    if combiner in (MPI.COMBINER_HINDEXED, MPI.COMBINER_HINDEXED_BLOCK, MPI.COMBINER_STRUCT):
        return True
    inner = [part for part in datatype.Get_contents()[-1] if not part.is_predefined]
    uses = any(map(uses_addresses, inner))
    for part in inner:
        part.Free()
    return uses


def what_it_holds(buffer: Any) -> str:
    """Return the size of a buffer in words: 32 bytes (4 float64)."""
    dtype, held = getattr(buffer, "dtype", None), MPI.buffer(buffer).nbytes
    return f"{held} bytes" if dtype is None else f"{held} bytes ({held // dtype.itemsize} {dtype})"


def flat(message: Any) -> np.ndarray | None:
    """Return the values of a message as a flat array of a NumPy dtype, on the same memory.

    None if it has no such form: a derived datatype, counts for each rank, or a buffer that NumPy cannot read.
    An ValueError says what is wrong with a message that mpi4py does not take either.
    """
    try:
        buffer, count, displacement, datatype = parse(message)
        array = np.asarray(buffer if isinstance(buffer, np.ndarray) else memoryview(buffer))
    except Exception:
        return None
    if not array.flags.forc:
        shape = f"strides {array.strides} for shape {array.shape}"
        raise ValueError(f"expected a contiguous array, got {shape}")
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
        return int(parts.count) * parts.size * blocks
    return parts.held if parts.datatype is None else parts.held // max(1, parts.extent) * parts.size


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
    """Raise ValueError for a message that reaches beyond its array; PROC_NULL as `peer` ignores it."""
    if peer != MPI.PROC_NULL:
        check_fits(call, comm.rank, buffer, BLOCK if blocks > 1 else WHOLE, blocks)


def check_buffers(comm: MPI.Intracomm, call: str, buffers: Sequence[Any], root: int = UNKNOWN) -> None:
    """Raise what mpi4py would raise for a buffer of a collective, and ValueError for more than it holds.

    mpi4py notices a wrong argument when the other ranks may be inside the MPI library already, where nothing
    can end their wait. So the rank that has it learns so before other ranks rely on it.
    """
    name = plain_name(call)
    _check_in_place(comm, call, buffers, root)
    read: list[tuple[int, int]] = [(UNKNOWN, UNKNOWN)] * 2
    for index, (buffer, layout) in enumerate(zip(buffers, LAYOUTS.get(name, ()), strict=False)):
        if root not in (comm.rank, UNKNOWN) and name in (TO_ROOT if index else FROM_ROOT):
            continue  # MPI ignores it
        if name == "reduce_scatter_block" and is_in_place(buffers[0]):
            layout = BLOCK  # noqa: PLW2901
        blocks = 1 if layout == WHOLE else comm.size
        check_fits(call, comm.rank, buffer, layout, blocks)
        receives = index > 0 or name == "bcast"
        check_readable(buffer, layout, blocks, receives=receives)
        if layout == WHOLE and not is_in_place(buffer):
            read[index] = signature(buffer)
    sent, received = read
    if name in REDUCING and sent != received and UNKNOWN not in (*sent, *received):
        left, right = (f"{count} {DTYPES[dtype]}" for count, dtype in read)
        raise ValueError(f"{call} was given {left} to send and {right} to receive; they must be alike")


def _check_in_place(comm: MPI.Intracomm, call: str, buffers: Sequence[Any], root: int) -> None:
    """Raise ValueError if a rank that is not the root passes MPI.IN_PLACE: ranks would hang inside MPI."""
    name, place = plain_name(call), "send" if plain_name(call) in TO_ROOT else "receive"
    buffer = {"send": buffers[0], "receive": buffers[-1]}[place] if buffers else None
    if root not in (comm.rank, UNKNOWN) and name in (*TO_ROOT, *FROM_ROOT) and is_in_place(buffer):
        raise ValueError(
            f"{call} was given MPI.IN_PLACE to {place} on rank {comm.rank}: only the root, rank {root}, may "
            "pass it; the other ranks give their array"
        )


def check_readable(buffer: Any, layout: int, blocks: int, *, receives: bool) -> None:
    """Raise what mpi4py raises for an argument that it cannot read. Nothing is sent."""
    if buffer is None or isinstance(buffer, NO_BUFFER) or layout == TYPES:
        return
    if layout == COUNTS and isinstance(buffer, (list, tuple)):
        parts = parse(buffer, for_each_rank=True)
        for numbers in parts.count, parts.displacement:
            if numbers is not None and not isinstance(numbers, (int, np.integer)) and len(numbers) != blocks:
                raise ValueError(f"expecting {blocks} items, got {len(numbers)}")
        buffer = parts.buffer if parts.datatype is None else [parts.buffer, parts.datatype]
    if type(buffer) is np.ndarray and buffer.dtype.num in DTYPES:
        if layout == BLOCK and buffer.size % blocks:
            raise ValueError(f"expected a multiple of {blocks} values, for {blocks} ranks, got {buffer.size}")
        return
    # On a communicator of one rank, these read the argument and move nothing.
    if receives:
        RawIntracomm.Gather(MPI.COMM_SELF, MPI.IN_PLACE, buffer)
    else:
        RawIntracomm.Bcast(MPI.COMM_SELF, buffer)


def plain_name(call: str) -> str:
    """Return `gather` for Gather, Igather and Gather_init."""
    name = call.removesuffix("_init").lower()
    return name[1:] if call[0] == "I" else name


def signature(message: Any, blocks: int = 1, for_each_rank: bool = False) -> tuple[int, int]:
    """Return the elements in a block of a message, and NumPy's number of their dtype; UNKNOWN if unclear.

    `message`: what mpi4py takes, an array or a list such as [array, count, datatype]. A count in it is that
    of one block; an array without a count holds `blocks` of them. `for_each_rank`: the message has a count
    for each rank.

    Raise ValueError for an array that is not contiguous: the rank that has it learns so before other ranks
    rely on it.
    """
    if type(message) is np.ndarray:
        _check_contiguous(message)
        size = message.size
        return (size if blocks == 1 else size // blocks), _known(message.dtype)
    if message is None:
        return 0, UNKNOWN
    try:
        parts = parse(message, for_each_rank)
        buffer, datatype = parts.buffer, parts.datatype
        if datatype is not None:
            dtype = np.dtype(datatype.typechar if datatype.is_predefined else object)
        else:
            dtype = buffer.dtype if isinstance(buffer, np.ndarray) else np.dtype(memoryview(buffer).format)
    except Exception:  # mpi4py says what is wrong with it
        return UNKNOWN, UNKNOWN
    if isinstance(buffer, np.ndarray):
        _check_contiguous(buffer)
    if for_each_rank or dtype.num not in DTYPES:
        return UNKNOWN, _known(dtype)
    if parts.is_counted:
        return int(parts.count), dtype.num
    return nbytes(buffer) // parts.size // blocks, dtype.num


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


def _known(dtype: np.dtype) -> int:
    return dtype.num if dtype.num in DTYPES else UNKNOWN
