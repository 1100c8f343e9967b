"""The notebook's side of the lab: connect to engines or start them, run cells, recover from failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ipyparallel

    from mpiwatch.flight_recorder.report import Report

__all__ = ["connect", "last_hang"]

# The environment variables that `labkit lab` and connect() take the number of ranks and the profile from,
# before anything else.
RANKS, PROFILE = "LABKIT_RANKS", "LABKIT_PROFILE"


def connect(
    n: int = 4,
    *,
    profile: str = "mpi",
    restart: bool = False,
    take_over: bool = False,
    own: bool = False,
    deadline_s: float = 20.0,
    strict: bool = False,
    timeout: float = 120.0,
) -> ipyparallel.Client:
    """Return a client of `n` engines that form one MPI world, engine id = rank, and set up `%%px` for them.

    Attach to a running cluster of `n` engines, restart its engines if they have died, or start a cluster that
    ends with this notebook's kernel. Every engine gets `comm`, `rank`, `size` and `np`. `comm` is watched: if
    a rank never calls a collective, all ranks raise an error that says why.

    One notebook at a time uses the engines. Of several clusters of `n` engines, this notebook takes the one
    that it has used already, else a free one, and the cluster of `labkit lab` before others. If other
    notebooks hold all of them, it takes over the engines of a notebook that runs no cell on them. That
    notebook then raises an error at each use of its ranks, until it calls `connect()` again. The ranks keep
    their variables only if this kernel was the last to use them; otherwise these are cleared.

    The environment variables LABKIT_RANKS and LABKIT_PROFILE replace `n` and `profile`, so that a notebook
    runs unchanged on other machines.

    - `n`: the number of ranks, at least 1; it may exceed the number of cores.
    - `profile`: where the ranks run: `mpi` is this machine; `hosts` is the hosts with shaped links that
      `labkit hosts up` creates, one rank on each; `slurm` is a job of the cluster that this machine belongs
      to, with the settings in ~/.config/allreduce-lab/slurm.ini (see docs/slurm.md).
    - `restart`: end the engines that are there, even those that do not respond, and start new ones.
    - `take_over`: take the engines over even from a notebook that runs a cell on them; the cell is stopped.
    - `own`: start a cluster for this notebook alone, whatever else runs.
    - `deadline_s`: how long a rank waits in a call of `comm` before it reports a hang, in seconds.
    - `strict`: let each send wait for its receive, compare messages with their receives, and list at the end
      of a cell what it has left behind (see docs/strict.md). Strict mode lasts until the engines end.
    - `timeout`: how long to wait for the engines, in seconds.

    Raise `labkit.hosts.HostsError` if the profile is `hosts` and no hosts are up, and
    `labkit.cluster.errors.ClusterError` if the engines did not start, do not answer, do not form one world of
    `n` ranks, or run a cell of another notebook.
    """
    # Imported here because engines import this package while they start, and need nothing of the client.
    from labkit.cluster import connection  # noqa: PLC0415

    return connection.connect(
        n,
        profile=profile,
        restart=restart,
        take_over=take_over,
        own=own,
        deadline_s=deadline_s,
        strict=strict,
        timeout=timeout,
    )


def last_hang() -> Report | None:
    """Return the report of this notebook's last hang, for `labkit.plots.hang`; None if no cell hung."""
    from labkit.cluster import magics  # noqa: PLC0415  (see connect)

    return magics.last_hang()


def load_ipython_extension(shell: Any) -> None:
    """Let `%%px` say what to do in a kernel that starts: it has no engines yet.

    cluster_profiles/mpi/ipython_kernel_config.py loads this package into each kernel of the environment. It
    imports nothing of ipyparallel: a kernel must not start later for it.
    """
    from labkit.cluster import errors  # noqa: PLC0415  (see connect)

    errors.refuse_cells(shell, errors.NO_ENGINES)
