"""The memory pages of arrays: how many there are, and giving them back to the system."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None)


def release(array: np.ndarray) -> None:
    """Give the pages that lie wholly in a contiguous array back to the system; its content is lost.

    The array stays usable: the system maps a new page, on Linux of zeros, where it is next read or written.
    """
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > first:
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), mmap.MADV_DONTNEED)


def resident(array: np.ndarray) -> int:
    """Return how many bytes of a contiguous array the system holds in memory, in whole pages."""
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    pages = np.zeros(-(-(array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE), np.uint8)
    size = ctypes.c_size_t(len(pages) * mmap.PAGESIZE)
    if _LIBC.mincore(ctypes.c_void_p(first), size, ctypes.c_void_p(pages.ctypes.data)):
        return array.nbytes
    return min(array.nbytes, mmap.PAGESIZE * int((pages & 1).sum()))
