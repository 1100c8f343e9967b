"""The engines' SLURM job as a notebook sees it: waiting in the queue, running, ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import ipyparallel as ipp
from IPython import get_ipython
from IPython.display import publish_display_data

from labkit.cluster.errors import ClusterError
from labkit.cluster.slurm import queue
from labkit.cluster.slurm.queue import JobState
from labkit.cluster.slurm.settings import load
from labkit.leftovers import cluster_files
from labkit.wording import duration

REFUSED = "REFUSED"  # the state in the file `job` if sbatch did not accept the job
END_S = 4.0  # for SLURM to say how a job has ended whose ranks are gone
POLL_S = 0.2


class Job:
    """The job of a cluster's engines; for a cluster without one, everything is empty."""

    def __init__(self, cluster: ipp.Cluster) -> None:
        self.file = Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["job"])
        self.is_slurm = Path(cluster.profile_dir).name == "profile_slurm"

    def state(self) -> JobState | None:
        """Return the job's state as the process that watches the job last wrote it; None if there is none."""
        if not self.is_slurm:
            return None
        try:
            return JobState(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def id(self) -> str:
        """The job's number; empty if there is none."""
        state = self.state()
        return state.job if state is not None else ""

    def failure(self) -> str:
        """Return why there are no engines, if SLURM refused the job or it has ended."""
        state = self.state()
        if state is None or not state.is_over:
            return ""
        return state.reason if state.state == REFUSED else f"{state}."

    def cause_of_end(self, hosts: Iterable[str]) -> str:
        """Return why ranks on these hosts have ended, if SLURM knows a cause; it is asked for END_S."""
        state = self.state()
        if state is None:
            return ""
        hosts, deadline = list(hosts), time.monotonic() + END_S
        try:
            while True:
                state = queue.ask(state.job)
                if state.cause:
                    return state.cause
                if lost := queue.lost_nodes(hosts):
                    nodes = ", ".join(f"{name} ({word})" for name, word in lost.items())
                    return f"SLURM job {state.job} has lost the node {nodes}"
                if state.is_over or time.monotonic() > deadline:
                    return ""
                time.sleep(POLL_S)
        except ClusterError as error:
            return f"the engines have ended, and {error}"


class Waiting:
    """The line that says that a job is pending, and how long it has been; shown in a notebook only."""

    def __init__(self, job: Job, *, silent: bool) -> None:
        self.job, self.silent = job, silent
        self.display_id = uuid4().hex
        self.shown = ""
        self.began = self.last = time.monotonic()
        self.is_pending = False

    def seconds(self) -> float:
        """Return how long the job has been pending since the last call; update the line. Call it often.

        Raise ClusterError if the job can never start, or has been pending for as long as the settings allow.
        """
        now = time.monotonic()
        passed, self.last = now - self.last, now
        state = self.job.state()
        if state is None or not state.is_pending:
            if self.is_pending and state is not None:
                self.show(f"{state}; it was pending for {duration(now - self.began)}.")
            self.is_pending = False
            return 0.0
        self.is_pending = True
        limit_s = 60 * float(load().pending)
        if state.never_starts or now - self.began > limit_s:
            why = (
                "It can never start: ask for less"
                if state.never_starts
                else f"That is as long as `pending` in the settings allows ({limit_s / 60:g} minutes)"
            )
            raise ClusterError(
                f"{state}, after {duration(now - self.began)}. {why}. The job has been cancelled."
            )
        if now - self.began > 1.0:
            self.show(f"{state}; {duration(now - self.began)} so far. The stop button cancels the job.")
        return passed

    def show(self, line: str) -> None:
        """Show a line in place of the one before."""
        if self.silent or get_ipython() is None or line == self.shown:
            return
        update, self.shown = bool(self.shown), line
        publish_display_data({"text/plain": line}, transient={"display_id": self.display_id}, update=update)
