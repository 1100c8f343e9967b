"""The memory of a run's state: measured in the first steps, and given back to the system."""

from __future__ import annotations

import ctypes
import mmap
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, thread_time

import numpy as np

from labkit.nn import Model
from labkit.train.callbacks import Callback
from labkit.train.steps import Step

MEASURED = 3  # steps
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


def least_time_and_peak(
    function: Callable[..., object], *arguments: object, repeats: int = 9
) -> tuple[float, int]:
    """Return the least computing time (s) of so many calls, and the most bytes that a call before them added.

    `arguments` are the function's. Computing time is this thread's time on a core, without the time in which
    other programs have it. Only what `tracemalloc` traces counts, NumPy's arrays among it. The timed calls
    are not traced, which would slow them down.
    """
    tracemalloc.start()
    function(*arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    times = []
    for _ in range(repeats):
        start = thread_time()
        function(*arguments)
        times.append(thread_time() - start)
    return min(times), peak


class PeakNotes:
    """Times (s), and the most bytes in memory since the note before, as far as `tracemalloc` traces them."""

    def __init__(self) -> None:
        self.times = list[float]()
        self.nbytes = list[int]()
        tracemalloc.reset_peak()

    def note(self) -> None:
        """Add a note."""
        self.times.append(perf_counter())
        self.nbytes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()


class Memory(Callback):
    """Measure the most bytes of this rank's state that are in memory in the first steps, by kind."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    def begin(self, model: Model, held: Mapping[str, Sequence[np.ndarray]]) -> None:
        self._model = model
        self._held = held
        self._before = model.before_layer
        model.before_layer = self._before_layer

    def _before_layer(self, number: int, forward: bool) -> None:
        if self._before:
            self._before(number, forward)
        for name, arrays in self._held.items():
            self.most[name] = max(self.most.get(name, 0), sum(map(resident, arrays)))

    def after_step(self, step: Step) -> None:
        if step.number >= MEASURED:
            self._model.before_layer = self._before
