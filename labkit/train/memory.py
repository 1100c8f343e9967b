"""The memory of a run's state: predicted, measured in the first steps, and given back to the system."""

from __future__ import annotations

import ctypes
import mmap
import tracemalloc
from collections.abc import Mapping, Sequence
from itertools import pairwise
from time import perf_counter

import numpy as np

from labkit.nn import Model, flat
from labkit.train.buckets import Buckets
from labkit.train.callbacks import Callback, Optimizer
from labkit.train.steps import Step

AHEAD = 2  # buckets of the gradient that may wait to be averaged: on a slow link, all of them would
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


class PeakNotes:
    """Times (s), and the most bytes in memory since the note before, as far as `tracemalloc` traces them."""

    def __init__(self) -> None:
        self.times, self.nbytes = list[float](), list[int]()
        tracemalloc.reset_peak()

    def note(self) -> None:
        """Add a note."""
        self.times.append(perf_counter())
        self.nbytes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()


def buckets_of_layers(model: Model, plan: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return which buckets hold parameters of each layer."""
    stops = np.cumsum([flat.size(layer.parameters()) for layer in model.layers]).tolist()
    return [
        [number for number, (first, last) in enumerate(plan) if max(first, start) < min(last, stop)]
        for start, stop in pairwise([0, *stops])
    ]


def predict(
    model: Model, optimizer: Optimizer | None, ranks: int, shard_state: str, buckets: Buckets
) -> dict[str, float]:
    """Return the most bytes of parameters, gradient and optimizer state that a rank has in memory.

    What is given back bucket by bucket is there in part: of the parameters, the buckets of two layers that
    follow each other; of the gradient, that of a layer behind the buckets that wait to be averaged.
    """
    whole, plan = float(model.params.nbytes), buckets.plan(model.params.size, model.params.itemsize)
    states = optimizer.state().values() if optimizer else ()
    most = {"parameters": whole, "gradient": whole, "optimizer": sum(float(each.nbytes) for each in states)}
    if shard_state == "none":
        return most
    layers = [each for each in buckets_of_layers(model, plan) if each]
    most["optimizer"] /= ranks
    if shard_state != "optimizer":
        starts = np.cumsum([0, *(flat.size(layer.parameters()) for layer in model.layers)]).tolist()
        waiting = [max(0, sum(first >= stop for first, _ in plan) - AHEAD) for stop in starts[1:]]
        most["gradient"] = model.params.itemsize * max(
            plan[bucket][1] - start for bucket, start in zip(waiting, starts, strict=False)
        )
    if shard_state == "parameters":
        windows = [{*one, *other} for one, other in pairwise([*layers, []])]
        sizes = [sum(plan[bucket][1] - plan[bucket][0] for bucket in each) for each in windows]
        most["parameters"] = model.params.itemsize * max(sizes) + whole / ranks
    most["gradient"] += whole / ranks  # this rank's part of the average has memory of its own
    return most


class Memory(Callback):
    """Measure the most bytes of this rank's state that are in memory in the first steps, by kind."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    def begin(self, model: Model, held: Mapping[str, Sequence[np.ndarray]]) -> None:
        self._model, self._held, self._before = model, held, model.before_layer
        model.before_layer = self._before_layer

    def _before_layer(self, number: int, forward: bool) -> None:
        if self._before:
            self._before(number, forward)
        for name, arrays in self._held.items():
            self.most[name] = max(self.most.get(name, 0), sum(map(resident, arrays)))

    def after_step(self, step: Step) -> None:
        if step.number >= MEASURED:
            self._model.before_layer = self._before


def memory_line(about: Mapping[str, Mapping[str, float]], parameters: int) -> str:
    """Return a line with the measured and the predicted bytes for each parameter."""
    found, predicted = about["measured"], about["predicted"]
    words = [
        f"{name} {found[name] / parameters:.3g} ({predicted[name] / parameters:.3g})" for name in predicted
    ]
    return f"rank 0, bytes/parameter (predicted): {', '.join(words)}"
