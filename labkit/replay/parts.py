"""The names of parts of a recording that `run_case` makes, and how a replay reads them."""

from __future__ import annotations

from mpiwatch.trace import Trace

EXPECTED = "expected"  # what the reference has sent
PREPARED = "prepared"  # what has nothing to do with the function
POWERS = "powers of ten"  # without calls: rank r's contribution consists of values 10^r


def has_powers(trace: Trace) -> bool:
    """Return whether the digits of values say whose contributions are in them."""
    return any(part.name == POWERS for log in trace.logs.values() for part in log.parts)
