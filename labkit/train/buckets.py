"""Buckets: the parts in which a gradient is averaged while the backward pass goes on.

The backward pass fills the flat gradient from its end to its start, so the buckets are cut from its end. They
may cut a layer in two. (PyTorch's DDP does not cut a parameter. A large layer then becomes one large bucket:
nothing of it arrives before all of it does, and if it is one of the first layers all of it is exposed.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from labkit.units import MIB


@dataclass(frozen=True)
class Buckets:
    """How to cut a gradient: into buckets of at most `bytes` bytes, the first and the last of `first_bytes`.

    A small first bucket lets communication start early, a small last one leaves little to communicate after
    the backward pass. In PyTorch's DDP, `bytes` is `bucket_cap_mb` (25 MiB); its first bucket has 1 MiB.
    """

    bytes: float = 4 * MIB
    first_bytes: float = MIB // 2

    def __post_init__(self) -> None:
        if not (0 < self.first_bytes < math.inf and 0 < self.bytes < math.inf):
            raise ValueError(
                f"expected buckets of more than 0 bytes, got bytes={self.bytes:g}, "
                f"first_bytes={self.first_bytes:g}"
            )

    def plan(self, n: int, itemsize: int = 4) -> list[tuple[int, int]]:
        """Return start and stop of each bucket of a gradient of n values, in the order of averaging.

        The first bucket ends at the gradient's end, the last one starts at 0.
        """
        most = max(1, int(self.bytes) // itemsize)
        small = min(most, max(1, int(self.first_bytes) // itemsize))
        stops = [n]
        while stops[-1] > 0:
            left = stops[-1]
            values = small if left == n or left <= small else min(most, left - small)
            stops.append(max(0, left - values))
        return [(start, stop) for stop, start in pairwise(stops)]
