"""From nothing to n ranks in a notebook: find or start a cluster, wait for its engines, check their world."""

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
from labkit.cluster.cell import INTERRUPT_S, Ranks, deaths_of, kill, pending
from labkit.cluster.engine.setup import hand_out, introduce
from labkit.cluster.magics import NONINTERACTIVE, activate
from labkit.cluster.world import ClusterError, Introduction, check_world
from labkit.watch.flight_recorder.layout import CellState
from labkit.wording import ranks_phrase

POLL = 0.02  # seconds
ANSWER_S = 5.0  # an engine that does nothing answers in milliseconds
RENEW_S = 2.0  # without all engines, before a client asks anew which there are
FORSAKEN_S = 0.5  # for an answer of engines whose notebook is gone, before a look at what they do
own: ipp.Cluster | None = None  # the cluster that this kernel has started


def connect(
    n: int, *, profile: str, restart: bool, take_over: bool, own: bool, deadline_s: float, timeout: float
) -> ipp.Client:
    """See labkit.cluster.connect."""
    if n < 1:
        raise ClusterError(f"a cluster has at least one rank; n is {n}")
    deadline = time.monotonic() + timeout
    cluster, story, new = find_or_start(n, profile, own)
    client = client_of(cluster)
    holder = ownership.file_of(cluster)
    if (who := ownership.other(holder)) is not None and not take_over:
        client.close()
        raise ClusterError(
            f"{who} holds the {n} engines of {cluster.cluster_id or 'this machine'}; two notebooks on "
            f"the same ranks would wait for each other. `connect({n}, take_over=True)` takes them over, "
            f"`connect({n}, own=True)` starts engines of this notebook's own."
        )
    last = ownership.holder(holder)
    gone = last is not None and not last.lives
    if restart and not new:
        end_engines(cluster, client, deadline)
    try:
        patience = FORSAKEN_S if gone else ANSWER_S
        client, ranks = bring_up(cluster, client, n, deadline, revive=not new, patience=patience)
    except Unanswered as late:
        if last is None or not (who or gone):
            raise
        client = late.client
        of = str(who or "a notebook that is gone")
        freed = free(cluster, client, late.result, of, last.recorder)
        if freed is None:
            end_engines(cluster, client, deadline)
            client, freed = bring_up(cluster, client, n, deadline, revive=True)
        ranks = freed
    check_world(ranks, launcher_of(cluster))
    try:
        given = client[:].apply_async(hand_out, deadline_s)
        recorder = given.get(max(ANSWER_S, deadline - time.monotonic()))[0]
    except TimeoutError:
        raise ClusterError(
            f"{n} engines are there, but {ranks_phrase(pending(given))} had no `comm` after {timeout:.0f} s. "
            f"On a machine this slow or busy, connect({n}, restart=True, timeout={2 * timeout:.0f}) waits "
            f"longer."
        ) from None
    if get_ipython() is not None:
        ownership.hold(holder, recorder)
        atexit.register(ownership.release, holder)
    hosts = ", ".join(dict.fromkeys(one.host for one in ranks))
    print(
        f"{n} rank{'s' * (n > 1)}, one MPI world, engine id = rank ({ranks[0].library} on {hosts}; {story})."
    )
    activate(Ranks(client, cluster, ranks, recorder))
    return client


class Unanswered(ClusterError):
    """Engines are there, and busy; `result` will be their answers to `client`."""

    def __init__(self, n: int, asked_s: float, client: ipp.Client, result: ipp.AsyncResult) -> None:
        super().__init__(
            f"{n} engines are there, but not all have answered in {asked_s:.0f} s: they compute, or wait in "
            f"a collective that a rank has missed. Wait, or call connect({n}, restart=True) for new engines "
            f"in their place."
        )
        self.client, self.result = client, result


def find_or_start(n: int, profile: str, only_own: bool) -> tuple[ipp.Cluster, str, bool]:
    """Return a cluster meant for n engines, where it comes from, and whether it is new."""
    global own  # noqa: PLW0603
    named = profiles.prepare(profile, n)
    found = list(discovery.running(profile))
    if own is not None and (Path(own.cluster_file), n) in found:
        return own, "this notebook's cluster", False
    for path, size in found:
        if size == n and not only_own:
            return discovery.attach(path), f"cluster found running: {path.stem}", False
    end_own()  # this notebook's own, if any, has another size, or its controller has died
    own = ipp.Cluster(n=n, cluster_id=discovery.OWN, profile=named, parent=None, log=discovery.quiet)
    own.start_cluster_sync()
    atexit.register(end_own)
    return own, "cluster started; it ends with this notebook", True


def client_of(cluster: ipp.Cluster) -> ipp.Client:
    """Return a client, when the controller is there."""
    try:
        return cluster.connect_client_sync()
    except RuntimeError:  # it has ended while it was waited for
        last = [line for line in cluster.controller.get_output().splitlines() if line][-1:]
        if cluster is own:
            end_own()
        raise ClusterError(
            f"the cluster's controller has ended{': '.join(['', *last])}. Call connect() again: it takes "
            f"other ports, unless an ipcontroller_config.py of yours sets them."
        ) from None


def end_own() -> None:
    """Stop this kernel's cluster: engines first, for a controller waits for engines that were not told."""
    global own  # noqa: PLW0603
    atexit.unregister(end_own)
    if own is not None:
        own.stop_engines_sync()
        own.stop_controller_sync()
        for kind in (
            "client",
            "engine",
        ):  # a controller that was killed leaves them, and the next one has its name
            file = Path(own.profile_dir, "security", f"ipcontroller-{own.cluster_id}-{kind}.json")
            file.unlink(missing_ok=True)
        own = None


def bring_up(
    cluster: ipp.Cluster,
    client: ipp.Client,
    n: int,
    deadline: float,
    *,
    revive: bool,
    patience: float = ANSWER_S,
) -> tuple[ipp.Client, list[Introduction]]:
    """Wait until n ranks answer, with a progress bar if that takes long; with `revive`, replace dead ones.

    Return the client that they answer, and what they say. A client is not told of engines that register in
    the moment while it connects, so one that goes on missing some is replaced.
    """
    renew = time.monotonic() + RENEW_S
    wait, asked = min(RENEW_S, patience), 0.0
    bar = tqdm.tqdm(
        total=n, desc="engines", unit="engine", delay=1, leave=False, disable=NONINTERACTIVE, file=sys.stdout
    )
    with contextlib.closing(bar):
        while time.monotonic() < deadline:
            bar.update(len(client.ids) - bar.n)
            if len(client.ids) >= n:
                try:
                    result = client[:].apply_async(introduce)
                    return client, result.get(wait)
                except (RemoteError, NoEnginesRegistered):
                    pass  # engines that have just died may still be registered: go on waiting
                except TimeoutError:
                    # Ask anew: what is sent to an engine that has registered, but not reached the queue yet,
                    # is lost. Engines that were here before may be busy; new ones are only slow.
                    asked += wait
                    if revive and asked >= patience and engines_run(cluster):
                        raise Unanswered(n, asked, client, result) from None
            elif not client.ids and not engines_run(cluster):
                if not revive:
                    break
                cluster.stop_engines_sync()
                cluster.start_engines_sync(n)
                revive = False
            elif time.monotonic() > renew:
                if revive and has_lost_a_rank(cluster):
                    end_engines(cluster, client, deadline)
                client.close()
                client = client_of(cluster)
                renew = time.monotonic() + RENEW_S
            time.sleep(POLL)
    words = "".join(map(last_words, cluster.engines.values()))
    came = len(client.ids)
    if cluster is own and not 0 < came < n:
        end_own()  # the fault may be its controller's: the next call starts another
    but = ", but not all have answered" if came >= n else ""
    raise ClusterError(f"{came} of {n} engines came up{but}.{words}")


def free(
    cluster: ipp.Cluster, client: ipp.Client, result: ipp.AsyncResult, of: str, recorder: str
) -> list[Introduction] | None:
    """Stop the cell that ranks run for another notebook; return what they then answer, if all do.

    What runs there is read from the ranks' board, which asks nothing of them: ranks that are in no cell are
    only slow to answer.
    """
    ranks = Ranks(client, cluster, [], recorder)
    busy = f"The engines are busy with a cell of {of}"
    if ranks.recorder is None or not any(
        slot.cell_state == CellState.RUNNING for slot in ranks.recorder.slots
    ):
        if result.wait(ANSWER_S):
            return result.get()
        print(f"{busy}: new ones replace them.")
        return None
    print(f"{busy}: it is stopped.", *ranks.snapshot_lines(), sep="\n")
    if ranks.interrupt(result, INTERRUPT_S):
        print("It has heeded the interrupt: the engines stay, with the variables that they have.")
        return result.get()
    stuck = ranks_phrase(pending(result)).capitalize()
    print(f"{stuck} did not heed the interrupt: new engines replace them all.")
    return None


def end_engines(cluster: ipp.Cluster, client: ipp.Client, deadline: float) -> None:
    """End all engines, stuck ones too, and wait until the controller has forgotten them."""
    kill(client)
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
        elif discovery.lives(process):
            return True
    return False


def has_lost_a_rank(cluster: ipp.Cluster) -> bool:
    """Tell whether a rank of the engines that run has died: MPI then ends the others, but not always."""
    try:
        died = deaths_of(cluster).stat().st_mtime
        return any(died > engines.process.create_time() for engines in cluster.engines.values())
    except (OSError, AttributeError, psutil.Error):
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
