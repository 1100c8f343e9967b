"""Errors that all ranks raise together.

If one rank raised alone, the others would wait for it in their next collective forever. So each rank reports
its fault to all ranks, and all of them raise it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from labkit.wording import ranks_phrase


class CollectiveError(ValueError):
    """An error that every rank of the communicator raises, with the same message."""


def raise_together(comm: MPI.Intracomm, fault: str | None) -> None:
    """Raise CollectiveError on every rank if any rank has a fault; the message names the ranks that have one.

    `fault` is a message, or None on a rank without a fault. Collective; costs one small allgather.
    """
    raise_faults(comm.allgather(fault))


def raise_faults(faults: Sequence[str | None]) -> None:
    """Raise CollectiveError if one of the faults, listed by rank and the same on all ranks, is not None."""
    ranks: dict[str, list[int]] = {}
    for rank, fault in enumerate(faults):
        if fault is not None:
            ranks.setdefault(fault, []).append(rank)
    if ranks:
        raise CollectiveError(
            "; ".join(f"{ranks_phrase(found, len(faults))}: {fault}" for fault, found in ranks.items())
        )
