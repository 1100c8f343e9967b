"""From nothing to n ranks in a notebook: find or start a cluster, wait for its engines, check their world."""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import time
from pathlib import Path

import ipyparallel as ipp
import psutil
import tqdm
from ipyparallel.cluster.launcher import EngineLauncher
from ipyparallel.error import RemoteError

from labkit.cluster import finding, profiles
from labkit.cluster.magics import NONINTERACTIVE, Ranks, activate
from labkit.cluster.world import ClusterError, Introduction, check_world, introduce

POLL = 0.02  # seconds
ANSWER_S = 10.0  # an engine that does nothing answers in milliseconds
own: ipp.Cluster | None = None  # the cluster that this kernel has started


def connect(n: int, *, profile: str, restart: bool, timeout: float) -> ipp.Client:
    """See labkit.cluster.connect."""
    if n < 1:
        raise ClusterError(f"a cluster has at least one rank; n is {n}")
    deadline = time.monotonic() + timeout
    cluster, story, new = find_or_start(n, profile)
    client = cluster.connect_client_sync()
    if restart and not new:
        end_engines(cluster, client, deadline)
    ranks = bring_up(cluster, client, n, deadline, revive=not new)
    check_world(ranks, launcher_of(cluster))
    deaths = Path(cluster.profile_dir, "log", f"deaths-{cluster.cluster_id}")
    activate(Ranks(client, {one.pid: one.rank for one in ranks}, deaths))
    hosts = ", ".join(dict.fromkeys(one.host for one in ranks))
    print(
        f"{n} rank{'s' * (n > 1)}, one MPI world, engine id = rank ({ranks[0].library} on {hosts}; {story})."
    )
    return client


def find_or_start(n: int, profile: str) -> tuple[ipp.Cluster, str, bool]:
    """Return a cluster meant for n engines, where it comes from, and whether it is new."""
    global own  # noqa: PLW0603
    named = profiles.prepare(profile, n)
    for path, size in finding.running(profile):
        if size == n:
            if own is not None and path == Path(own.cluster_file):
                return own, "this notebook's cluster", False
            return finding.attach(path), f"cluster found running: {path.stem}", False
    end_own()  # this notebook's own, if any, has another size, or its controller has died
    own = ipp.Cluster(n=n, cluster_id=finding.OWN, profile=named, parent=None, log=finding.quiet)
    own.start_cluster_sync()
    atexit.register(end_own)
    return own, "cluster started; it ends with this notebook", True


def end_own() -> None:
    """Stop this kernel's cluster: engines first, for a controller waits for engines that were not told."""
    global own  # noqa: PLW0603
    atexit.unregister(end_own)
    if own is not None:
        own.stop_engines_sync()
        own.stop_controller_sync()
        own = None


def bring_up(
    cluster: ipp.Cluster, client: ipp.Client, n: int, deadline: float, *, revive: bool
) -> list[Introduction]:
    """Wait until n ranks answer, with a progress bar if that takes long; with `revive`, replace dead ones."""
    bar = tqdm.tqdm(
        total=n, desc="engines", unit="engine", delay=1, leave=False, disable=NONINTERACTIVE, file=sys.stdout
    )
    with contextlib.closing(bar):
        while time.monotonic() < deadline:
            bar.update(len(client.ids) - bar.n)
            if len(client.ids) >= n:
                try:
                    return client[:].apply_async(introduce).get(ANSWER_S)
                except RemoteError:
                    pass  # engines that have just died may still be registered: go on waiting
                except TimeoutError:
                    if not engines_run(cluster):
                        continue
                    raise ClusterError(
                        f"{n} engines are there, but not all have answered in {ANSWER_S:.0f} s: they "
                        f"compute, or wait in a collective that a rank has missed. Wait, or call "
                        f"connect({n}, restart=True) for new engines in their place."
                    ) from None
            elif not client.ids and not engines_run(cluster):
                if not revive:
                    break
                cluster.stop_engines_sync()
                cluster.start_engines_sync(n)
                revive = False
            time.sleep(POLL)
    raise ClusterError(
        f"{len(client.ids)} of {n} engines came up.{''.join(map(last_words, cluster.engines.values()))}"
    )


def end_engines(cluster: ipp.Cluster, client: ipp.Client, deadline: float) -> None:
    """End all engines, stuck ones too, and wait until the controller has forgotten them."""
    # By their nannies, which report the end at once; the controller's own heartbeat takes seconds.
    client.send_signal(signal.SIGKILL, block=False)
    while engines_run(cluster) and client.ids and time.monotonic() < deadline:
        time.sleep(POLL)
    cluster.stop_engines_sync()
    while client.ids and time.monotonic() < deadline:
        time.sleep(POLL)


def engines_run(cluster: ipp.Cluster) -> bool:
    """Tell whether a set of engines is up, or on its way up."""
    for engines in cluster.engines.values():
        process = getattr(engines, "process", None)
        if process is None:  # a launcher of another kind: what it says of itself must do
            if engines.running:
                return True
        elif process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return True
    return False


def last_words(engines: EngineLauncher) -> str:
    """Return what mpiexec wrote last, without the engines' own chatter."""
    lines = [line for line in engines.get_output().splitlines() if line and "[IPEngine" not in line]
    return "\nThe last that mpiexec wrote:\n" + "\n".join(lines[-20:]) if lines else ""


def launcher_of(cluster: ipp.Cluster) -> str:
    """Return what has started the engines: the path of an mpiexec, or the kind of launcher."""
    for engines in cluster.engines.values():
        command = getattr(engines, "mpi_cmd", None)
        if command:
            return command[-1]
    return cluster.engine_launcher_class.__name__
