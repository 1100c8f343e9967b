"""Sizes, times and bandwidths as text. Every other module parses and formats them here.

`parse_…` and `format_…` are inverses, exact to ten digits, for options and the names of cases:
`format_size(64 << 20)` is "64MiB", which `parse_size` reads. `approx_…` rounds to three significant digits,
for tables, messages and axes: "1.43 GB/s".

Sizes are in bytes, times in seconds, bandwidths in bits per second (as tc(8) writes them) and throughputs in
bytes per second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LONGEST_S = 1e9  # as long as `time.sleep` can wait on every system
BANDWIDTHS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as "4B", "1KiB", "0.5MiB" or "20" (bytes).

    Raise ValueError for any other text and for a fraction of a byte.
    """
    size = _parse(text, {**SIZES, "": 1})
    if size is None or size != int(size):
        raise ValueError(f"expected a size such as 4B, 1KiB or 64MiB, got {text!r}")
    return int(size)


def parse_time(text: str) -> float:
    """Return the seconds in a text such as "50us", "50µs", "5ms" or "2s". Raise ValueError for any other."""
    seconds = _parse(text.replace("µ", "u").replace("μ", "u"), TIMES)
    if seconds is None or seconds > LONGEST_S:
        raise ValueError(f"expected a time such as 50us, 5ms or 2s, got {text!r}")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Return the bits per second in a text such as "100mbit" or "2.5gbit".

    Raise ValueError for any other text and for a bandwidth of 0.
    """
    bits_per_s = _parse(text, BANDWIDTHS)
    if not bits_per_s:
        raise ValueError(f"expected a bandwidth such as 100mbit or 1gbit, got {text!r}")
    return bits_per_s


def format_size(size: int) -> str:
    """Return a number of bytes in the largest unit that leaves a whole number: "64MiB", "1536KiB", "20B"."""
    unit = max(
        (name for name in SIZES if size and size % SIZES[name] == 0), key=SIZES.__getitem__, default="B"
    )
    return f"{size // SIZES[unit]}{unit}"


def format_time(seconds: float) -> str:
    """Return a time in the largest unit that it fills: "2s", "1.5ms", "50us", "0s"."""
    return _exact(seconds, TIMES) if seconds else "0s"


def format_bandwidth(bits_per_s: float) -> str:
    """Return a bandwidth in the largest unit that it fills: "1gbit", "2.5mbit"."""
    return _exact(bits_per_s, BANDWIDTHS)


def approx_size(size: float) -> str:
    """Return a number of bytes to three digits: "64 MiB", "1.46 KiB"; of whole bytes no fraction: "20 B"."""
    return f"{size:.0f} B" if size < KIB else _three_digits(size, SIZES)


def approx_time(seconds: float) -> str:
    """Return a time to three digits: "2.5 s", "70.5 ms", "0.3 µs"."""
    return _three_digits(seconds, {"µs": 1e-6, "ms": 1e-3, "s": 1.0})


def approx_throughput(bytes_per_s: float) -> str:
    """Return bytes per second to three digits: "1.43 GB/s", "9 MB/s"."""
    return _three_digits(bytes_per_s, {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9})


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    """Return the amount that a number and its unit (in any case) stand for, or None if they are neither."""
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    factors = {name.lower(): factor for name, factor in units.items()}
    amount = float(parts[1]) * factors[parts[2]] if parts and parts[2] in factors else math.inf
    return amount if math.isfinite(amount) else None


def duration(seconds: float) -> str:
    """Return a time in whole seconds: `34 s`, `2 min 5 s`, `1 h 0 min`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute} min"
    return f"{minutes} min {second} s" if minutes else f"{second} s"


def _unit(value: float, units: Mapping[str, float], tolerance: float) -> str:
    """Return the largest unit that the value fills, or else the smallest unit."""
    filled = [name for name in units if value >= units[name] * (1 - tolerance)]
    return max(filled or [min(units, key=units.__getitem__)], key=units.__getitem__)


def _exact(value: float, units: Mapping[str, float]) -> str:
    unit = _unit(value, units, tolerance=1e-11)
    return f"{value / units[unit]:.10g}{unit}"


def _three_digits(value: float, units: Mapping[str, float]) -> str:
    unit = _unit(value, units, tolerance=5e-4)  # 0.9996 ms rounds to 1 ms, not to 1000 µs
    amount = value / units[unit]
    whole = math.floor(math.log10(amount) + 2e-4) if amount > 0 else 0  # 9.996 has two digits once rounded
    text = f"{amount:.{min(max(0, 2 - max(0, whole)), 2)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}"
