"""Connect a notebook to n ranks: get engines, wait until they answer, check their MPI world."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import ipyparallel as ipp
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython
from IPython.display import publish_display_data

from labkit import limits
from labkit.cluster import PROFILE, RANKS, clusters, no_engines
from labkit.cluster.adapter import launchers
from labkit.cluster.adapter.client import call_before_use, pending
from labkit.cluster.clusters import client_of, engines_of, is_up, leave, obtain
from labkit.cluster.engine_setup import RankInfo, install_comm, rank_info
from labkit.cluster.errors import ClusterError
from labkit.cluster.live_view import NONINTERACTIVE
from labkit.cluster.magics import activate
from labkit.cluster.places.files import cluster_files, exits_in
from labkit.cluster.places.place import Engines
from labkit.cluster.ranks import Ranks, kill_engines, wait_until
from labkit.text import counted, ranks_phrase
from labkit.units import duration

POLL_S = 0.02
ANSWER_S = 5.0  # for an idle engine to answer; it takes milliseconds
ANNOUNCE_S = 1.5  # until a line says that engines are starting
PROBE_S = 2.0  # for all engines to answer one request
RECONNECT_S = 2.0  # how long a client waits for missing engines before another one replaces it
NAMES_SHOWN = 6
# Arguments that connect() had once, and what to do without them.
GONE = {
    "own": "each notebook has engines of its own now",
    "take_over": "each notebook has engines of its own now, and takes none from another",
}


def connect(
    n: int = 4,
    *,
    profile: str = "mpi",
    hosts: str | None = None,
    restart: bool = False,
    deadline_s: float = 20.0,
    strict: bool = False,
    timeout: float = 120.0,
    **unknown: object,
) -> ipp.Client:
    """Return a client of `n` engines that form one MPI world, engine id = rank, and set up `%%px` for them.

    Use the engines that this kernel has. If it has none, or another number, use those of a running cluster of
    `n` engines that you have started from this environment (`ipcluster start --engines=MPI -n 4`,
    JupyterLab's cluster panel), unless another notebook uses it. Else start engines, which end with this
    kernel. Engines that have died are started again.

    Every engine gets `comm`, `rank`, `size` and `np`. `comm` is watched: if a rank never calls a collective,
    all ranks raise an error that says why. The ranks keep their variables from one `connect()` of a kernel to
    the next; variables of an earlier kernel are deleted.

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
    - `deadline_s`: how long a rank waits in a call of `comm` before it reports a hang, in seconds.
    - `strict`: let each send wait for its receive, compare messages with their receives, and list at the end
      of a cell what it has left behind: mpiwatch/docs/strict.md. Strict mode lasts until the engines end.
    - `timeout`: how long to wait for the engines, in seconds.

    Raise `labkit.hosts.HostsError` if the profile is `hosts` and fewer than `n` hosts are up, and
    `labkit.cluster.errors.ClusterError` if the engines did not start, do not answer, or do not form one world
    of `n` ranks.
    """
    refuse_unknown(unknown)
    n, profile, chosen = chosen_by_environment(n, "ssh" if hosts else profile)
    if n < 1:
        raise ClusterError(f"a cluster has at least one rank; n is {n}")
    before = clusters.kernels_engines
    try:
        attempt = Attempt(n, profile, hosts, timeout_s=timeout)
        infos, recorder, deleted = attempt.finish(restart, deadline_s, strict)
    except BaseException:
        give_up(before)
        raise
    if deleted:
        print(deleted_text(deleted))
    names = ", ".join(dict.fromkeys(info.host for info in infos))
    print(
        f"{counted(n, 'rank')}, one MPI world, engine id = rank ({infos[0].library} on {names}; "
        f"{attempt.obtained.origin}){chosen}."
    )
    ranks = Ranks(attempt.client, attempt.cluster, infos, recorder)
    call_before_use(attempt.client, ranks.before_use, ranks.sent.append)
    activate(ranks, cleared=not attempt.obtained.were_here)
    return attempt.client


def refuse_unknown(arguments: Mapping[str, object]) -> None:
    """Raise ClusterError if connect() got an argument that it does not have."""
    for name in arguments:
        if name in GONE:
            raise ClusterError(f"connect() has no argument `{name}`: {GONE[name]}. Leave it out.")
        raise ClusterError(f"connect() has no argument `{name}`; `help(connect)` lists those that it has.")


def give_up(before: clusters.KernelsEngines | None) -> None:
    """Leave the engines of a connect() that has failed; `before` are those that the kernel had before it."""
    held = clusters.kernels_engines
    if held is not None:
        at_place = engines_of(Path(held.cluster.cluster_file))
        name, is_pending = at_place.name, at_place.state().is_pending
        if is_pending or held is not before:  # a notebook may stay open for days
            leave()
        if is_pending and held.lock is None:
            print(f"{name} has been cancelled.")
    shell = get_ipython()
    if shell is not None:
        no_engines.say_that_connect_failed(shell)


def chosen_by_environment(n: int, profile: str) -> tuple[int, str, str]:
    """Return the number of ranks and the profile to use, and a phrase if environment variables set them.

    The variables override the arguments, so that a notebook runs unchanged on other machines.
    """
    variables = {name: os.environ[name] for name in (RANKS, PROFILE) if os.environ.get(name)}
    if RANKS in variables:
        if not re.fullmatch("[0-9]+", variables[RANKS]):
            raise ClusterError(f"{RANKS}={variables[RANKS]} is set; expected a number of ranks, such as 4")
        n = int(variables[RANKS])
    profile = variables.get(PROFILE, profile)
    set_ = " and ".join(f"{name}={value}" for name, value in variables.items())
    return n, profile, f", set by {set_}" if variables else ""


class Attempt:
    """One call of connect(): a cluster of n ranks, its client, and a deadline."""

    def __init__(self, n: int, profile: str, hosts: str | None, *, timeout_s: float) -> None:
        self.n = n
        self.timeout_s = timeout_s
        self.give_up_at = time.monotonic() + timeout_s
        self.obtained = obtain(n, profile, hosts)
        self.cluster = self.obtained.cluster
        self.client = client_of(self.cluster)
        self.files = cluster_files(self.cluster.profile_dir, self.cluster.cluster_id)

    def finish(
        self, restart: bool, hang_deadline_s: float, strict: bool
    ) -> tuple[list[RankInfo], str, list[str]]:
        """Return what the ranks report, their flight recorder's path, and the names that were deleted."""
        try:
            if restart and not self.obtained.are_started:
                self.end_engines()
            infos = self.wait_for_ranks()
            if not self.obtained.are_started and has_other_ids(infos):
                self.end_engines()
                infos = self.wait_for_ranks()
            check_world(infos, self.cluster)
            return infos, *self.install(hang_deadline_s, strict)
        except BaseException:
            self.client.close()
            raise

    def wait_for_ranks(self) -> list[RankInfo]:
        """Wait until n ranks answer; return what they report, by engine id.

        A client does not learn of engines that register or end while it connects, so a client that misses
        engines for RECONNECT_S is replaced. Dead engines of a cluster that was found are started again. The
        time that engines wait for machines, as in a queue, does not count.

        Raise ClusterError if engines that were there before do not answer within ANSWER_S, or if not all n
        engines are up by the deadline.
        """
        n, revive = self.n, not self.obtained.are_started
        pending_line = PendingLine(engines_of(Path(self.cluster.cluster_file)))
        reconnect = time.monotonic() + RECONNECT_S
        waited_s = 0.0
        is_announced = NONINTERACTIVE or get_ipython() is None
        announce = time.monotonic() + ANNOUNCE_S
        while time.monotonic() < self.give_up_at:
            self.give_up_at += pending_line.seconds()
            if not is_announced and time.monotonic() > announce and not pending_line.is_pending:
                is_announced = True
                print(f"Waiting for {n} engines …", flush=True)
            if len(self.client.ids) >= n:
                try:
                    return self.client[:].apply_async(rank_info).get(PROBE_S)
                except (RemoteError, NoEnginesRegistered):
                    pass  # engines that have just died may still be registered
                except TimeoutError:
                    # Send again: a message to an engine that has registered but not yet reached the queue is
                    # lost. Engines that were here before may be busy; new ones are only slow.
                    waited_s += PROBE_S
                    if revive and waited_s >= ANSWER_S and are_engines_running(self.cluster):
                        raise ClusterError(
                            f"{n} engines are registered, but not all answered within {waited_s:.0f} s: "
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
        raise self.too_few(pending_line.engines.why_none())

    def renew_client(self) -> float:
        """Replace the client by a new one; return when to do so again if engines are still missing."""
        self.client.close()
        self.client = client_of(self.cluster)
        return time.monotonic() + RECONNECT_S

    def too_few(self, why: str) -> ClusterError:
        """Return the error for engines that did not come up; `why`: the reason, if it is known.

        This kernel's own cluster is stopped if its controller may be at fault.
        """
        if why:
            return ClusterError(why)
        registered, ends = len(self.client.ids), exits_in(Path(self.files["exits"]))
        written = [
            line for launcher in self.cluster.engines.values() for line in launchers.output_of(launcher)
        ]
        lines = [line for line in written if not launchers.is_of_a_log(line)]
        output = "\n".join(["\nThe last lines that mpiexec wrote:", *lines[-20:]] if lines else [])
        has_own = clusters.kernels_engines is not None and clusters.kernels_engines.lock is None
        if has_own and not 0 < registered < self.n:
            leave()  # the controller may be at fault: the next call starts another
        silent = ", but not all of them answered" if registered >= self.n else ""
        cause = limits.hint(output) or "`labkit doctor` in a terminal finds the usual causes."
        if any(code == -signal.SIGBUS for _, code in ends):
            cause = f"A bus error has killed a rank. {limits.after_a_bus_error()}."
        return ClusterError(f"{registered} of {self.n} engines came up{silent}. {cause}{output}")

    def end_engines(self) -> None:
        """End all engines, even those that do not respond, and what started them."""
        kill_engines(self.client)
        self.cluster.stop_engines_sync()
        wait_until(lambda: not self.client.ids, min(ANSWER_S, self.give_up_at - time.monotonic()))

    def install(self, hang_deadline_s: float, strict: bool) -> tuple[str, list[str]]:
        """Give the ranks their names; return the flight recorder's path, and the names that were deleted.

        The ranks of a person's cluster keep their variables only while one kernel has them. After a restart
        of the kernel they start anew, as JupyterLab promises ("All variables will be lost"): a notebook that
        works only with the variables of a deleted cell should fail here, not at the instructor's.
        """
        n = self.n
        try:
            clear = not self.obtained.were_here
            installed = self.client[:].apply_async(install_comm, hang_deadline_s, clear, strict)
            reports = installed.get(max(ANSWER_S, self.give_up_at - time.monotonic()))
        except TimeoutError:
            raise ClusterError(
                f"{n} engines are registered, but {ranks_phrase(pending(installed))} had no "
                f"`comm` after {self.timeout_s:.0f} s. On a slow machine, "
                f"`rc = connect(n={n}, restart=True, timeout={2 * self.timeout_s:.0f})` waits longer."
            ) from None
        return reports[0][0], list(dict.fromkeys(name for _, names in reports for name in names))


def deleted_text(names: Sequence[str]) -> str:
    """Return a line about variables that were deleted from the ranks."""
    more = len(names) - NAMES_SHOWN
    shown = ", ".join(names[:NAMES_SHOWN])
    if more > 0:
        shown += f" and {more} more"
    return f"The variables of an earlier kernel ({shown}) were deleted from the ranks."


def are_engines_running(cluster: ipp.Cluster) -> bool:
    """Return whether a set of engines is up or starting, as far as this machine knows."""
    return any(is_up(launcher) for launcher in cluster.engines.values())


def has_other_ids(infos: Sequence[RankInfo]) -> bool:
    """Return whether one MPI world's engines have other ids than their ranks.

    The controller gives an engine another id if that of its rank still belongs to one that has just died.
    """
    ranks, everyone = [info.rank for info in infos], list(range(len(infos)))
    is_permuted = ranks != everyone and sorted(ranks) == everyone
    return is_permuted and all(info.size == len(infos) for info in infos)


def check_world(infos: Sequence[RankInfo], cluster: ipp.Cluster) -> None:
    """Raise ClusterError unless the cluster's engines form one MPI world with engine id = rank.

    `infos` holds the engines' reports, by engine id.
    """
    n = len(infos)
    for info in infos:
        if os.path.realpath(info.prefix) != os.path.realpath(sys.prefix):
            raise ClusterError(
                f"the engines belong to another environment: rank {info.rank} runs in {info.prefix}, and "
                f"this notebook in {sys.prefix}. Stop that cluster, then run the cell with `connect()` again."
            )
    if n > 1 and all(info.size == 1 for info in infos):
        launcher = launchers.starter_of_engines(cluster)
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
    """The line in a notebook that says that engines wait for machines, and for how long."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.display_id = uuid4().hex
        self.shown = ""
        self.began = self.last = time.monotonic()
        self.is_pending = False

    def seconds(self) -> float:
        """Return how long the engines have been pending since the last call; update the line. Call it often.

        Raise ClusterError if they can never start, or have been pending longer than their place allows.
        """
        now = time.monotonic()
        passed, self.last = now - self.last, now
        state, waited = self.engines.state(), now - self.began
        was_pending, self.is_pending = self.is_pending, state.is_pending
        if not state.is_pending:
            if was_pending and self.shown:
                self.show(f"{state.text}; it was pending for {duration(waited)}.")
            return 0.0
        why = self.engines.why_not_wait(waited)
        if why:
            raise ClusterError(f"{state.text}, for {duration(waited)}. {why}.")
        if waited > 1.0:
            self.show(f"{state.text}; {duration(waited)} so far. The stop button cancels the job.")
        return passed

    def show(self, line: str) -> None:
        if NONINTERACTIVE or get_ipython() is None or line == self.shown:
            return
        update, self.shown = bool(self.shown), line
        publish_display_data({"text/plain": line}, transient={"display_id": self.display_id}, update=update)
