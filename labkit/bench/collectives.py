"""Collectives against one another: bandwidths, rows and tables, from times by size and way.

algbw is bytes / time. busbw multiplies it by 2(p-1)/p, the least that each rank must send of every byte in
an allreduce: so it can be held against what a link can do, for any p. Source: nccl-tests, PERFORMANCE.md.
"""

from __future__ import annotations

import math

import numpy as np

from labkit.bench.rows import Row, rows_of

Times = dict[int, dict[str, float]]  # bytes → way → median time in seconds

ITEM = np.dtype(np.float32).itemsize
SIZES = tuple(4**k for k in range(1, 14))  # 4 B … 64 MiB
BASELINES = "mpi-allreduce", "gloo", "hand-written"


def busbw(size: int, time: float, p: int) -> float:
    """Return the bytes per second that each rank sends at least; 0 for one rank."""
    return size / time * 2 * (p - 1) / p


def wire_bound(size: int, p: int, bits_per_second: float) -> float:
    """Return the least time (s) of an allreduce over links of this rate: 2(p-1)/p of the bytes."""
    return 2 * (p - 1) / p * size * 8 / bits_per_second


def rows(times: Times, p: int, place: str, rate: float | None = None) -> list[Row]:
    """Return every way against the baselines, in ms; with a link's `rate` (bit/s) against that, too.

    `place` says where: "p4", say. The hand-written ring is held against the ring alone.
    """
    found = []
    for size, medians in times.items():
        for name in medians:
            if name in BASELINES:
                continue
            against = {
                other: medians[other]
                for other in BASELINES
                if other in medians and (other != "hand-written" or name == "ring")
            }
            if rate and p > 1:
                against["wire-bound"] = wire_bound(size, p, rate)
            shown = {algorithm: 1e3 * time for algorithm, time in {name: medians[name], **against}.items()}
            found += rows_of(f"{name}/{said(size)}/{place}", shown, "ms")
    return found


def table(times: Times, p: int) -> str:
    """Return time, algbw and busbw of every way at every size as text in aligned columns.

    The last column is the time as a multiple of that of the MPI library's own Allreduce.
    """
    width = max((len(name) for medians in times.values() for name in medians), default=3)
    lines = [f"{'size':>7}  {'way':{width}}  {'time':>9}  {'algbw':>10}  {'busbw':>10}  × MPI"]
    for size, medians in times.items():
        lines += [
            f"{said(size):>7}  {name:{width}}  {time_said(time):>9}  {rate_said(size / time):>10}  "
            f"{rate_said(busbw(size, time, p)):>10}  {time / medians['mpi-allreduce']:5.2f}"
            for name, time in sorted(medians.items(), key=lambda item: item[1])
        ]
    return "\n".join(lines)


def said(size: int) -> str:
    """Return a number of bytes as people write it: 64MiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % 2**power == 0:
            return f"{size >> power}{unit}"
    return f"{size}B"


def time_said(seconds: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    return _three(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def rate_said(bytes_per_second: float) -> str:
    """Return a bandwidth with three digits and the unit that suits it."""
    return _three(bytes_per_second, (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)))


def _three(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, one = next((pair for pair in units if value >= pair[1]), units[-1])
    digits = math.floor(math.log10(value / one)) if value > 0 else 0
    return f"{value / one:.{max(0, 2 - max(0, digits))}f} {unit}"
