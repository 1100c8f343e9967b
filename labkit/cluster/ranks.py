"""The ranks while a `%%px` cell runs: end a cell that hangs, stop a cell, report a rank that died."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.error import NoEnginesRegistered

from labkit import limits
from labkit.cluster import clusters
from labkit.cluster.adapter.client import BeforeUse, has_failed, pending
from labkit.cluster.adapter.launchers import process_of
from labkit.cluster.engine_setup import RankInfo, leftovers, renew_comm
from labkit.cluster.errors import CellHung, CellStopped, RankDied
from labkit.cluster.failures import Failure, failures, hang_report, leftover_lines, tracebacks
from labkit.cluster.places.files import cluster_files, exits_in
from labkit.cores import WaitForCores
from labkit.guard import Guard, note_in_log
from labkit.text import ranks_phrase
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.processes import start_time
from mpiwatch.report import Reason, Report, render
from mpiwatch.sessions import FlightRecorder, take_snapshot

ADVICE = (
    "Run the cell with `connect()` again: it starts new engines and lists the cells to run again, "
    "because the ranks' variables are gone."
)
POLL_S = 0.02
ANSWER_POLL_S = 0.1  # between two looks at the clock while ranks answer
HANG_GRACE_S = 0.3  # from the first HangError until the ranks still in the cell are interrupted
INTERRUPTS = 4  # until the engines are ended: a rank that has not begun the cell takes no notice of one
INTERRUPT_S = 1.0  # for the ranks to end a cell after each; it usually takes milliseconds
BUSY_S = 40.0  # added to a deadline at most, for the time in which a process waits for a core
LOST_S = 1.0  # how long MPI has to end the other ranks before the notebook does
RENEWAL_S = 20.0  # for idle ranks to get fresh communicators, which takes milliseconds
LEFTOVERS_S = 2.0  # for idle ranks to say what a cell has left
NOTICE_S = 2.0  # for the controller to notice that engines have ended


class Ranks:
    """The ranks behind a client, as they were when `connect()` returned."""

    # Methods that a Guard (mpiwatch/guard.py) calls. They look after a cell, while it runs and when it hangs:
    # an error in one of these keeps none of the others from its work.
    STEPS = "death", "last_report", "failures_of", "interrupt", "kill", "leftovers", "snapshot_lines"

    def __init__(
        self, client: ipp.Client, cluster: ipp.Cluster, infos: list[RankInfo], recorder: str
    ) -> None:
        self.client = client
        self.pids = {info.rank: info.pid for info in infos}
        self.processes = processes_here(infos)
        self.hosts = {info.rank: info.host for info in infos}
        files = cluster_files(cluster.profile_dir, cluster.cluster_id)
        self.exits = Path(files["exits"])
        self.reports = Path(files["reports"])
        self.last_cell = "a cell"  # or "cell [7]"
        self.cell_start = 0  # the size of `reports` when the last cell began
        self.engines = clusters.engines_of(Path(cluster.cluster_file))
        self.recorder = FlightRecorder(recorder) if recorder and os.path.exists(recorder) else None
        self.controller = process_of(cluster.controller)
        self.ended_because = ""  # set when this notebook has ended the engines
        self.sent: list[Any] = []  # the futures of messages to the engines, until they are done
        self.is_renewal_due = False
        self.epoch = self.epoch_now()  # as it was when the ranks got their communicators
        self.guard = Guard("the look at the ranks", note_in_log)
        self.before_use = BeforeUse(self.prepare)

    def epoch_now(self) -> int:
        """Return how many hangs there have been, as far as this notebook can see."""
        return self.recorder.head.epoch if self.recorder is not None else 0

    def renew_if_due(self) -> None:
        """After a cell that failed on any rank, let all ranks continue on fresh communicators.

        Wait until they have, and raise RankDied if a rank does not react. Nothing that a rank sent before
        reaches the next cell. If a rank is still busy, the communicators are renewed later.
        """
        ended = [future for future in self.sent if future.done()]
        self.sent[:] = [future for future in self.sent if not future.done()]
        if any(map(has_failed, ended)) or self.epoch_now() != self.epoch:
            self.is_renewal_due = True
        if not self.is_renewal_due or self.sent:
            return
        self.is_renewal_due, self.epoch = False, self.epoch_now()
        try:
            result = self.client[:].apply_async(renew_comm, f"{self.last_cell} failed")
            self.wait_for(result, RENEWAL_S)
        except BaseException:  # an interrupt
            self.is_renewal_due = True
            raise
        self.check_engines()
        silent = pending(result)  # before the failures, so that none is missed that comes in between
        failed = failures(result)
        if failed or silent:
            why = failed[0].message if failed else "did not respond"
            ranks = ranks_phrase([failure.rank for failure in failed] or silent)
            self.end(f"{ranks} could not get fresh communicators ({why}): the engines were ended. {ADVICE}")
            raise RankDied(self.ended_because)

    def prepare(self) -> None:
        """Raise if the controller or a rank has ended.

        After a cell that failed on any rank, let all ranks continue on fresh communicators.
        """
        self.check_engines()
        self.renew_if_due()
        self.cell_start = size(self.reports)

    def check_engines(self) -> None:
        """Raise RankDied or CellHung if the controller or a rank has ended."""
        died = self.guard.do("death", self.death)
        if died is not None:
            raise died

    def failures_of(self, result: ipp.AsyncResult) -> list[Failure]:
        """Return what the ranks that have ended a cell raised."""
        return failures(result)

    def leftovers(self) -> str:
        """Return lines about messages that no rank has received and requests that are open; else nothing.

        The ranks are asked only if the number of sends differs from that of receives, or if requests are
        open.
        """
        if self.recorder is None:
            return ""
        slots = self.recorder.slots
        if not sum(slot.balance for slot in slots) and not any(slot.open_requests for slot in slots):
            return ""
        asked = self.client[:].apply_async(leftovers)
        return leftover_lines(asked.get()) if asked.wait(LEFTOVERS_S) and not failures(asked) else ""

    def last_report(self, since: int = 0) -> Report | None:
        """Return the last hang report that a rank has appended to the cluster's file after this place in it.

        The notebook can read the file on another machine than the ranks', and after the ranks have ended.
        """
        try:
            lines = self.reports.read_bytes()[since:].splitlines(keepends=True)
        except FileNotFoundError:  # a supervisor has removed it, because the engines have ended
            return None
        reports = [Report.from_json(line) for line in lines if line.endswith(b"\n")]
        return next((report for report in reversed(reports) if report.reason is not Reason.INTERRUPTED), None)

    def death(self) -> RankDied | CellHung | None:
        """Return the error to raise if the controller or a rank has ended, once MPI has ended all ranks.

        If their job ends or a machine is lost, MPI may not end the other ranks: then end them here.
        """
        if self.ended_because:
            return RankDied(self.ended_because)
        if self.controller is not None and not clusters.is_running(self.controller):
            # No answer would ever arrive.
            return RankDied(
                f"the cluster's controller has ended, and the engines with it, as after STOP in JupyterLab's "
                f"cluster panel or `ipcluster stop`. {ADVICE}"
            )
        ranks = sorted(self.pids)
        if set(self.client.ids) == set(ranks) and not self.engines.state().is_ending:
            return None
        on_several_machines = self.engines.are_on_several_machines
        wait_until(lambda: not self.client.ids, LOST_S if on_several_machines else NOTICE_S)
        gone = [rank for rank in ranks if rank not in self.client.ids]
        if on_several_machines and self.client.ids:
            kill_engines(self.client, self.processes)
            if set(self.client.ids) == set(ranks):
                return None  # the place is still ending them: ask again
        first = next(((pid, code) for pid, code in exits_in(self.exits) if self.with_pid(pid)), None)
        report = self.last_report()
        if first and first[1] == HANG_EXIT_CODE and report is not None:
            return CellHung(f"{render(report)}\n{stuck_text(report)}")
        cause = self.last_words() or self.engines.cause_of_end(self.hosts)
        if not cause and first:
            pid, code = first
            how = f"ended with exit code {code}"
            if code < 0:
                how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
            others = ", and MPI ended the other ranks with it" if len(ranks) > 1 else ""
            cause = f"rank {' or '.join(map(str, self.with_pid(pid)))} {how}{others}"
            if code == -signal.SIGBUS:
                cause += f". {limits.after_a_bus_error()}"
        return RankDied(f"{cause or f'{ranks_phrase(gone or ranks)} ended'}. {ADVICE}")

    def with_pid(self, pid: int) -> list[int]:
        """Return the ranks with this process id. On several machines, there may be more than one."""
        return [rank for rank, own in self.pids.items() if own == pid]

    def last_words(self) -> str:
        """Return which rank has ended its process by a call of its own, and MPI the others; else nothing."""
        slots = self.recorder.slots if self.recorder is not None else ()
        words = {rank: slot.last_words.decode(errors="replace") for rank, slot in enumerate(slots)}
        rank = next((rank for rank, text in words.items() if text), None)
        if rank is None:
            return ""
        others = "; MPI ended the other ranks with it" if len(words) > 1 else ""
        return f"rank {rank} {words[rank]}{others}"

    def end_if_hung(self, result: ipp.AsyncResult) -> None:
        """End a cell in which a rank has raised HangError, if it does not end by itself. Call it repeatedly.

        Raise RankDied if the controller or a rank has ended, CellHung if the engines had to be ended.
        """
        self.check_engines()
        report = self.guard.do("last_report", self.last_report, self.cell_start)
        raised = self.guard.do("failures_of", self.failures_of, result) or []
        text = hang_report(raised) if report is None else render(report)
        if text is None or self.wait_for(result, HANG_GRACE_S):
            return
        if report is not None and not set(pending(result)).isdisjoint(stuck_in_mpi(report)):
            self.end(stuck_text(report))
        elif self.interrupt_or_end(result):
            return
        raised = self.guard.do("failures_of", self.failures_of, result) or []
        raise CellHung(f"{text}\n{self.ended_because}", tracebacks(raised))

    def stop(self, result: ipp.AsyncResult) -> CellStopped:
        """End a cell because the user stopped it; return the error that says what its ranks were doing."""
        lines = ["the cell was stopped.", *(self.guard.do("snapshot_lines", self.snapshot_lines) or [])]
        raised = tracebacks(self.guard.insist("failures_of", self.failures_of, result) or [])
        if not self.interrupt_or_end(result):
            lines.append(self.ended_because)
        return CellStopped("\n".join(lines), raised)

    def snapshot_lines(self) -> list[str]:
        """Return what the ranks are doing, in words. Never raise: stopping a cell must not fail."""
        try:
            report = self.take_snapshot()
            return render(report).splitlines() if report else []
        except Exception as error:
            return [f"There is no report of what the ranks were doing: {type(error).__name__}: {error}"]

    def take_snapshot(self, age_s: float = 0.0) -> Report | None:
        """Return what the ranks are doing, at lines that may be `age_s` old.

        Return None if they share no flight recorder with the notebook.
        """
        if self.recorder is None:
            return None
        everyone = range(self.recorder.size)
        return take_snapshot(self.recorder, Reason.STOPPED, 0.0, everyone, None, age_s=age_s)

    def interrupt_or_end(self, result: ipp.AsyncResult) -> bool:
        """Interrupt the ranks that are still in the cell. If they go on, end the engines and return False."""
        for _ in range(INTERRUPTS):
            self.guard.insist("interrupt", self.interrupt, result)
            if self.wait_for(result, INTERRUPT_S, BUSY_S / INTERRUPTS):
                return True
        stuck = ranks_phrase(pending(result))
        self.end(
            f"{stuck} did not respond to an interrupt (an unwatched MPI call, or other compiled code): "
            f"the engines were ended. {ADVICE}"
        )
        return False

    def wait_for(self, result: ipp.AsyncResult, seconds: float, busy_s: float = BUSY_S) -> bool:
        """Wait until all ranks have answered, and return whether they have in time.

        On a busy machine the time in which a rank, the controller or the notebook waits for a core is added,
        `busy_s` seconds at most.
        """
        ranks = [self.processes[rank].pid for rank in pending(result) if rank in self.processes]
        controller = [] if self.controller is None else [self.controller.pid]
        waits = WaitForCores([os.getpid(), *controller, *ranks])
        began = time.monotonic()
        while not result.wait(ANSWER_POLL_S):
            allowed_s = seconds + min(waits.longest_s(), busy_s)
            if time.monotonic() - began > allowed_s:
                return False
        return True

    def interrupt(self, result: ipp.AsyncResult) -> None:
        """Interrupt the ranks that are still in the cell."""
        send_signal(self.client, self.processes, signal.SIGINT, pending(result))

    def end(self, reason: str) -> None:
        """End all engines, and keep the reason: `death` returns it from then on."""
        self.ended_because = reason
        self.guard.insist("kill", self.kill)

    def kill(self) -> None:
        """End all engines, even those that do not respond."""
        kill_engines(self.client, self.processes)


def stuck_in_mpi(report: Report) -> list[int]:
    """Return the ranks that a report has found inside an MPI call that nothing can interrupt."""
    return [rank.rank for rank in report.ranks if rank.mpi_call]


def stuck_text(report: Report) -> str:
    """Return the sentence that says why the engines were ended after a hang."""
    return f"{ranks_phrase(stuck_in_mpi(report))} could not leave MPI: the engines were ended. {ADVICE}"


def processes_here(infos: Sequence[RankInfo]) -> dict[int, psutil.Process]:
    """Return the ranks' processes that are on this machine, and that this process sees, by rank."""
    processes = {}
    for info in infos:
        if info.started and start_time(info.pid) == info.started:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                processes[info.rank] = psutil.Process(info.pid)
    return processes


def send_signal(
    client: ipp.Client, processes: Mapping[int, psutil.Process], number: signal.Signals, ranks: Sequence[int]
) -> None:
    """Send ranks a signal; `processes`: those of this machine, by rank.

    A rank on another machine gets it from its nanny. A message to a rank of this machine would wait while
    compiled code keeps other threads of the rank from running.
    """
    for rank in ranks:
        if rank in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes[rank].send_signal(number)
    elsewhere = [rank for rank in ranks if rank not in processes]
    if elsewhere:
        with contextlib.suppress(NoEnginesRegistered):
            client.send_signal(int(number), targets=elsewhere, block=False)


def kill_engines(client: ipp.Client, processes: Mapping[int, psutil.Process] | None = None) -> None:
    """End all engines, even those that do not respond; `processes`: those of this machine, by rank.

    Wait until the controller has noticed, but not for long: a client does not learn of engines that ended
    while it connected.
    """
    with contextlib.suppress(NoEnginesRegistered):
        client.send_signal(signal.SIGKILL, block=False)
    for process in (processes or {}).values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not client.ids, NOTICE_S)


def size(file: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_S)
