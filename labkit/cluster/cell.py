"""A `%%px` cell under way: waiting for it, stopping it, and what to say when it does not end by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.error import NoEnginesRegistered

from labkit import leftovers
from labkit.cluster import discovery, ownership
from labkit.cluster.deaths import RankDied, first_death
from labkit.cluster.world import ClusterError, Introduction
from labkit.watch.flight_recorder.layout import FlightRecorder
from labkit.watch.flight_recorder.report import Activity, Reason, Report
from labkit.watch.flight_recorder.snapshot import take_snapshot
from labkit.watch.flight_recorder.text import render
from labkit.wording import ranks_phrase

ADVICE = (
    "Call `connect()` for working engines, then run the notebook's setup cells again: "
    "the ranks' variables are gone."
)
POLL_S = 0.05
LOOK_S = 0.5  # between looks whether the controller is there
# After a hang has been reported, a rank may end its cell by itself; then it is interrupted; then ended.
GRACE_S, INTERRUPT_S = 0.3, 2.0
LOCK_TIMEOUT_S = 2.0  # for the flight recorder: a rank that holds it must not keep a cell from being stopped
SLOW_S = 5.0  # on a busy machine, to write down what it was interrupted in


class Stopped(KeyboardInterrupt):
    """The cell was stopped; the message says where its ranks were."""

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines in place of a traceback
        return [f"KeyboardInterrupt: {self}"]


class Hang(RuntimeError):
    """The ranks' HangError, shown once, in the notebook."""

    def _render_traceback_(self) -> list[str]:
        return [f"HangError: {self}"]


class Ranks:
    """The engines behind a client, as `connect()` met them."""

    def __init__(
        self, client: ipp.Client, cluster: ipp.Cluster, introductions: list[Introduction], recorder: str
    ) -> None:
        self.client = client
        self.pids = {one.pid: one.rank for one in introductions}
        self.deaths = deaths_of(cluster)
        self.holder = ownership.file_of(cluster)
        self.recorder = FlightRecorder(recorder) if recorder and os.path.exists(recorder) else None
        self.controller = controller_of(cluster)
        self.over = ""  # why the engines have been ended from here
        self.looked = 0.0

    def check(self) -> None:
        """Raise if the ranks are no longer this notebook's, or gone."""
        if (who := ownership.other(self.holder)) is not None:
            raise ClusterError(
                f"{who} has taken the engines over. `connect(take_over=True)` takes them back, "
                f"`connect(own=True)` starts engines of this notebook's own."
            )
        self.check_controller()
        if (died := self.lost()) is not None:  # also while MPI is still ending the others
            raise died

    def check_controller(self) -> None:
        """Raise if the controller has ended: no message would ever come."""
        if self.controller is not None and not discovery.lives(self.controller):
            raise RankDied(f"the cluster's controller has ended, and the engines with it. {ADVICE}")

    def lost(self, patience: float = 2.0) -> RankDied | None:
        """Return the error to raise if engines have gone; wait `patience` seconds for all to be noticed."""
        if self.over:
            return RankDied(self.over)
        ranks = sorted(self.pids.values())
        deadline = time.monotonic() + patience
        if set(self.client.ids) == set(ranks):
            return None
        while self.client.ids and time.monotonic() < deadline:
            time.sleep(0.02)
        lines = self.deaths.read_text() if self.deaths.exists() else ""
        death = first_death(lines, self.pids)
        if death is None:
            gone = ", ".join(str(rank) for rank in ranks if rank not in self.client.ids)
            return RankDied(f"ranks {gone} have ended. {ADVICE}")
        others = len(ranks) > 1
        return RankDied(f"{death}{', and MPI ended the other ranks with it' * others}. {ADVICE}")

    def look_after(self, result: ipp.AsyncResult) -> None:
        """Call this again and again while a cell runs: it sees to it that it ends, if it hangs."""
        now = time.monotonic()
        if now - self.looked > LOOK_S:
            self.looked = now
            self.check_controller()
        if any(failed_by_hang(child) for child in result._children):
            end = now + GRACE_S
            while not result.wait(POLL_S) and time.monotonic() < end:
                pass
            if not result.done() and not self.interrupt(result, INTERRUPT_S):
                stuck = pending(result)
                text = next(text for text in map(failed_by_hang, result._children) if text)
                self.end(
                    f"{ranks_phrase(stuck)} did not heed an interrupt: the engines have been ended. {ADVICE}"
                )
                raise Hang(f"{text}\n{self.over}")

    def stop(self, result: ipp.AsyncResult) -> BaseException:
        """End a cell at the user's wish, and return the error that says what its ranks were at."""
        said = "".join(f"\n{line}" for line in self.snapshot_lines())
        if self.interrupt(result, INTERRUPT_S):
            return Stopped(f"the cell was stopped.{said}")
        self.end(
            f"{ranks_phrase(pending(result))} did not heed the interrupt (a call of MPI not watched, or "
            f"other compiled code): the engines have been ended. {ADVICE}"
        )
        return Stopped(f"the cell was stopped.{said}\n{self.over}")

    def snapshot_lines(self) -> list[str]:
        """Return in words what the ranks are doing; if that fails, why. A cell can be stopped in any case."""
        try:
            report = self.take_snapshot()
            return render(report).splitlines() if report else []
        except Exception as error:
            return [f"There is no report of what the ranks were doing: {type(error).__name__}: {error}"]

    def take_snapshot(self) -> Report | None:
        """Return what the ranks are doing; None if they share no flight recorder with the notebook."""
        if self.recorder is None:
            return None
        with self.recorder.locked(LOCK_TIMEOUT_S):
            return take_snapshot(self.recorder, Reason.STOPPED, 0.0, range(self.recorder.size), None)

    def interrupt(self, result: ipp.AsyncResult, patience: float) -> bool:
        """Interrupt the ranks that are still in the cell; tell whether they have ended it."""
        before = self.places()
        # Once: a second one would come while a rank writes down the first, and lose its answer.
        self.client.send_signal("SIGINT", targets=pending(result), block=False)
        end = time.monotonic() + patience
        while not result.wait(POLL_S) and time.monotonic() < end:
            pass
        if not result.done():
            now = self.places()
            stuck = [rank for rank in pending(result) if now.get(rank) == before.get(rank)]
            if not stuck:  # all ranks have moved on since the interrupt: they are ending the cell
                result.wait(SLOW_S)
        return bool(result.done())

    def places(self) -> dict[int, tuple[Activity, str]]:
        """Return what each rank is doing, and where; nothing if that is not known."""
        with contextlib.suppress(Exception):
            if (report := self.take_snapshot()) is not None:
                return {rank.rank: (rank.activity, rank.place) for rank in report.ranks}
        return {}

    def end(self, why: str) -> None:
        """End all engines, stuck ones too, and wait until the controller has noticed."""
        self.over = why
        kill(self.client)
        deadline = time.monotonic() + 2
        while self.client.ids and time.monotonic() < deadline:
            time.sleep(0.02)


def kill(client: ipp.Client) -> None:
    """End all engines that there are, stuck ones too: by their nannies, which report the end at once."""
    with contextlib.suppress(NoEnginesRegistered):
        client.send_signal(signal.SIGKILL, block=False)


def pending(result: ipp.AsyncResult) -> list[int]:
    """Return the engines that have not ended a cell."""
    return [
        target for target, child in zip(result._targets, result._children, strict=True) if not child.done()
    ]


def failed_by_hang(child: Any) -> str | None:
    """Return the report of a rank's HangError, if its cell has ended in one."""
    if child.done():
        with contextlib.suppress(Exception):  # one that has been cancelled has no result
            error = child.result()  # an error is a result, too
            if getattr(error, "ename", "") == "HangError":
                return str(error.evalue)
    return None


def deaths_of(cluster: ipp.Cluster) -> Path:
    """Return the file in which the witnesses of a cluster's ranks note how these end."""
    return Path(leftovers.cluster_files(cluster.profile_dir, cluster.cluster_id)["exits"])


def controller_of(cluster: ipp.Cluster) -> psutil.Process | None:
    """Return the controller's process, if it is on this machine."""
    process = getattr(cluster.controller, "process", None)
    pid = getattr(cluster.controller, "pid", None) or getattr(process, "pid", None)
    try:
        return psutil.Process(pid) if pid else None
    except psutil.Error:
        return None
