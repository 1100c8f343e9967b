"""How a command that runs on many ranks ends when something goes wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


@contextmanager
def ending_together(comm: MPI.Intracomm, command: str) -> Iterator[None]:
    """End all ranks if the block raises on any.

    An error that all ranks raise together is one line from rank 0, and exit status 2 on each. Any other
    error is this rank's alone: the others may be waiting for it in a collective, so after telling it the
    whole job is aborted.
    """
    from labkit.comm import CollectiveError  # noqa: PLC0415 (loads MPI, and --help must not)

    try:
        yield
    except CollectiveError as error:
        if comm.rank == 0:
            _tell(f"{command}: {error}\n")
        # A launcher may kill the others as soon as one rank has failed: not before rank 0 has spoken.
        comm.Barrier()
        sys.exit(2)
    except KeyboardInterrupt:
        comm.Abort(130)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        _tell(f"{where}{command}: rank {comm.rank} of {comm.size} failed: {type(error).__name__}: {error}\n")
        comm.Abort(1)


def _tell(text: str) -> None:
    """Write in one piece, so that the launcher keeps it together."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
