"""The emulated link of a rank: a bandwidth and a latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.units import format_bandwidth, format_time, parse_bandwidth, parse_time


@dataclass(frozen=True)
class Link:
    """A rank's link to all others: `bytes_per_s` in each direction, and `latency_s` (α) for every message.

    The default is a link without delay.
    """

    bytes_per_s: float = math.inf
    latency_s: float = 0.0

    @property
    def s_per_byte(self) -> float:
        """Return the inverse bandwidth β, in seconds per byte."""
        return 1 / self.bytes_per_s

    def slower(self, factor: float) -> Link:
        """Return a link with `factor` times the latency and 1/`factor` of the bandwidth."""
        return Link(self.bytes_per_s / factor, self.latency_s * factor)

    def __str__(self) -> str:
        """Return what `parse_link` reads: "1gbit+50us"; "no delay" for the default."""
        if self == Link():
            return "no delay"
        bandwidth = "" if self.bytes_per_s == math.inf else format_bandwidth(8 * self.bytes_per_s)
        return bandwidth + (f"+{format_time(self.latency_s)}" if self.latency_s else "")


def parse_link(text: str) -> Link:
    """Return the link in a text such as "1gbit", "100mbit+1ms" or "+50us"; raise ValueError for any other."""
    bandwidth, plus, latency = text.partition("+")
    try:
        bits_per_s = parse_bandwidth(bandwidth) if bandwidth or not plus else math.inf
        return Link(bits_per_s / 8, parse_time(latency) if plus else 0.0)
    except ValueError:
        raise ValueError(
            "expected a bandwidth such as 100mbit or 1gbit, or bandwidth and latency such as 1gbit+50us, "
            f"got {text!r}"
        ) from None


def describe(links: Sequence[Link]) -> str:
    """Return the links of all ranks in one phrase: "1gbit, rank 3 100mbit"."""
    usual = max(links, key=links.count)
    exceptions = [f"rank {rank} {link}" for rank, link in enumerate(links) if link != usual]
    return ", ".join([str(usual), *exceptions])
