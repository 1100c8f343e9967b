"""How a command that runs on many ranks gets its ranks, and how it ends when something goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from labkit import env

if TYPE_CHECKING:
    from mpi4py import MPI


# What launchers tell a rank, and what `on_ranks` tells its own: with a launcher that tells none of the others
# each rank would start ranks, and each of these again.
SIGNS = {"PMI_RANK", "PMIX_RANK", STARTED := "LABKIT_ON_RANKS"}


def under_mpiexec() -> bool:
    """Return whether a launcher (mpiexec, srun) has started this process as a rank. Loads no MPI."""
    return not SIGNS.isdisjoint(os.environ)


def on_ranks(p: int, deadline_s: float) -> None:
    """Run this very command on p ranks, and end with its exit status.

    The ranks end with this process, however that ends; Ctrl-C ends both.
    """
    from labkit.cluster.launchers import supervised  # noqa: PLC0415 (slow, and --help must not wait for it)

    mpiexec = env.mpiexec()
    if not shutil.which(mpiexec):
        raise click.ClickException(
            f"there is no {mpiexec} to start ranks with: install MPI, say pip install mpich"
        )
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _stop)
    # A session of its own, so that Ctrl-C reaches this process alone, which then ends all in order.
    job = subprocess.Popen(
        [*supervised("child"), mpiexec, "-n", str(p), sys.executable, "-m", "labkit", *sys.argv[1:]],
        env={**os.environ, STARTED: "1"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = job.wait(deadline_s)
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"ended after {deadline_s:.0f} s: the {p} ranks hang, or are too slow"
        ) from None
    except KeyboardInterrupt:
        status = 130
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)  # the way out is short, and the watcher has deadlines
        job.terminate()
        job.wait()
    sys.exit(status)


def _stop(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


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
