"""Ask SLURM about a job, in SLURM's own words and in a sentence; submit and cancel jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cluster.errors import ClusterError

ANSWER_S = 30.0  # for slurmctld, which may be busy
FORMAT = "%T|%r|%N|%S|%e|%l"
NOT_STARTED = {"PENDING", "CONFIGURING", "REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
ACTIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
# States that say themselves why a job ended; FAILED and COMPLETED follow from what a rank did.
CAUSES = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "has reached its time limit of {limit}",
    "DEADLINE": "has reached its deadline",
    "NODE_FAIL": "has lost a node",
    "PREEMPTED": "was preempted by another job",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "ended because a node did not boot",
    "REVOKED": "was revoked",
}
# Reasons for which a job that waits would wait forever.
NEVER = ("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "AccountNotAllowed", "QOSNotAllowed")
NODE_WORDS = ("DOWN", "NOT_RESPONDING", "FAIL", "NO_RESPOND")


@dataclass(frozen=True)
class JobState:
    """What SLURM says about a job; `state` and `reason` are its words, `nodes` a list such as n[1-4]."""

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: str = ""
    end: str = ""
    limit: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether the job waits for its nodes."""
        return self.state in NOT_STARTED

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or SLURM no longer knows it."""
        return self.state not in NOT_STARTED | ACTIVE

    @property
    def never_starts(self) -> bool:
        """Whether the job would wait forever."""
        return self.is_pending and self.reason.startswith(NEVER)

    @property
    def cause(self) -> str:
        """The sentence about an end whose cause SLURM knows; empty for any other."""
        known = CAUSES.get(self.state, "")
        return f"SLURM job {self.job} {known.format(limit=self.limit)}" if known else ""

    def __str__(self) -> str:
        if self.is_pending:
            when = f"; expected start {self.start}" if self.start not in ("", "N/A") else ""
            reason = f": {self.reason}" if self.reason not in ("", "None") else ""
            return f"SLURM job {self.job} is pending{reason}{when}"
        if not self.is_over:
            return f"SLURM job {self.job} runs on {self.nodes}"
        return self.cause or f"SLURM job {self.job} has ended ({self.state.lower() or 'unknown'})"


def parse(job: str, answer: str) -> JobState:
    """Return the state in the answer of `squeue`; a job that it does not list has ended."""
    line = next(iter(answer.splitlines()), "")
    parts = line.split("|")
    return JobState(job, *parts) if len(parts) == FORMAT.count("%") else JobState(job, "")


def ask(job: str) -> JobState:
    """Return the state of a job. Raise ClusterError if SLURM does not answer."""
    # SLURM knows an ended job for some minutes (MinJobAge), which is long enough here; sacct may be absent.
    answer = run(["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={FORMAT}"], check=False)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise ClusterError(f"`squeue` failed: {answer.stderr.strip()}")
    return parse(job, answer.stdout)


def submit(script: str) -> str:
    """Submit a batch script; return the job's id. Raise ClusterError with SLURM's words if it is refused."""
    answer = run(["sbatch", "--parsable"], script)
    return answer.stdout.strip().partition(";")[0]


def cancel(job: str, *options: str) -> None:
    """Cancel a job, or send it a signal; a job that has ended is no error."""
    run(["scancel", "--quiet", *options, job], check=False)


def lost_nodes(nodes: Sequence[str]) -> dict[str, str]:
    """Return those of the nodes that do not respond or are down, each with SLURM's word for its state."""
    lost = {}
    answer = run(["scontrol", "--oneliner", "show", "node", ",".join(nodes)], check=False).stdout
    for line in answer.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        state = words.get("State", "")
        if state.endswith("*") or any(word in state for word in NODE_WORDS):
            lost[words.get("NodeName", "")] = state
    return lost


def run(command: list[str], given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's commands. Raise ClusterError if there is none, or, with `check`, if it fails."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise ClusterError(
            f"there is no `{command[0]}` on this machine: the profile `slurm` works where SLURM's commands "
            f"do, as on a cluster's login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"SLURM did not answer `{command[0]}` within {ANSWER_S:.0f} s") from None
    if check and done.returncode:
        text = done.stderr.strip().replace(f"{command[0]}: error: ", "")
        raise ClusterError(f"SLURM refused the job: {text}")
    return done
