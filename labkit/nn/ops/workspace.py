"""A workspace: arrays for intermediate results that every step uses again.

A training step of VGG-11 fills hundreds of megabytes of intermediate results. If each step allocated them
again, the system would have to map and clear every page of them in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

GAP = 80  # numbers after each part of a spread array: 5 cache lines of float32


class Workspace:
    """Arrays by name. An array is valid until `array` or `like` is next called with the same name.

    `scratch` is a workspace for results that are needed only within one call; all layers share it.
    """

    def __init__(self, scratch: Workspace | None = None) -> None:
        self._kept: dict[str, np.ndarray] = {}
        self.scratch = self if scratch is None else scratch

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised contiguous array, in the memory of the last one of that name if it fits."""
        size = math.prod(shape)
        buffer = self._kept.get(name)
        if buffer is None or buffer.size < size or buffer.dtype != dtype:
            buffer = self._kept[name] = np.empty(size, dtype)
        return buffer[:size].reshape(shape)

    def spread(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised array x with a gap of a few cache lines after each of x[0], x[1], …

        Their sizes are often powers of two, and a cache has only a few places for addresses that are a large
        power of two apart: a loop over x[:, i] would keep almost nothing in it. Each x[i] is contiguous.
        """
        size = math.prod(shape[1:])
        return self.array(name, (shape[0], size + GAP), dtype)[:, :size].reshape(shape)

    def like(self, name: str, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return an uninitialised array with x's dtype and memory layout, and x's shape unless given.

        Loops along the innermost axis in memory are fast, so results have the same layout as their input x.
        """
        shape = x.shape if shape is None else shape
        order = memory_order(x)
        array = self.array(name, tuple(shape[axis] for axis in order), x.dtype)
        return array.transpose(np.argsort(order))


def memory_order(x: np.ndarray) -> list[int]:
    """Return the axes of x from the outermost to the innermost in memory."""
    return sorted(range(x.ndim), key=lambda axis: -x.strides[axis])


def cache_blocks(x: np.ndarray, values: int = 32768) -> Iterator[slice]:
    """Yield slices of x's first axis (images, for x (N, C, H, W)) of about `values` values each.

    A computation that passes over its data several times is faster block by block: a block stays in the
    core's cache between the passes.
    """
    images = max(1, values * len(x) // max(1, x.size))
    for start in range(0, len(x), images):
        yield slice(start, start + images)


def matching_blocks(arrays: Sequence[np.ndarray], axes: Sequence[int]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield matching `cache_blocks` of arrays of the same shape, along the first of `axes`, as views.

    The views have their axes in this order.
    """
    arrays = [x.transpose(axes) for x in arrays]
    for block in cache_blocks(arrays[0]):
        yield tuple(x[block] for x in arrays)
