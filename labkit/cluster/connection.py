"""Connect a notebook to n ranks: take a cluster's engines, wait until they answer, check their MPI world."""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import ipyparallel as ipp
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython
from IPython.display import publish_display_data

from labkit.cluster import PROFILE, RANKS, clusters, errors, slurm
from labkit.cluster import ipyparallel_private as private
from labkit.cluster.clusters import client_of, find_or_start
from labkit.cluster.engine_setup import RankInfo, install_comm, rank_info
from labkit.cluster.errors import ClusterError
from labkit.cluster.live_view import NONINTERACTIVE
from labkit.cluster.magics import activate
from labkit.cluster.ownership import Claim, Owner
from labkit.cluster.ranks import Ranks, kill_engines, wait_until
from labkit.cluster.supervisor import cluster_files
from labkit.units import duration
from mpiwatch.report import counted, ranks_phrase

POLL_S = 0.02
ANSWER_S = 5.0  # for an idle engine to answer; it takes milliseconds
ANSWER_ORPHAN_S = 1.0  # the same for engines that run a cell of a notebook that has exited
ANNOUNCE_S = 1.5  # until a line says that engines are starting
RECONNECT_S = 2.0  # how long a client waits for missing engines before another one replaces it
NEVER_S = 1.0  # a job counts as unable to start if its reason lasts this long
NAMES_SHOWN = 6
last_claim: Claim | None = None  # of this kernel's last connect()


def connect(
    n: int = 4,
    *,
    profile: str = "mpi",
    hosts: str | None = None,
    restart: bool = False,
    take_over: bool = False,
    own: bool = False,
    deadline_s: float = 20.0,
    strict: bool = False,
    timeout: float = 120.0,
) -> ipp.Client:
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
      to, with the settings in ~/.config/allreduce-lab/slurm.ini (see docs/slurm.md); `ssh` is the machines of
      a host file (see docs/machines.md).
    - `hosts`: the path of the host file, for the profile `ssh`. By default it is in LABKIT_HOST_FILE, or is
      ~/.config/allreduce-lab/hosts.txt.
    - `restart`: end the engines that are there, even those that do not respond, and start new ones.
    - `take_over`: take the engines over even from a notebook that runs a cell on them; the cell is stopped.
    - `own`: start a cluster for this notebook alone, whatever else runs.
    - `deadline_s`: how long a rank waits in a call of `comm` before it reports a hang, in seconds.
    - `strict`: let each send wait for its receive, compare messages with their receives, and list at the end
      of a cell what it has left behind (see docs/strict.md). Strict mode lasts until the engines end.
    - `timeout`: how long to wait for the engines, in seconds.

    Raise `labkit.hosts.HostsError` if the profile is `hosts` and fewer than `n` hosts are up, and
    `labkit.cluster.errors.ClusterError` if the engines did not start, do not answer, do not form one world of
    `n` ranks, or run a cell of another notebook.
    """
    global last_claim  # noqa: PLW0603
    before = clusters.own_cluster
    try:
        n, profile, chosen = chosen_by_environment(n, "ssh" if hosts else profile)
        if n < 1:
            raise ClusterError(f"a cluster has at least one rank; n is {n}")
        attempt = Attempt(n, profile, hosts, own=own, by_force=take_over, timeout_s=timeout)
        infos, recorder, cleared = attempt.finish(restart, deadline_s, strict)
    except BaseException:
        if (cluster := clusters.own_cluster) is not None:
            job = slurm.Job(cluster).state()
            if job.is_pending or cluster is not before:  # a notebook may stay open for days
                clusters.stop_own_cluster()
            if job.is_pending:
                print(f"{job.name} has been cancelled.")
        if (shell := get_ipython()) is not None:
            errors.refuse_cells(shell, errors.NOT_CONNECTED)
        raise
    client, claim = attempt.client, attempt.claim
    claim.change(recorder=recorder)
    atexit.register(claim.release)
    if last_claim is not None and last_claim.file != claim.file:
        last_claim.release()
    last_claim = claim
    if text := take_over_text(claim.displaced, cleared, idle=not take_over):
        print(text)
    names = ", ".join(dict.fromkeys(info.host for info in infos))
    print(
        f"{counted(n, 'rank')}, one MPI world, engine id = rank ({infos[0].library} on {names}; "
        f"{attempt.origin}){chosen}."
    )
    ranks = Ranks(client, attempt.cluster, infos, recorder, claim)
    private.call_before_use(client, ranks.prepare, ranks.sent.append)
    activate(ranks, cleared=claim.is_first_use)
    return client


def chosen_by_environment(n: int, profile: str) -> tuple[int, str, str]:
    """Return the number of ranks and the profile to use, and a phrase if environment variables set them.

    The variables override the arguments, so that a notebook runs unchanged on other machines.
    """
    given = {name: os.environ[name] for name in (RANKS, PROFILE) if os.environ.get(name)}
    if RANKS in given:
        if not re.fullmatch("[0-9]+", given[RANKS]):
            raise ClusterError(f"{RANKS}={given[RANKS]} is set; expected a number of ranks, such as 4")
        n = int(given[RANKS])
    profile = given.get(PROFILE, profile)
    set_ = " and ".join(f"{name}={value}" for name, value in given.items())
    return n, profile, f", set by {set_}" if given else ""


class Attempt:
    """One call of connect(): a cluster of n ranks, its client, the claim on it, and a deadline."""

    def __init__(
        self, n: int, profile: str, hosts: str | None, *, own: bool, by_force: bool, timeout_s: float
    ) -> None:
        self.n, self.by_force, self.timeout_s = n, by_force, timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.cluster, self.origin, self.is_new = find_or_start(n, profile, own, hosts)
        self.client = client_of(self.cluster)
        self.claim = Claim(self.cluster.profile_dir, self.cluster.cluster_id)
        self.files = cluster_files(self.cluster.profile_dir, self.cluster.cluster_id)

    def finish(self, restart: bool, deadline_s: float, strict: bool) -> tuple[list[RankInfo], str, list[str]]:
        """Return what the ranks report, their flight recorder's path, and the names that were cleared."""
        try:
            if not self.claim.take(by_force=self.by_force):
                raise in_use(self.claim.other(), self.n)
            if restart and not self.is_new:
                self.end_engines()
            infos = self.answers()
            if not self.is_new and has_other_ids(infos):
                self.end_engines()
                infos = self.wait_for_ranks(ANSWER_S)
            check_world(infos, self.cluster)
            return infos, *self.install(deadline_s, strict)
        except BaseException:
            self.claim.release(self.claim.before and replace(self.claim.before, in_cell=False))
            self.client.close()
            raise

    def answers(self) -> list[RankInfo]:
        """Return what the ranks report. Replace those that run a cell of another notebook, if that may be."""
        last, other = self.claim.before, self.claim.displaced
        orphaned = last is not None and not last.alive
        in_cell = last is not None and last.is_busy  # else a busy machine may not let them run for seconds
        try:
            return self.wait_for_ranks(ANSWER_ORPHAN_S if orphaned and in_cell else ANSWER_S)
        except NoAnswer:
            if not (other or orphaned):
                raise
            if other and not self.by_force:
                raise in_use(other, self.n) from None
        print(
            f"The engines are running a cell of {other or 'a notebook that has exited'}: new engines replace "
            f"them."
        )
        self.end_engines()
        return self.wait_for_ranks(ANSWER_S)

    def wait_for_ranks(self, answer_s: float) -> list[RankInfo]:
        """Wait until n ranks answer; return what they report, by engine id.

        A client does not learn of engines that register or end while it connects, so a client that misses
        engines for RECONNECT_S is replaced. Dead engines of a cluster that was found are started again. The
        time that a SLURM job waits in the queue does not count.

        Raise NoAnswer if engines that were there before do not answer within `answer_s`, ClusterError if not
        all n engines are up by the deadline.
        """
        n, revive = self.n, not self.is_new
        queue = PendingLine(slurm.Job(self.cluster))
        reconnect = time.monotonic() + RECONNECT_S
        wait, waited = min(RECONNECT_S, answer_s), 0.0
        is_announced = NONINTERACTIVE or get_ipython() is None
        announce = time.monotonic() + ANNOUNCE_S
        while time.monotonic() < self.deadline:
            self.deadline += queue.seconds()
            if not is_announced and time.monotonic() > announce and not queue.is_pending:
                is_announced = True
                print(f"Waiting for {n} engines …", flush=True)
            if len(self.client.ids) >= n:
                try:
                    return self.client[:].apply_async(rank_info).get(wait)
                except (RemoteError, NoEnginesRegistered):
                    pass  # engines that have just died may still be registered
                except TimeoutError:
                    # Send again: a message to an engine that has registered but not yet reached the queue is
                    # lost. Engines that were here before may be busy; new ones are only slow.
                    waited += wait
                    if revive and waited >= answer_s and are_engines_running(self.cluster):
                        raise NoAnswer(
                            f"{n} engines are registered, but not all answered within {waited:.0f} s: "
                            f"they are computing, or waiting in a collective that a rank never called. Wait, "
                            f"or replace the engines with `rc = connect(n={n}, restart=True)`."
                        ) from None
            if not are_engines_running(self.cluster) and (self.cluster.engines or not self.client.ids):
                if not revive:
                    break
                self.cluster.stop_engines_sync()
                self.cluster.start_engines_sync(n)
                self.cluster.write_cluster_file()
                revive = False
                reconnect = self.renew_client()  # the old one may know engines that ended while it connected
            elif len(self.client.ids) < n and time.monotonic() > reconnect:
                # MPI usually ends the others after a death, not always. Starting engines removes the file.
                if revive and os.path.exists(self.files["exits"]):
                    self.end_engines()
                reconnect = self.renew_client()
            time.sleep(POLL_S)
        raise self.too_few(queue.job.failure())

    def renew_client(self) -> float:
        """Replace the client by a new one; return when to do so again if engines are still missing."""
        self.client.close()
        self.client = client_of(self.cluster)
        return time.monotonic() + RECONNECT_S

    def too_few(self, why: str) -> ClusterError:
        """Return the error for engines that are not up by the deadline, if SLURM does not know why."""
        if why:
            return ClusterError(why)
        registered = len(self.client.ids)
        lines = [
            line
            for engines in self.cluster.engines.values()
            for line in engines.get_output().splitlines()
            if line and "[IPEngine" not in line  # the engines' log
        ]
        output = "\n".join(["\nThe last lines that mpiexec wrote:", *lines[-20:]] if lines else [])
        if self.cluster is clusters.own_cluster and not 0 < registered < self.n:
            clusters.stop_own_cluster()  # its controller may be at fault: the next call starts another
        silent = ", but not all of them answered" if registered >= self.n else ""
        return ClusterError(
            f"{registered} of {self.n} engines came up{silent}. `labkit doctor` in a terminal finds the "
            f"usual causes.{output}"
        )

    def end_engines(self) -> None:
        """End all engines, even those that do not respond, and what started them."""
        kill_engines(self.client)
        self.cluster.stop_engines_sync()
        wait_until(lambda: not self.client.ids, min(ANSWER_S, self.deadline - time.monotonic()))

    def install(self, deadline_s: float, strict: bool) -> tuple[str, list[str]]:
        """Give the ranks their names; return the flight recorder's path, and the names that were cleared.

        The ranks keep their variables only if this kernel was the last to use them. After a restart of the
        kernel they start anew, as JupyterLab promises ("All variables will be lost"): a notebook that works
        only with the variables of a deleted cell should fail here, not at the instructor's.
        """
        n = self.n
        try:
            installed = self.client[:].apply_async(install_comm, deadline_s, self.claim.is_first_use, strict)
            reports = installed.get(max(ANSWER_S, self.deadline - time.monotonic()))
        except TimeoutError:
            raise ClusterError(
                f"{n} engines are registered, but {ranks_phrase(private.pending(installed))} had no "
                f"`comm` after {self.timeout_s:.0f} s. On a slow machine, "
                f"`rc = connect(n={n}, restart=True, timeout={2 * self.timeout_s:.0f})` waits longer."
            ) from None
        return reports[0][0], list(dict.fromkeys(name for _, names in reports for name in names))


def in_use(other: Owner | None, n: int) -> ClusterError:
    """Return the error for engines that another notebook keeps."""
    verb = "has" if get_ipython() is None else "is running a cell on"
    return ClusterError(
        f"{other or 'another notebook'} {verb} the {n} engines. Three ways on: wait until its "
        f"cell has ended and run this cell again; stop its cell and take its engines with "
        f"`rc = connect(n={n}, take_over=True)`; or start separate engines with "
        f"`rc = connect(n={n}, own=True)`."
    )


def take_over_text(other: Owner | None, cleared: Sequence[str], *, idle: bool) -> str:
    """Return a line about the notebook that had the engines, and the names that its cells had defined."""
    more = len(cleared) - NAMES_SHOWN
    names = ", ".join(cleared[:NAMES_SHOWN]) + f" and {more} more" * (more > 0)
    if other is not None:
        was_idle = ", which was idle" * idle
        deleted = f" Its variables on the ranks ({names}) were deleted." if cleared else ""
        return f"This notebook has taken the engines over from {other}{was_idle}.{deleted}"
    if cleared:
        return f"The variables of an earlier kernel ({names}) were deleted from the ranks."
    return ""


class NoAnswer(ClusterError):
    """Engines are registered but busy."""


def are_engines_running(cluster: ipp.Cluster) -> bool:
    """Return whether a set of engines is up or starting, as far as this machine knows."""
    for engines in cluster.engines.values():
        process = private.process_of(engines)
        # Without a process on this machine, trust what the launcher reports.
        if engines.running if process is None else clusters.is_running(process):
            return True
    return False


def has_other_ids(infos: Sequence[RankInfo]) -> bool:
    """Return whether one MPI world's engines have other ids than their ranks.

    The controller gives an engine another id if that of its rank still belongs to one that has just died.
    """
    ranks, everyone = [info.rank for info in infos], list(range(len(infos)))
    return ranks != everyone == sorted(ranks) and all(info.size == len(infos) for info in infos)


def check_world(infos: Sequence[RankInfo], cluster: ipp.Cluster) -> None:
    """Raise ClusterError unless the cluster's engines form one MPI world with engine id = rank.

    `infos` holds the engines' reports, by engine id.
    """
    n = len(infos)
    if n > 1 and all(info.size == 1 for info in infos):
        found = [getattr(engines, "mpi_cmd", None) for engines in cluster.engines.values()]
        launcher = next((words[-1] for words in found if words), cluster.engine_launcher_class.__name__)
        raise ClusterError(
            f"the {n} engines are {n} MPI worlds of one rank each, not one world of {n}. {launcher} started "
            f"them and does not belong to {infos[0].library}, the MPI that mpi4py uses. Stop this cluster "
            f"(`ipcluster stop`, or the cluster panel), then run the cell with `connect()` again: it starts "
            f"engines with this environment's mpiexec."
        )
    for engine, info in enumerate(infos):
        if info.size != n or info.rank != engine:
            raise ClusterError(
                f"engine {engine} is rank {info.rank} of {info.size}; expected rank {engine} of {n}. "
                f"Start all engines at once with `ipcluster start --engines=MPI -n {n}`."
            )


class PendingLine:
    """The line in a notebook that says that a job is pending, and for how long."""

    def __init__(self, job: slurm.Job) -> None:
        self.job = job
        self.display_id = uuid4().hex
        self.shown = ""
        self.began = self.last = time.monotonic()
        self.is_pending = False

    def seconds(self) -> float:
        """Return how long the job has been pending since the last call; update the line. Call it often.

        Raise ClusterError if the job can never start, or has been pending longer than the settings allow.
        """
        now = time.monotonic()
        passed, self.last = now - self.last, now
        state, waited = self.job.state(), now - self.began
        was_pending, self.is_pending = self.is_pending, state.is_pending
        if not state.is_pending:
            if was_pending and self.shown:
                self.show(f"{state}; it was pending for {duration(waited)}.")
            return 0.0
        why = ""
        if state.never_starts and waited > NEVER_S:
            why = "It can never start: ask for fewer ranks or nodes, or less time"
        elif waited > 60 * float(limit := slurm.load().pending):
            why = f"The setting `pending` allows {float(limit):g} minutes"
        if why:
            raise ClusterError(f"{state}, for {duration(waited)}. {why}.")
        if waited > 1.0:
            self.show(f"{state}; {duration(waited)} so far. The stop button cancels the job.")
        return passed

    def show(self, line: str) -> None:
        if NONINTERACTIVE or get_ipython() is None or line == self.shown:
            return
        update, self.shown = bool(self.shown), line
        publish_display_data({"text/plain": line}, transient={"display_id": self.display_id}, update=update)
