"""The engines' SLURM job as a notebook sees it: pending, running or ended."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
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
from mpiwatch.wording import duration, ranks_phrase

REFUSED = "REFUSED"  # the state in the file `job` if sbatch did not accept the job
END_S = 4.0  # how long to wait for SLURM's reason after a job's ranks are gone
POLL_S = 0.2
NEVER_S = 1.0  # a job counts as unable to start if its reason lasts this long


class Job:
    """The SLURM job of a cluster's engines; without a job, its properties are empty."""

    def __init__(self, cluster: ipp.Cluster) -> None:
        self.file = Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["job"])
        self.is_slurm = Path(cluster.profile_dir).name == "profile_slurm"

    def state(self) -> JobState | None:
        """Return the job's last state in the cluster's file `job`; None if there is none."""
        if not self.is_slurm:
            return None
        try:
            return JobState(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def failure(self) -> str:
        """Return why there are no engines if SLURM refused the job or the job has ended; else empty."""
        state = self.state()
        if state is None or not state.is_over:
            return ""
        return state.reason if state.state == REFUSED else f"{state}."

    @property
    def is_ending(self) -> bool:
        """Return whether SLURM has begun to end the job."""
        state = self.state()
        return state is not None and state.is_ending

    def cause_of_end(self, hosts: Mapping[int, str]) -> str:
        """Return why the ranks on these hosts have ended if SLURM knows it or a node is lost; else empty."""
        deadline = time.monotonic() + END_S
        while (last := self.state()) is not None and not last.rank_ended:
            try:
                state = queue.ask(last.job)
                if state.cause:
                    return state.cause
                lost = queue.lost_nodes(set(hosts.values()))
            except ClusterError as error:
                return f"the engines have ended, and {error}"
            if lost:
                ranks = [rank for rank, host in hosts.items() if host in lost]
                return (
                    f"SLURM job {last.job} has lost node{'s' * (len(lost) > 1)} {', '.join(lost)} with "
                    f"{ranks_phrase(ranks)}: SLURM's daemon there does not answer"
                )
            if state.is_over or time.monotonic() > deadline:
                return ""
            time.sleep(POLL_S)
        return ""


class Waiting:
    """The line in a notebook that says that a job is pending, and for how long."""

    def __init__(self, job: Job, *, silent: bool) -> None:
        self.job, self.silent = job, silent
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
        state = self.job.state()
        if state is None or not state.is_pending:
            if self.shown and self.is_pending and state is not None:
                self.show(f"{state}; it was pending for {duration(now - self.began)}.")
            self.is_pending = False
            return 0.0
        self.is_pending = True
        limit_s = 60 * float(load().pending)
        never = state.never_starts and now - self.began > NEVER_S
        if never or now - self.began > limit_s:
            why = (
                "It can never start: ask for fewer ranks or nodes, or less time"
                if never
                else f"The setting `pending` allows {limit_s / 60:g} minutes"
            )
            raise ClusterError(f"{state}, for {duration(now - self.began)}. {why}.")
        if now - self.began > 1.0:
            self.show(f"{state}; {duration(now - self.began)} so far. The stop button cancels the job.")
        return passed

    def show(self, line: str) -> None:
        """Replace the line shown."""
        if self.silent or get_ipython() is None or line == self.shown:
            return
        update, self.shown = bool(self.shown), line
        publish_display_data({"text/plain": line}, transient={"display_id": self.display_id}, update=update)
