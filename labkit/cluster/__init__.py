"""The notebook's side of the lab: connect to engines or start them, and tell what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ipyparallel

    from labkit.watch.flight_recorder.report import Report


def connect(
    n: int = 4,
    *,
    profile: str = "mpi",
    restart: bool = False,
    take_over: bool = False,
    own: bool = False,
    deadline_s: float = 20.0,
    timeout: float = 120.0,
) -> ipyparallel.Client:
    """Return a client of `n` engines that are one MPI world, engine id = rank, and set up `%%px` for them.

    Attaches to a running cluster of `n` engines, brings its engines back if they have died, or starts a
    cluster that ends with this notebook's kernel. Every engine gets `comm`, `rank`, `size` and `np`. `comm`
    is watched: a collective that a rank never joins is an error on all ranks, with the reason.

    Args:
        n: the number of ranks, at least 1; more ranks than cores are welcome.
        profile: where the ranks run: `mpi` is this machine; `hosts` is the hosts with real links that
            `labkit hosts up` makes, one rank on each.
        restart: end the engines that are there, stuck ones too, and start new ones in their place.
        take_over: use the engines although another notebook holds them; that one is told.
        own: start a cluster of this notebook's own, whatever else runs.
        deadline_s: seconds that a rank waits in a call of `comm` before it is a hang.
        timeout: seconds to wait for the engines.

    Raises:
        labkit.hosts.HostsError: the profile is `hosts`, and none are up.
        labkit.cluster.world.ClusterError: the engines did not come, are not one world of `n` ranks, or are
            held by another notebook.

    """
    # Engines import this package on their way up: they must not pay for the client's side.
    from labkit.cluster.connection import connect as connect_  # noqa: PLC0415

    return connect_(
        n,
        profile=profile,
        restart=restart,
        take_over=take_over,
        own=own,
        deadline_s=deadline_s,
        timeout=timeout,
    )


def last_hang() -> Report | None:
    """Return the report of this notebook's last hang, for `labkit.plots.hang`; None if there was none."""
    from labkit.cluster.magics import last_hang as last  # noqa: PLC0415

    return last()
