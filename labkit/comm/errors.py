"""Errors that all ranks raise together.

A rank that raises alone leaves the others waiting in their next collective for ever. So what one rank finds
wrong is told to all, and all raise it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from labkit.wording import ranks_phrase


class CollectiveError(ValueError):
    """An error that every rank of the communicator raises, with the same message."""


def raise_together(comm: MPI.Intracomm, fault: str | None) -> None:
    """Raise a CollectiveError on every rank if any rank has a fault to tell; it names the ranks that have.

    Collective; costs one small allgather. `fault` is None on a rank where all is well.
    """
    raise_faults(comm.allgather(fault))


def raise_faults(faults: Sequence[str | None]) -> None:
    """Raise a CollectiveError if any of the ranks' faults, known to all ranks already, is not None."""
    ranks: dict[str, list[int]] = {}
    for rank, fault in enumerate(faults):
        if fault is not None:
            ranks.setdefault(fault, []).append(rank)
    if ranks:
        raise CollectiveError(
            "; ".join(f"{ranks_phrase(who, len(faults))}: {fault}" for fault, who in ranks.items())
        )
