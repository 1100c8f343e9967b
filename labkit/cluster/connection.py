"""Connect a notebook to n ranks: take a cluster's engines, wait until they answer, check their MPI world."""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Sequence

import ipyparallel as ipp
from IPython import get_ipython

from labkit.cluster import ipyparallel_private as private
from labkit.cluster import placeholder, starting
from labkit.cluster.cells.cell import Ranks, pending
from labkit.cluster.cells.magics import activate
from labkit.cluster.engine.setup import install_comm
from labkit.cluster.engines import ANSWER_S, NoAnswer, end_engines, launcher_of, wait_for_ranks
from labkit.cluster.errors import ClusterError
from labkit.cluster.ownership import Claim, Owner
from labkit.cluster.profiles import PROFILE, RANKS
from labkit.cluster.slurm.notebook import Job
from labkit.cluster.starting import client_of, find_or_start
from labkit.cluster.world import RankInfo, check_world
from mpiwatch.flight_recorder.layout import CellState
from mpiwatch.wording import counted, ranks_phrase

ANSWER_ORPHAN_S = 0.5  # like ANSWER_S, for engines whose notebook has exited, before their cell is inspected
NAMES_SHOWN = 6
last_claim: Claim | None = None  # of this kernel's last connect()


def connect(
    n: int,
    *,
    profile: str,
    restart: bool,
    take_over: bool,
    own: bool,
    deadline_s: float,
    strict: bool,
    timeout: float,
) -> ipp.Client:
    """Do what labkit.cluster.connect documents."""
    try:
        n, profile, chosen = chosen_by_environment(n, profile)
        if n < 1:
            raise ClusterError(f"a cluster has at least one rank; n is {n}")
        deadline = time.monotonic() + timeout
        cluster, origin, new = find_or_start(n, profile, own)
        client = client_of(cluster)
        claim = Claim(cluster.profile_dir, cluster.cluster_id)
        if not claim.take(by_force=take_over):
            client.close()
            raise in_use(claim.other(), n)
        try:
            if restart and not new:
                end_engines(cluster, client, deadline)
            client, infos = answers(cluster, client, claim, n, deadline, revive=not new, by_force=take_over)
            check_world(infos, launcher_of(cluster))
            recorder, cleared = install(client, claim, deadline_s, strict, deadline, timeout)
        except BaseException:
            claim.give_back()
            client.close()
            raise
    except BaseException:
        cancel_pending_job()
        if (shell := get_ipython()) is not None:
            placeholder.install(shell, placeholder.FAILED)
        raise
    keep(claim, recorder)
    if text := take_over_text(claim.loser, cleared, idle=not take_over):
        print(text)
    hosts = ", ".join(dict.fromkeys(info.host for info in infos))
    print(
        f"{counted(n, 'rank')}, one MPI world, engine id = rank ({infos[0].library} on {hosts}; {origin})"
        f"{chosen}."
    )
    ranks = Ranks(client, cluster, infos, recorder, claim)
    private.call_before_use(client, ranks.check, ranks.renew_if_due, ranks.note_sent)
    activate(ranks, cleared=claim.is_first_use)
    return client


def cancel_pending_job() -> None:
    """Stop this kernel's cluster if its engines are a SLURM job that is still pending."""
    cluster = starting.own_cluster
    if cluster is None or not (job := Job(cluster)).is_slurm:
        return
    state = job.state()
    if state is None or state.is_pending:
        starting.stop_own_cluster()
        if state is not None:
            print(f"SLURM job {state.job} has been cancelled.")


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


def answers(
    cluster: ipp.Cluster,
    client: ipp.Client,
    claim: Claim,
    n: int,
    deadline: float,
    *,
    revive: bool,
    by_force: bool,
) -> tuple[ipp.Client, list[RankInfo]]:
    """Return what wait_for_ranks does. Stop a cell of a notebook that has exited or loses its engines."""
    last, other = claim.before, claim.loser
    orphaned = last is not None and not last.alive
    try:
        answer_s = ANSWER_ORPHAN_S if orphaned else ANSWER_S
        return wait_for_ranks(cluster, client, n, deadline, revive=revive, answer_s=answer_s)
    except NoAnswer as busy:
        if last is None or not (other or orphaned):
            raise
        if other and not by_force:
            busy.client.close()
            raise in_use(other, n) from None
        notebook = str(other or "a notebook that has exited")
        infos = stop_cell_of(notebook, Ranks(busy.client, cluster, [], last.recorder), busy.result)
        if infos is not None:
            return busy.client, infos
        end_engines(cluster, busy.client, deadline)
        return wait_for_ranks(cluster, busy.client, n, deadline, revive=True)


def install(  # noqa: PLR0917
    client: ipp.Client, claim: Claim, deadline_s: float, strict: bool, deadline: float, timeout: float
) -> tuple[str, list[str]]:
    """Give the ranks their names; return the path of the flight recorder, and the names that were cleared.

    The ranks keep their variables only if this kernel was the last to use them. After a restart of the kernel
    they start anew, as JupyterLab promises ("All variables will be lost"): a notebook that works only with
    the variables of a deleted cell should fail here, not at the instructor's.
    """
    try:
        installed = client[:].apply_async(install_comm, deadline_s, claim.is_first_use, strict)
        reports = installed.get(max(ANSWER_S, deadline - time.monotonic()))
    except TimeoutError:
        n = len(client.ids)
        raise ClusterError(
            f"{n} engines are registered, but {ranks_phrase(pending(installed))} had no `comm` after "
            f"{timeout:.0f} s. On a slow machine, "
            f"`rc = connect(n={n}, restart=True, timeout={2 * timeout:.0f})` waits longer."
        ) from None
    return reports[0][0], list(dict.fromkeys(name for _, names in reports for name in names))


def keep(claim: Claim, recorder: str) -> None:
    """Keep the engines until this process ends, or connects to others."""
    global last_claim  # noqa: PLW0603
    claim.write(recorder)
    atexit.register(claim.release)
    if last_claim is not None and last_claim.file != claim.file:
        last_claim.release()
    last_claim = claim


def in_use(other: Owner | None, n: int) -> ClusterError:
    """Return the error for engines that another notebook keeps."""
    if get_ipython() is not None:
        verb = "is running a cell on"
        wait = "wait until its cell has ended and run this cell again; stop its cell and take its engines"
    else:
        verb = "has"
        wait = "shut its kernel down and start this program again; take its engines"
    return ClusterError(
        f"{other or 'another notebook'} {verb} the {n} engines. Three ways on: {wait} with "
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
        print("The cell ended after an interrupt: the engines stay.")
        return result.get()
    stuck = ranks_phrase(pending(result)).capitalize()
    print(f"{stuck} did not respond to an interrupt; new engines replace all.")
    return None
