"""Query, submit and cancel SLURM jobs, and put a job's state into a sentence."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from signal import SIGTERM

from labkit.cluster.errors import ClusterError

ANSWER_S = 30.0  # for slurmctld, which may be busy
NOT_STARTED = {"PENDING", "CONFIGURING", "REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
ACTIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
# States that tell why a job ended; FAILED and COMPLETED only follow from what a rank did.
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
# With these reasons, a pending job would wait forever.
NEVER = (
    "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "AccountNotAllowed",
    "QOSNotAllowed",
)  # fmt: skip
NODE_WORDS = ("DOWN", "NOT_RESPONDING", "FAIL")
SLURMD_PORT = "6818"  # SLURM's default
CONNECT_S = 1.0


@dataclass(frozen=True)
class JobState:
    """What SLURM says about a job. `state` and `reason` are SLURM's words; `nodes` is a list such as n[1-4].

    `signal` is the signal that ended the batch script. `rank_ended`: a rank ended while the job ran, and that
    ended the job.
    """

    job: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: str = ""
    limit: str = ""
    signal: int = 0
    rank_ended: bool = False

    @property
    def is_pending(self) -> bool:
        """Return whether the job is waiting for its nodes."""
        return self.state in NOT_STARTED

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended, or SLURM no longer knows it."""
        return self.state not in NOT_STARTED | ACTIVE

    @property
    def is_ending(self) -> bool:
        """Return whether SLURM is ending the job's processes, or has ended them."""
        return self.state == "COMPLETING" or self.is_over

    @property
    def has_failed(self) -> bool:
        """Return whether the job's own program has failed."""
        return self.state == "FAILED" or (self.state == "COMPLETING" and self.reason == "NonZeroExitCode")

    @property
    def never_starts(self) -> bool:
        """Return whether the job is pending for a reason that will not go away."""
        return self.is_pending and self.reason.startswith(NEVER)

    @property
    def cause(self) -> str:
        """Return the sentence about the job's end if SLURM knows its cause; otherwise empty."""
        state = self.state
        if state == "COMPLETING":  # SLURM shows the final state only when all of the job's processes are gone
            state = {"TimeLimit": "TIMEOUT"}.get(self.reason, "CANCELLED" if self.signal == SIGTERM else "")
        known = "" if self.rank_ended else CAUSES.get(state, "")
        return f"SLURM job {self.job} {known.format(limit=self.limit)}" if known else ""

    def __str__(self) -> str:
        if self.is_pending:
            when = f"; expected start {self.start}" if self.start not in ("", "N/A", "Unknown") else ""
            reason = f": {self.reason}" if self.reason not in ("", "None") else ""
            return f"SLURM job {self.job} is pending{reason}{when}"
        if not self.is_over:
            return f"SLURM job {self.job} runs on {self.nodes}"
        return self.cause or f"SLURM job {self.job} has ended ({self.state.lower() or 'unknown'})"


def parse(job: str, answer: str) -> JobState:
    """Return the state in the output of `scontrol show job`; an unknown job has ended."""
    words = dict(word.partition("=")[::2] for word in answer.split())
    signal = words.get("ExitCode", "").partition(":")[2]
    return JobState(
        job,
        words.get("JobState", ""),
        words.get("Reason", ""),
        words.get("NodeList", ""),
        words.get("StartTime", ""),
        words.get("TimeLimit", ""),
        int(signal) if signal.isdigit() else 0,
    )


def ask(job: str) -> JobState:
    """Return the state of a job. Raise ClusterError if SLURM does not answer."""
    # SLURM remembers an ended job for some minutes (MinJobAge), which is enough here; sacct may be absent.
    answer = run(["scontrol", "--oneliner", "show", "job", job], check=False)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise ClusterError(f"`scontrol show job` failed: {answer.stderr.strip()}")
    return parse(job, answer.stdout)


def submit(script: str) -> str:
    """Submit a batch script; return the job's id. Raise ClusterError with SLURM's message on refusal."""
    answer = run(["sbatch", "--parsable"], script)
    return answer.stdout.strip().partition(";")[0]


def cancel(job: str, *options: str) -> None:
    """Cancel a job, or send it a signal. Do nothing if the job has ended."""
    run(["scancel", "--quiet", *options, job], check=False)


def lost_nodes(nodes: Collection[str]) -> list[str]:
    """Return the nodes of a job that SLURM calls down or that do not answer.

    SLURM itself notices a lost node only after SlurmdTimeout, five minutes by default, so this function
    connects to the port of each node's slurmd. If it reaches none, it assumes a firewall and reports no
    silent node.
    """
    answer = run(["scontrol", "--oneliner", "show", "node", ",".join(sorted(nodes))], check=False).stdout
    lost, silent = [], []
    for line in answer.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if any(word in words.get("State", "") for word in NODE_WORDS):
            lost.append(words["NodeName"])
        elif not _answers(words.get("NodeAddr", ""), words.get("Port", SLURMD_PORT)):
            silent.append(words["NodeName"])
    return lost + (silent if len(lost + silent) < len(nodes) else [])


def _answers(host: str, port: str) -> bool:
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S):
            return True
    except (OSError, ValueError):
        return False


def run(command: list[str], given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's commands. Raise ClusterError if it is missing or, with `check`, if it fails."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise ClusterError(
            f"there is no `{command[0]}` on this machine. Use the profile `slurm` where SLURM's commands are "
            f"installed, such as on a cluster's login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"SLURM did not answer `{command[0]}` within {ANSWER_S:.0f} s") from None
    if check and done.returncode:
        text = done.stderr.strip().replace(f"{command[0]}: error: ", "")
        raise ClusterError(f"SLURM refused the job: {text}")
    return done
