"""What has to be alike on all ranks in a collective: how many elements, of which type, by which operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.watch.flight_recorder import opcodes
from labkit.watch.flight_recorder.opcodes import DTYPES, UNKNOWN

# mpi4py's predefined operations are single objects; the caller's own are not told apart.
REDUCTIONS = {id(getattr(MPI, name)): number for number, name in enumerate(opcodes.REDUCTIONS)}


def of(buffer: Any, parts: int = 1) -> tuple[int, int]:
    """Return how many elements a part of a buffer has, and the number of their type.

    `buffer` is what mpi4py takes: an array, or a list of an array and counts and types. One that is not
    contiguous is an error here, on the rank that has it, before the others rely on it.
    """
    if type(buffer) is np.ndarray:
        flags = buffer.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            raise ValueError(f"expected a contiguous array, got one with gaps (strides {buffer.strides})")
        size = buffer.size
        return (size if parts == 1 else size // parts), DTYPES.get(buffer.dtype.num, UNKNOWN)
    if buffer is None:
        return 0, UNKNOWN
    if isinstance(buffer, (list, tuple)) and buffer:
        return _of_list(buffer, parts)
    try:
        view = memoryview(buffer)
        kind = DTYPES.get(np.dtype(view.format).num, UNKNOWN)
    except (TypeError, ValueError):
        return UNKNOWN, UNKNOWN
    if not view.contiguous:
        raise ValueError("expected a contiguous buffer, got one with gaps")
    return view.nbytes // view.itemsize // parts, kind


def _of_list(buffer: Any, parts: int) -> tuple[int, int]:
    array, *rest = buffer
    count, kind = of(array, parts)
    for word in rest:
        if isinstance(word, MPI.Datatype):
            try:
                kind = DTYPES.get(np.dtype(word.typechar).num, UNKNOWN) if word.is_predefined else UNKNOWN
            except (TypeError, ValueError, AttributeError):
                kind = UNKNOWN
            # Elements of another type than the array's are not as many.
            if kind == UNKNOWN or not (isinstance(array, np.ndarray) and DTYPES.get(array.dtype.num) == kind):
                count = UNKNOWN
        elif isinstance(word, str):
            count = kind = UNKNOWN
    for word in rest:
        if isinstance(word, (int, np.integer)):
            count = int(word) // parts
        elif word is not None and not isinstance(word, MPI.Datatype):
            count = UNKNOWN  # counts, or counts and places: one for each rank
    return count, kind


def writable(buffer: Any) -> None:
    """Raise, on the rank that has it, if an array to receive into cannot be written to."""
    if type(buffer) is np.ndarray and not buffer.flags.writeable:
        raise ValueError("expected a writable array to receive into, got a read-only one")
