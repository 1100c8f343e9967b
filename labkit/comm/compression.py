"""Compressed gradients: less traffic, and error feedback for what a compressor leaves out.

A rank adds its residual to its gradient, sends the sum compressed, and keeps what was not sent as its next
residual. So nothing is lost: what is too small to be sent adds up until it is sent.

Sources: A. F. Aji, K. Heafield, Sparse Communication for Distributed Gradient Descent, 2017 (top-k, 1 % of
the values); S. P. Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
2019; PyTorch's `fp16_compress_hook`, which adds up in float16, too, but has no residual.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from labkit.comm.algorithms import GATHER
from labkit.comm.by_name import FIXED
from labkit.comm.shared_memory import NAME as SHARED_MEMORY

FRACTION = 0.01  # of the values that top-k sends, as in Aji and Heafield
# Values are sent times SCALE: few gradients reach the lower end of float16's range, where it has fewer digits
# and NumPy is slow. The largest sum is half of what float16 holds, as partial sums may have been rounded up.
SCALE, LARGEST_SUM = 2.0**6, 2.0**15


@dataclass(frozen=True)
class Float16:
    """Send all values in half precision: half the bytes of float32, about three digits.

    The ranks add up in float16, too. Values so large that the sum of `ranks` of them might overflow (from 512
    for the sum on) are cut off, and the residual has the rest. Infinity and NaN are sent as they are.
    """

    ranks: int
    algorithms: ClassVar = tuple(name for name in FIXED if name != SHARED_MEMORY)
    gathered: ClassVar = {name: name for name in GATHER}  # the algorithms that gather the messages, and how

    def pack(self, values: np.ndarray) -> np.ndarray:
        """Return the message for these values. Shapes: values (n,), float16 (n,)."""
        limit = LARGEST_SUM / SCALE / self.ranks
        clipped = np.clip(values, -limit, limit)
        np.copyto(clipped, values, where=np.isinf(values))
        clipped *= SCALE
        return clipped.astype(np.float16)

    def unpack(self, message: np.ndarray, dtype: np.dtype) -> tuple[Any, np.ndarray]:
        """Return which values a message holds, and the values."""
        return slice(None), message * dtype.type(1 / SCALE)


@dataclass(frozen=True)
class TopK:
    """Send the k values that are largest in absolute value, and their indices; k is a fraction of all.

    Ranks choose different values, so each rank gathers the messages and adds them up. NaN counts as largest.
    """

    fraction: float
    gathered: ClassVar = {"mpi": "mpi-allgather", "ring": "allgather", **Float16.gathered}
    algorithms: ClassVar = tuple(gathered)

    def pack(self, values: np.ndarray) -> np.ndarray:
        """Return k values, at least one if any, then their indices. Shapes: values (n,), uint8 (m,)."""
        n = values.size
        k = min(n, max(1, int(self.fraction * n)))
        largest = np.arange(n) if k == n else np.argpartition(np.abs(values), -k)[-k:]
        return np.concatenate([values[largest].view(np.uint8), largest.astype(np.uint32).view(np.uint8)])

    def unpack(self, message: np.ndarray, dtype: np.dtype) -> tuple[Any, np.ndarray]:
        """Return which values a message holds, and the values."""
        end = message.size // (dtype.itemsize + 4) * dtype.itemsize
        return message[end:].view(np.uint32), message[:end].view(dtype)


Compressor = Float16 | TopK


@cache
def parse(text: str, ranks: int = 1) -> Compressor:
    """Return the compressor named "float16", "top-k" or "top-k=0.05"; raise ValueError for other text."""
    kind, equals, fraction = text.partition("=")
    if text == "float16":
        return Float16(ranks)
    with suppress(ValueError):
        number = float(fraction) if equals else FRACTION
        if kind == "top-k" and 0 < number <= 1:
            return TopK(number)
    raise ValueError(
        "expected the compression none, float16, top-k or top-k=FRACTION with a fraction above 0 and up to "
        f"1, such as top-k={FRACTION}, got {text!r}"
    )


def error_feedback(
    gradient: np.ndarray, residual: np.ndarray, compressor: Compressor
) -> tuple[np.ndarray, np.ndarray]:
    """Return the message that a rank sends for its gradient, and its new residual.

    The residual is what the message leaves out of gradient + residual. Shapes: gradient, residual (n,), of
    one float dtype; neither is changed.
    """
    left = gradient + residual
    message = compressor.pack(left)
    which, sent = compressor.unpack(message, left.dtype)
    left[which] -= sent
    return message, left
