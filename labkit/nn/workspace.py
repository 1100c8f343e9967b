"""Work arrays that are used again, step after step.

A step of VGG-11 fills hundreds of megabytes of intermediate results. If each were allocated anew, the system
would have to hand out and clear every page of them in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike


class Workspace:
    """Arrays by name. An array is valid until the next one of the same name is asked for.

    `scratch` holds what is needed only within one call: layers share it, one after the other.
    """

    def __init__(self, scratch: Workspace | None = None) -> None:
        self._kept: dict[str, np.ndarray] = {}
        self.scratch = self if scratch is None else scratch

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return a contiguous array with whatever was left in it: the last one's memory, if large enough."""
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or kept.size < size or kept.dtype != dtype:
            kept = self._kept[name] = np.empty(size, dtype)
        return kept[:size].reshape(shape)

    def like(self, name: str, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return an array of x's dtype and order of axes in memory, and of its shape or another one.

        Work along the axis that is innermost in memory is fast, so what is computed from x is laid out as x.
        """
        shape = x.shape if shape is None else shape
        order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
        array = self.array(name, tuple(shape[axis] for axis in order), x.dtype)
        return array.transpose(np.argsort(order))


def parts(x: np.ndarray, values: int = 32768) -> Iterator[slice]:
    """Yield slices of x's first axis, some images each: about `values` values of x.

    What is worked on in several passes stays in a core's own cache between them, if it is done part by part.
    """
    images = max(1, values * len(x) // max(1, x.size))
    for start in range(0, len(x), images):
        yield slice(start, start + images)
