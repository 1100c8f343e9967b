"""One flat array, and named, shaped views into it.

A model keeps all its parameters in one contiguous array and all its gradients in another. So one call on one
buffer averages the gradients over the ranks, and nothing has to be copied before it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]


def size(shapes: Shapes) -> int:
    """Return the total number of values in arrays of these shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def views(flat: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    """Return the views of `flat` by name, in the order of `shapes`; writing to a view writes to `flat`.

    Shapes: flat (size(shapes),), contiguous. Raise ValueError, with both shapes, if `flat` has another size.
    """
    if flat.shape != (size(shapes),):
        raise ValueError(
            f"the flat array has shape {flat.shape}, expected ({size(shapes)},) for {dict(shapes)}"
        )
    named, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        named[name] = flat[start:stop].reshape(shape)
        start = stop
    return named
