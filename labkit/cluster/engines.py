"""A cluster's engines: wait until they answer, revive them, end them."""

from __future__ import annotations

import time

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import EngineLauncher
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster import discovery, starting
from labkit.cluster import ipyparallel_private as private
from labkit.cluster.cells.cell import kill_engines
from labkit.cluster.cells.exits import exits_file
from labkit.cluster.cells.live_view import NONINTERACTIVE
from labkit.cluster.engine.setup import rank_info
from labkit.cluster.errors import ClusterError
from labkit.cluster.slurm.notebook import Job, Waiting
from labkit.cluster.world import RankInfo

POLL_S = 0.02
ANSWER_S = 5.0  # for an idle engine to answer; it takes milliseconds
ANNOUNCE_S = 1.5  # until a line says that engines are starting
RECONNECT_S = 2.0  # how long a client waits for missing engines before another one replaces it


class NoAnswer(ClusterError):
    """Engines are registered but busy; `result` will hold their answers to `client`."""

    def __init__(self, n: int, waited_s: float, client: ipp.Client, result: ipp.AsyncResult) -> None:
        super().__init__(
            f"{n} engines are registered, but not all answered within {waited_s:.0f} s: they are computing, "
            f"or waiting in a collective that a rank never called. Wait, or replace the engines with "
            f"`rc = connect(n={n}, restart=True)`."
        )
        self.client, self.result = client, result


def wait_for_ranks(
    cluster: ipp.Cluster,
    client: ipp.Client,
    n: int,
    deadline: float,
    *,
    revive: bool,
    answer_s: float = ANSWER_S,
) -> tuple[ipp.Client, list[RankInfo]]:
    """Wait until n ranks answer; return a client of theirs and what they report, by engine id.

    The client may be a new one: a client does not learn of engines that register while it connects, so a
    client that misses engines for RECONNECT_S is replaced. With `revive`, dead engines are started again.
    The time that a SLURM job waits in the queue does not count.

    Raise NoAnswer if engines that were there before do not answer within `answer_s`, ClusterError if not all
    n engines are up by the deadline, which is a time of time.monotonic().
    """
    queue = Waiting(Job(cluster), silent=NONINTERACTIVE)
    reconnect = time.monotonic() + RECONNECT_S
    wait, waited = min(RECONNECT_S, answer_s), 0.0
    is_announced = NONINTERACTIVE or get_ipython() is None
    announce = time.monotonic() + ANNOUNCE_S
    while time.monotonic() < deadline:
        deadline += queue.seconds()
        if not is_announced and time.monotonic() > announce and not queue.is_pending:
            is_announced = True
            print(f"Waiting for {n} engines …", flush=True)
        if len(client.ids) >= n:
            try:
                result = client[:].apply_async(rank_info)
                return client, result.get(wait)
            except (RemoteError, NoEnginesRegistered):
                pass  # engines that have just died may still be registered
            except TimeoutError:
                # Send again: a message to an engine that has registered but not yet reached the queue is
                # lost. Engines that were here before may be busy; new ones are only slow.
                waited += wait
                if revive and waited >= answer_s and are_engines_running(cluster):
                    raise NoAnswer(n, waited, client, result) from None
        elif not client.ids and not are_engines_running(cluster):
            if not revive:
                break
            cluster.stop_engines_sync()
            cluster.start_engines_sync(n)
            revive = False
        elif time.monotonic() > reconnect:
            if revive and has_lost_a_rank(cluster):
                end_engines(cluster, client, deadline)
            client.close()
            client = starting.client_of(cluster)
            reconnect = time.monotonic() + RECONNECT_S
        time.sleep(POLL_S)
    if why := queue.job.failure():
        raise ClusterError(why)
    output = "".join(map(last_output, private.engine_sets(cluster)))
    registered = len(client.ids)
    if cluster is starting.own_cluster and not 0 < registered < n:
        starting.stop_own_cluster()  # its controller may be at fault: the next call starts another
    silent = ", but not all of them answered" if registered >= n else ""
    raise ClusterError(
        f"{registered} of {n} engines came up{silent}. `labkit doctor` in a terminal finds the usual causes."
        f"{output}"
    )


def end_engines(cluster: ipp.Cluster, client: ipp.Client, deadline: float) -> None:
    """End all engines, even those that do not respond, and wait until the controller has noticed."""
    kill_engines(client)
    while are_engines_running(cluster) and client.ids and time.monotonic() < deadline:
        time.sleep(POLL_S)
    cluster.stop_engines_sync()
    while client.ids and time.monotonic() < deadline:
        time.sleep(POLL_S)


def are_engines_running(cluster: ipp.Cluster) -> bool:
    """Return whether a set of engines is up or starting."""
    for engines in private.engine_sets(cluster):
        process = private.process_of(engines)
        # Without a process on this machine, trust what the launcher reports.
        if engines.running if process is None else discovery.is_running(process):
            return True
    return False


def has_lost_a_rank(cluster: ipp.Cluster) -> bool:
    """Return whether a rank of the running engines has died. MPI then usually ends the others, not always."""
    processes = [private.process_of(engines) for engines in private.engine_sets(cluster)]
    try:
        died = exits_file(cluster).stat().st_mtime
        return any(process is not None and died > process.create_time() for process in processes)
    except (OSError, psutil.Error):
        return False


def last_output(engines: EngineLauncher) -> str:
    """Return the last lines that mpiexec wrote, without the engines' log."""
    lines = [line for line in engines.get_output().splitlines() if line and "[IPEngine" not in line]
    return "\nThe last lines that mpiexec wrote:\n" + "\n".join(lines[-20:]) if lines else ""


def launcher_of(cluster: ipp.Cluster) -> str:
    """Return what started the engines: the path of an mpiexec, or the name of the launcher's class."""
    found = [private.mpiexec_of(engines) for engines in private.engine_sets(cluster)]
    return next(filter(None, found), cluster.engine_launcher_class.__name__)
