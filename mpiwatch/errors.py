"""The errors of ranks: those that all raise together, and those of ranks that hang or are interrupted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.buffers import nbytes, what_it_holds
from mpiwatch.report import Report, render
from mpiwatch.wording import ranks_phrase


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


class HangError(CollectiveError):
    """A collective or message that cannot complete; every rank that waits raises it, with the same report.

    `report` (a `mpiwatch.report.Report`) is the message as data. No data has moved in the
    collective, and the communicators can be used again: in the next cell, or after
    `mpiwatch.communicators.resume()`. After that, non-blocking collectives need a new communicator, made by
    Create_group: those that the hang has left cannot be cancelled.
    """

    def __init__(self, report: Report, rank: int) -> None:
        super().__init__(render(report))
        self.report = report
        self.rank = rank

    def _render_traceback_(self) -> list[str]:  # by IPython on an engine; the notebook shows the report once
        return [f"HangError: {str(self).splitlines()[0]}"]


class Interrupted(KeyboardInterrupt):
    """The user interrupted a rank while it was waiting."""

    def _render_traceback_(self) -> list[str]:  # a traceback would show only the loop that waits
        return [f"KeyboardInterrupt: {self}"]


class ForkedError(RuntimeError):
    """A forked child of a rank has called MPI, which belongs to its parent."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"a forked child of rank {rank} called MPI, which only the process that initialised it may use: "
            "call MPI before the fork, or start the child with `subprocess` or multiprocessing's `spawn`."
        )


class TooLongError(MPI.Exception):  # so that a program can catch it as mpi4py's own
    """A message that is longer than the buffer of its receive; part of it is lost."""

    def __init__(self, error: MPI.Exception, call: str, rank: int, buffer: Any, status: MPI.Status) -> None:
        super().__init__(error.Get_error_code())
        room, is_array = nbytes(buffer), isinstance(buffer, np.ndarray)
        # The status has what was sent (Open MPI) or what was received; MPICH's text may have both.
        said = re.findall(r"(\d+) bytes received but buffer size is (\d+)", str(error))
        sizes = [status.Get_count(MPI.BYTE), *(int(number) for pair in said for number in pair)]
        sent = f"{max(sizes)} bytes" if max(sizes) > room else "more bytes than fit"
        self.text = (
            f"rank {rank}: {call} was sent {sent} by rank {status.source} (tag {status.tag}), but its buffer "
            f"has room for {what_it_holds(buffer) if is_array else f'{room} bytes'}"
        )

    def __str__(self) -> str:
        """Return the ranks, the call and the sizes."""
        return self.text
