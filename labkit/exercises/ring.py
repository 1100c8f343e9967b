"""A communicator whose collectives all run on a ring of messages, so that their bytes can be counted.

It stands alone: a job that does not need it is not shown labkit's ring, which other exercises ask for.
"""

from __future__ import annotations

from typing import Any

from labkit.checks.exercise import Case


def on_a_ring(comm: Any, case: Case) -> Any:
    """Return the communicator with an all-reduce that sends messages around a ring: a `wrap`."""
    from labkit.comm import RingComm  # noqa: PLC0415 (loads MPI, which only a job may)

    return RingComm(comm)
