"""Errors that all ranks have to raise together."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

from labkit.comm import CollectiveError


def error_on_every_rank(comm: MPI.Intracomm, call: Callable[[], object]) -> str:
    """Check that the call raises the same CollectiveError on all ranks; return its message."""
    try:
        call()
    except CollectiveError as error:
        message = str(error)
    else:
        raise AssertionError(f"rank {comm.rank}: no error")
    assert comm.allgather(message) == [message] * comm.size  # also: no message is left over
    return message
