"""One flat array, and the named, shaped views into it.

A model's parameters lie end to end in one contiguous array, its gradients in another. So averaging a gradient
over ranks is one call on one buffer, and nothing is copied to be sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]


def size(shapes: Shapes) -> int:
    """Return how many values the named shapes hold together."""
    return sum(math.prod(shape) for shape in shapes.values())


def views(flat: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    """Return the views of `flat` by name, in the order of `shapes`; writing to a view writes to `flat`.

    Shapes: flat (size(shapes),), contiguous. A ValueError names both sizes if they differ.
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
