"""How fast a rank's link is: a latency and a rate, in the words of `labkit hosts`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Bits per second, as tc(8) writes them.
RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
EXPECTED = "expected a rate such as 100mbit or 1gbit, or rate and latency such as 1gbit+50us"


@dataclass(frozen=True)
class Link:
    """A rank's link to all others: `bytes_per_s` each way, `latency_s` for every message (α, in seconds).

    The default is a link that takes no time.
    """

    bytes_per_s: float = math.inf
    latency_s: float = 0.0

    @property
    def s_per_byte(self) -> float:
        """β, in seconds per byte."""
        return 1 / self.bytes_per_s

    def slower(self, factor: float) -> Link:
        """Return a link with `factor` times the latency and a `factor`-th of the rate."""
        return Link(self.bytes_per_s / factor, self.latency_s * factor)

    def __str__(self) -> str:
        if self == Link():
            return "no delay"
        latency = f"+{1e6 * self.latency_s:.10g}us" if self.latency_s else ""
        if self.bytes_per_s == math.inf:
            return latency
        bits = 8 * self.bytes_per_s
        unit = max((unit for unit in RATES if RATES[unit] <= bits), key=RATES.__getitem__, default="bit")
        return f"{bits / RATES[unit]:.10g}{unit}{latency}"


def parse_link(text: str) -> Link:
    """Return the link that a text such as "1gbit", "100mbit+1ms" or "+50us" names; a ValueError if none."""
    rate, plus, latency = text.partition("+")
    per_s = quantity(rate, RATES) if rate else 8 * math.inf
    latency_s = quantity(latency, TIMES) if plus else 0.0
    if not text or per_s is None or per_s <= 0 or latency_s is None:
        raise ValueError(f"{EXPECTED}, got {text!r}")
    return Link(per_s / 8, latency_s)


def quantity(text: str, units: dict[str, float]) -> float | None:
    """Return the amount that a number and its unit name, such as "5ms"; None if it is none."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.strip())
    return float(parts[1]) * units[parts[2]] if parts and parts[2] in units else None


def describe(links: Sequence[Link]) -> str:
    """Return the links of all ranks in a few words: "1gbit, rank 3 100mbit"."""
    usual = max(links, key=links.count)
    odd = [f"rank {rank} {link}" for rank, link in enumerate(links) if link != usual]
    return ", ".join([str(usual), *odd])
