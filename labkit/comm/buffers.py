"""Buffers as mpi4py takes them: an array, or a list of it with a count, a datatype, or both."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI


def is_in_place(buf: Any) -> bool:
    """Tell whether a buffer is MPI.IN_PLACE."""
    return isinstance(buf, MPI.InPlaceType)


def byte_count(buf: Any) -> int:
    """Return how many bytes a buffer has, given in any of mpi4py's ways."""
    if not isinstance(buf, list | tuple):
        return memoryview(buf).nbytes
    data, *said = buf
    kind = next((word for word in said if isinstance(word, MPI.Datatype)), None)
    count = next((word for word in said if isinstance(word, int)), None)
    if count is None:
        return memoryview(data).nbytes
    return count * (kind.Get_size() if kind else memoryview(data).itemsize)
