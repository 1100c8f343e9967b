"""Buckets: the parts in which a gradient is averaged while the backward pass goes on.

The backward pass fills the flat gradient from its end to its start, so the buckets are cut from its end. They
may cut a layer in two. (PyTorch's DDP does not cut a parameter. A large layer then becomes one large bucket:
nothing of it arrives before all of it does, and if it is one of the first layers all of it is exposed.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from labkit.units import MIB, approx_size


@dataclass(frozen=True)
class BucketPlan:
    """The buckets of one gradient in the order in which they are averaged; `str` is a table of them.

    `bounds` are start and stop of each: the first one ends at the gradient's end, the last one starts at 0.
    """

    bounds: tuple[tuple[int, int], ...]
    itemsize: int = 4

    def __len__(self) -> int:
        return len(self.bounds)

    def __str__(self) -> str:
        rows = [("bucket", "values", "size")]
        for number, (start, stop) in enumerate(self.bounds, 1):
            rows.append((str(number), f"{start} … {stop - 1}", approx_size((stop - start) * self.itemsize)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )


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

    def plan(self, n: int, itemsize: int = 4) -> BucketPlan:
        """Return the buckets of a gradient of n values."""
        most = max(1, int(self.bytes) // itemsize)
        small = min(most, max(1, int(self.first_bytes) // itemsize))
        stops = [n]
        while stops[-1] > 0:
            left = stops[-1]
            values = small if left == n or left <= small else min(most, left - small)
            stops.append(max(0, left - values))
        return BucketPlan(tuple((start, stop) for stop, start in pairwise(stops)), itemsize)
