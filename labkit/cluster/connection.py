"""Connect a notebook to n ranks: find or start a cluster, wait for its engines, check their MPI world."""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from pathlib import Path

import ipyparallel as ipp
import psutil
import tqdm
from ipyparallel.cluster.launcher import EngineLauncher
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster import discovery, ownership, profiles
from labkit.cluster import ipyparallel_private as private
from labkit.cluster.cells.cell import Ranks, kill_engines, pending
from labkit.cluster.cells.live_view import NONINTERACTIVE
from labkit.cluster.cells.magics import activate
from labkit.cluster.engine.setup import install_comm, rank_info
from labkit.cluster.errors import ClusterError
from labkit.cluster.exits import exits_file
from labkit.cluster.world import RankInfo, check_world
from labkit.leftovers import cluster_files, remove
from labkit.watch.flight_recorder.layout import CellState
from labkit.wording import ranks_phrase

POLL_S = 0.02
ANSWER_S = 5.0  # for an idle engine to answer; it takes milliseconds
ANSWER_ORPHAN_S = 0.5  # the same, for engines whose notebook has exited, before their cell is inspected
RECONNECT_S = 2.0  # how long a client waits for missing engines before another one replaces it
own_cluster: ipp.Cluster | None = None  # the cluster that this kernel has started


def connect(
    n: int, *, profile: str, restart: bool, take_over: bool, own: bool, deadline_s: float, timeout: float
) -> ipp.Client:
    """Do what labkit.cluster.connect documents."""
    if n < 1:
        raise ClusterError(f"a cluster has at least one rank; n is {n}")
    deadline = time.monotonic() + timeout
    cluster, origin, new = find_or_start(n, profile, own)
    client = client_of(cluster)
    owner_file = ownership.owner_file(cluster)
    if (other := ownership.other_owner(owner_file)) is not None and not take_over:
        client.close()
        raise ClusterError(
            f"{other} uses the {n} engines of {cluster.cluster_id or 'this machine'}. Two notebooks on the "
            f"same ranks would wait for each other. `connect({n}, take_over=True)` takes the engines over, "
            f"`connect({n}, own=True)` starts engines for this notebook alone."
        )
    last = ownership.owner(owner_file)
    orphaned = last is not None and not last.alive
    if restart and not new:
        end_engines(cluster, client, deadline)
    try:
        answer_s = ANSWER_ORPHAN_S if orphaned else ANSWER_S
        client, infos = wait_for_ranks(cluster, client, n, deadline, revive=not new, answer_s=answer_s)
    except NoAnswer as busy:
        if last is None or not (other or orphaned):
            raise
        client = busy.client
        notebook = str(other or "a notebook that has exited")
        answer = stop_cell_of(notebook, Ranks(client, cluster, [], last.recorder), busy.result)
        if answer is None:
            end_engines(cluster, client, deadline)
            client, answer = wait_for_ranks(cluster, client, n, deadline, revive=True)
        infos = answer
    check_world(infos, launcher_of(cluster))
    try:
        installed = client[:].apply_async(install_comm, deadline_s)
        recorder = installed.get(max(ANSWER_S, deadline - time.monotonic()))[0]
    except TimeoutError:
        raise ClusterError(
            f"{n} engines are registered, but {ranks_phrase(pending(installed))} had no `comm` after "
            f"{timeout:.0f} s. On a slow machine, "
            f"connect({n}, restart=True, timeout={2 * timeout:.0f}) waits longer."
        ) from None
    if get_ipython() is not None:
        ownership.claim(owner_file, recorder)
        atexit.register(ownership.release, owner_file)
    hosts = ", ".join(dict.fromkeys(info.host for info in infos))
    print(
        f"{n} rank{'s' * (n > 1)}, one MPI world, engine id = rank ({infos[0].library} on {hosts}; {origin})."
    )
    activate(Ranks(client, cluster, infos, recorder))
    return client


class NoAnswer(ClusterError):
    """Engines are registered but busy; `result` will hold their answers to `client`."""

    def __init__(self, n: int, waited_s: float, client: ipp.Client, result: ipp.AsyncResult) -> None:
        super().__init__(
            f"{n} engines are registered, but not all answered within {waited_s:.0f} s: they are computing, "
            f"or waiting in a collective that a rank never called. Wait, or replace the engines with "
            f"connect({n}, restart=True)."
        )
        self.client, self.result = client, result


def find_or_start(n: int, profile: str, only_own: bool) -> tuple[ipp.Cluster, str, bool]:
    """Return a cluster for n engines, a phrase that says where it comes from, and whether it is new."""
    global own_cluster  # noqa: PLW0603
    ipython_profile = profiles.prepare(profile, n)
    found = list(discovery.running(profile))
    if own_cluster is not None and (Path(own_cluster.cluster_file), n) in found:
        return own_cluster, "this notebook's cluster", False
    for path, size in found:
        if size == n and not only_own:
            return discovery.attach(path), f"cluster found running: {path.stem}", False
    stop_own_cluster()  # if there is one, it has another size, or its controller has died
    own_cluster = ipp.Cluster(
        n=n, cluster_id=discovery.OWN, profile=ipython_profile, parent=None, log=discovery.quiet
    )
    own_cluster.start_cluster_sync()
    atexit.register(stop_own_cluster)
    return own_cluster, "cluster started; it ends with this notebook", True


def client_of(cluster: ipp.Cluster) -> ipp.Client:
    """Return a client once the controller is up; raise ClusterError if the controller has ended."""
    try:
        return cluster.connect_client_sync()
    except RuntimeError:  # the controller ended while ipyparallel waited for it
        last = [line for line in cluster.controller.get_output().splitlines() if line][-1:]
        if cluster is own_cluster:
            stop_own_cluster()
        raise ClusterError(
            f"the cluster's controller has ended{': '.join(['', *last])}. Call connect() again: it takes "
            f"other ports, unless your ipcontroller_config.py sets them."
        ) from None


def stop_own_cluster() -> None:
    """Stop this kernel's cluster, engines first: a controller waits for engines that nobody stopped."""
    global own_cluster  # noqa: PLW0603
    atexit.unregister(stop_own_cluster)
    if own_cluster is not None:
        own_cluster.stop_engines_sync()
        own_cluster.stop_controller_sync()
        # A controller that was killed leaves these files, and the next one has the same name.
        files = cluster_files(own_cluster.profile_dir, own_cluster.cluster_id)
        remove([files["client"], files["engine"]])
        own_cluster = None


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

    Raise NoAnswer if engines that were there before do not answer within `answer_s`, ClusterError if not all
    n engines are up by the deadline, which is a time of time.monotonic().
    """
    reconnect = time.monotonic() + RECONNECT_S
    wait, waited = min(RECONNECT_S, answer_s), 0.0
    bar = tqdm.tqdm(
        total=n, desc="engines", unit="engine", delay=1, leave=False, disable=NONINTERACTIVE, file=sys.stdout
    )
    with contextlib.closing(bar):
        while time.monotonic() < deadline:
            bar.update(len(client.ids) - bar.n)
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
                client = client_of(cluster)
                reconnect = time.monotonic() + RECONNECT_S
            time.sleep(POLL_S)
    output = "".join(map(last_output, private.engine_sets(cluster)))
    registered = len(client.ids)
    if cluster is own_cluster and not 0 < registered < n:
        stop_own_cluster()  # its controller may be at fault: the next call starts another
    silent = ", but not all of them answered" if registered >= n else ""
    raise ClusterError(f"{registered} of {n} engines came up{silent}.{output}")


def stop_cell_of(notebook: str, ranks: Ranks, result: ipp.AsyncResult) -> list[RankInfo] | None:
    """Stop the cell that ranks run for another notebook; return their answers to `result`, None if some miss.

    The flight recorder tells which ranks run a cell, without their help. If none does, they are only slow.
    """
    busy = f"The engines are running a cell of {notebook}"
    slots = ranks.recorder.slots if ranks.recorder is not None else ()
    if not any(slot.cell_state == CellState.RUNNING for slot in slots):
        if result.wait(ANSWER_S):
            return result.get()
        print(f"{busy}; new engines replace them.")
        return None
    print(f"{busy}, which is stopped now.", *ranks.snapshot_lines(), sep="\n")
    if ranks.interrupt(result):
        print("The cell ended after an interrupt: the engines stay, and keep their variables.")
        return result.get()
    stuck = ranks_phrase(pending(result)).capitalize()
    print(f"{stuck} did not respond to an interrupt; new engines replace all.")
    return None


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
