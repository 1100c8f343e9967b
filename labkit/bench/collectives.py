"""Bandwidths, rows and tables, from the times of all-reduce algorithms.

algbw is bytes / time. busbw is algbw · 2(p-1)/p, because each rank must send at least 2(p-1)/p of the bytes
in an all-reduce. So busbw can be compared with a link's bandwidth for any p.
Source: nccl-tests, PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from labkit import units
from labkit.bench.rows import Row, rows_of
from labkit.comm.timing import Times

SIZES = tuple(4**k for k in range(1, 14))  # 4 B … 64 MiB
BASELINES = "mpi-allreduce", "gloo", "hand-written"
NO_CHOICE = "auto", "gloo", "hand-written", "hierarchical", "shared-memory-copied"  # not for `auto` to choose


def busbw(size: int, time: float, p: int) -> float:
    """Return the bytes per second that each rank sends at least; 0 for one rank."""
    return size / time * 2 * (p - 1) / p


def wire_bound(size: int, p: int, bandwidth: float) -> float:
    """Return the least time (s) of an all-reduce of `size` bytes over links of this bandwidth (bit/s)."""
    return 2 * (p - 1) / p * size * 8 / bandwidth


def best(medians: Mapping[str, float]) -> float:
    """Return the least time of all algorithms that `auto` can choose."""
    return min(time for name, time in medians.items() if name not in NO_CHOICE)


def rows(times: Times, p: int, place: str, bandwidth: float | None = None) -> list[Row]:
    """Return rows of every algorithm against the baselines, in ms.

    `place` ends the names of the cases, for example "p4". Only the ring is compared with the hand-written
    ring; only `auto`, with the best of all algorithms that it can choose. Given a link's `bandwidth` (bit/s),
    each algorithm is also compared with the least time on it.
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
            if name == "auto":
                against["best"] = best(medians)
            if bandwidth and p > 1:
                against["wire-bound"] = wire_bound(size, p, bandwidth)
            shown = {other: 1e3 * time for other, time in {name: medians[name], **against}.items()}
            found += rows_of(f"{name}/{units.format_size(size)}/{place}", shown, "ms")
    return found


def table(times: Times, p: int) -> str:
    """Return time, algbw and busbw of every algorithm at every size as text in aligned columns.

    The last column is the time as a multiple of that of the MPI library's own Allreduce.
    """
    width = max((len(name) for medians in times.values() for name in medians), default=9)
    lines = [f"{'size':>7}  {'algorithm':{width}}  {'time':>9}  {'algbw':>10}  {'busbw':>10}  × MPI"]
    for size, medians in times.items():
        for name, time in sorted(medians.items(), key=lambda item: item[1]):
            algbw, bus = (
                units.approx_throughput(rate, trailing_zeros=True)
                for rate in (size / time, busbw(size, time, p))
            )
            took = units.approx_time(time, trailing_zeros=True)
            lines.append(
                f"{units.format_size(size):>7}  {name:{width}}  {took:>9}  {algbw:>10}  {bus:>10}  "
                f"{time / medians['mpi-allreduce']:5.2f}"
            )
    return "\n".join(lines)
