"""The profile `slurm`: submit a notebook's engines as one SLURM job, and query, watch and cancel the job.

    python -m labkit.cluster.places.slurm -n RANKS PROGRAM …

replaces `mpiexec` and represents the job as a process on this machine. It submits the job, ends when the job
ends, and cancels the job on SIGTERM, which its supervisor sends when the cluster's controller has ended. It
writes the job's state to the cluster's file `place`, which the notebook reads.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from platformdirs import user_config_path

from labkit.cluster.places.errors import ClusterError
from labkit.cluster.places.files import exits_in, files_of_this_cluster
from labkit.cluster.places.place import Engines, EnginesState, Place
from labkit.files import atomic_write
from labkit.text import ranks_phrase
from mpiwatch import launch

FILE = "LABKIT_SLURM"  # environment variable with the path of the file with the settings
SECTION = "slurm"
EXAMPLE = "[slurm]\npartition = main\ntime = 2:00:00"
ANSWER_S = 30.0  # for slurmctld, which may be busy
SUBMITTING = "SUBMITTING"  # the state of a job that SLURM does not know yet
NOT_STARTED = {
    SUBMITTING, "PENDING", "CONFIGURING", "REQUEUED", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD",
}  # fmt: skip
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
REFUSED = "REFUSED"  # the state in the file `place` if sbatch did not accept the job
END_S = 4.0  # how long to wait for SLURM's reason after a job's ranks are gone
FAST_S, SLOW_S = 0.5, 2.0  # between two queries: in the first FAST_FOR_S of a state, and later
FAST_FOR_S = 10.0
POLL_S = 0.25  # between two looks at the file of exits
MPI_GRACE_S = 1.0  # how long MPI has to end the other ranks after one has ended
SOFT_S = 2.0  # from SIGTERM to SIGKILL for a job's ranks; SLURM's KillWait is half a minute
CANCEL_S = 30.0  # how long a cancelled job may take to leave the queue
LAST_LINES = 20
NEVER_S = 1.0  # a job counts as unable to start if its reason lasts this long


@dataclass(frozen=True)
class JobSettings:
    """The settings in the file; SLURM chooses where a setting is empty.

    `launcher` starts the ranks inside the job: this environment's `mpiexec`, or SLURM's `srun --mpi=pmi2` or
    `srun --mpi=pmix`. `pending` is how many minutes a job may wait in the queue. `controller` is the address
    at which the nodes reach this machine. `options` are further options of sbatch.
    """

    partition: str = ""
    account: str = ""
    time: str = "1:00:00"
    nodes: str = ""
    launcher: str = "mpiexec"
    options: str = ""
    pending: str = "60"
    controller: str = ""


def load() -> JobSettings:
    """Return the settings. Raise ClusterError if the file is wrong."""
    path = Path(os.environ.get(FILE) or user_config_path("allreduce-lab") / "slurm.ini")
    try:
        return parse_settings(path.read_text(), str(path))
    except FileNotFoundError:
        return JobSettings()
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from None


def parse_settings(text: str, path: str) -> JobSettings:
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",))
    try:
        parser.read_string(text, path)
    except configparser.Error as error:
        raise ClusterError(f"{error}. Expected lines as in:\n{EXAMPLE}") from None
    known = [field.name for field in fields(JobSettings)]
    written = dict(parser[SECTION]) if parser.has_section(SECTION) else {}
    wrong = [name for name in parser.sections() if name != SECTION]
    wrong += [name for name in written if name not in known]
    if wrong:
        raise ClusterError(
            f"{path} has {wrong[0]!r}, which the profile `slurm` does not know. Expected a section "
            f"[{SECTION}] with any of {', '.join(known)}."
        )
    for name, value in written.items():
        if "\n" in value:
            raise ClusterError(f"{path} has {name} on several lines; expected one line for each setting.")
    settings = JobSettings(**written)
    if not re.fullmatch(r"\d+(\.\d+)?", settings.pending):
        raise ClusterError(f"{path} has pending = {settings.pending}; expected a number of minutes")
    return settings


def controller_address(settings: JobSettings) -> str:
    """Return the address at which this machine's controller is reachable from the nodes.

    The default is this machine's address in the network of SLURM's own controller.
    """
    if settings.controller:
        return settings.controller
    with suppress(ClusterError, OSError):  # SLURM does not answer, or its host is unknown
        shown = run_command(["scontrol", "show", "config"], check=False).stdout
        host = re.search(r"^SlurmctldHost\[0\]\s*=\s*([^\s(]+)(?:\(([^)]+)\))?", shown, re.MULTILINE)
        if host:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host[2] or host[1], 9))  # sends nothing
                return str(probe.getsockname()[0])
    return socket.gethostname()


def batch_script(settings: JobSettings, n: int, program: Sequence[str], mpiexec: str, log: str) -> str:
    """Return a batch script that starts n ranks of a program as one MPI world.

    `mpiexec`: path of this environment's mpiexec. `log`: path of the job's output file.
    """
    placement = {name: getattr(settings, name) for name in ("partition", "account", "time", "nodes")}
    options = [
        "--job-name=allreduce-lab",
        f"--ntasks={n}",
        f"--output={log}",
        "--export=ALL",
        "--no-requeue",  # the notebook starts new engines itself
        *(f"--{name}={value}" for name, value in placement.items() if value),
        *shlex.split(settings.options),
    ]
    launcher, *launcher_options = shlex.split(settings.launcher)
    if launcher == "mpiexec":
        launcher = mpiexec
    elif launcher == "srun":
        # Without this option, the other ranks wait forever for a rank that has died.
        launcher_options.insert(0, "--kill-on-bad-exit=1")
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"exec {shlex.join([launcher, *launcher_options, '-n', str(n), *program])}",
    ]
    return "\n".join(lines) + "\n"


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
    def name(self) -> str:
        return f"SLURM job {self.job}" if self.job else "The SLURM job that was being submitted"

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
    def never_starts(self) -> bool:
        """Return whether the job is pending for a reason that will not go away."""
        return self.is_pending and self.reason.startswith(NEVER)

    @property
    def cause(self) -> str:
        """Return the sentence about the job's end if SLURM knows its cause; otherwise empty."""
        state = self.state
        if state == "COMPLETING":  # SLURM shows the final state only when all of the job's processes are gone
            state = "CANCELLED" if self.signal == signal.SIGTERM else ""
            state = "TIMEOUT" if self.reason == "TimeLimit" else state
        known = "" if self.rank_ended else CAUSES.get(state, "")
        return f"{self.name} {known.format(limit=self.limit)}" if known else ""

    def __str__(self) -> str:
        if self.is_pending:
            when = f"; expected start {self.start}" if self.start not in ("", "N/A", "Unknown") else ""
            reason = f": {self.reason}" if self.reason not in ("", "None") else ""
            return f"{self.name} is pending{reason}{when}"
        if not self.is_over:
            return f"{self.name} runs on {self.nodes}"
        return self.cause or f"{self.name} has ended ({self.state.lower() or 'unknown'})"


def parse_job(job: str, answer: str) -> JobState:
    """Return the state in the output of `scontrol show job`; an unknown job has ended."""
    words = words_of(answer)
    number = words.get("ExitCode", "").partition(":")[2]
    return JobState(
        job,
        words.get("JobState", ""),
        words.get("Reason", ""),
        words.get("NodeList", ""),
        words.get("StartTime", ""),
        words.get("TimeLimit", ""),
        int(number) if number.isdigit() else 0,
    )


def words_of(answer: str) -> dict[str, str]:
    """Return what scontrol says about a job or a node on one line, by SLURM's names."""
    return dict(word.partition("=")[::2] for word in answer.split())


def ask(job: str) -> JobState:
    """Return the state of a job. Raise ClusterError if SLURM does not answer."""
    # SLURM remembers an ended job for some minutes (MinJobAge), which is enough here; sacct may be absent.
    answer = run_command(["scontrol", "--oneliner", "show", "job", job], check=False)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise ClusterError(f"`scontrol show job` failed: {answer.stderr.strip()}")
    return parse_job(job, answer.stdout)


def lost_nodes(nodes: Collection[str]) -> list[str]:
    """Return the nodes of a job that SLURM calls down or that do not answer.

    SLURM itself notices a lost node only after SlurmdTimeout, five minutes by default, so this function
    connects to the port of each node's slurmd. If it reaches none, it assumes a firewall and reports no
    silent node.
    """
    answer = run_command(
        ["scontrol", "--oneliner", "show", "node", ",".join(sorted(nodes))], check=False
    ).stdout
    lost, silent = [], []
    for words in map(words_of, answer.splitlines()):
        if any(word in words.get("State", "") for word in NODE_WORDS):
            lost.append(words["NodeName"])
            continue
        try:
            port = int(words.get("Port", SLURMD_PORT))
            socket.create_connection((words.get("NodeAddr", ""), port), timeout=CONNECT_S).close()
        except (OSError, ValueError):
            silent.append(words["NodeName"])
    return lost + (silent if len(lost + silent) < len(nodes) else [])


def run_command(
    command: list[str], input_text: str = "", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's commands. Raise ClusterError if it is missing or, with `check`, if it fails."""
    try:
        completed = subprocess.run(
            command, input=input_text, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise ClusterError(
            f"there is no `{command[0]}` on this machine. Use the profile `slurm` where SLURM's commands are "
            f"installed, such as on a cluster's login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"SLURM did not answer `{command[0]}` within {ANSWER_S:.0f} s") from None
    if check and completed.returncode:
        text = completed.stderr.strip().replace(f"{command[0]}: error: ", "")
        raise ClusterError(f"SLURM refused the job: {text}")
    return completed


class EnginesOfJob(Engines):
    """Engines that run as a SLURM job. The file `place` holds the job's last state."""

    are_on_several_machines = True

    def job(self) -> JobState:
        """Return the job's last state."""
        try:
            return JobState(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return JobState("", SUBMITTING)

    @property
    def name(self) -> str:
        return self.job().name

    def state(self) -> EnginesState:
        job = self.job()
        return EnginesState(str(job), job.is_pending, job.is_ending)

    def why_not_wait(self, waited_s: float) -> str:
        if self.job().never_starts and waited_s > NEVER_S:
            return "It can never start: ask for fewer ranks or nodes, or less time"
        limit = float(load().pending)
        return f"The setting `pending` allows {limit:g} minutes" if waited_s > 60 * limit else ""

    def why_none(self) -> str:
        job = self.job()
        if job.state == REFUSED:
            return job.reason
        return f"{job}." if job.is_over else ""

    def cause_of_end(self, hosts: Mapping[int, str]) -> str:
        deadline = time.monotonic() + END_S
        last = self.job()
        while last.job and not last.rank_ended:
            try:
                state = ask(last.job)
                if state.cause:
                    return state.cause
                lost = lost_nodes(set(hosts.values()))
            except ClusterError as error:
                return f"the engines have ended, and {error}"
            if lost:
                ranks = [rank for rank, host in hosts.items() if host in lost]
                nodes = "nodes" if len(lost) > 1 else "node"
                return (
                    f"{state.name} has lost {nodes} {', '.join(lost)} with "
                    f"{ranks_phrase(ranks)}: SLURM's daemon there does not answer"
                )
            if state.is_over or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
            last = self.job()
        return ""


class Slurm(Place):
    """The cluster that this machine belongs to."""

    engines = EnginesOfJob

    def check(self, n: int) -> None:
        load()  # a wrong setting is reported here rather than as a controller that does not start
        if not shutil.which("sbatch"):
            raise ClusterError(
                "the profile `slurm` needs SLURM's commands, and this machine has no `sbatch`. Run the "
                "notebook on the cluster's login node, or leave the profile out."
            )


PLACE = Slurm()


def main(arguments: list[str]) -> int:
    """Run the job to its end; return 0 if it ended without an error."""
    if arguments[:1] != ["-n"]:
        sys.exit(__doc__)
    stops = signal.SIGTERM, signal.SIGINT
    for signum in stops:
        signal.signal(signum, lambda signum, frame: sys.exit(128 + signum))
    if os.environ.get(launch.OVERSUBSCRIBE) == launch.OPEN_MPI[launch.OVERSUBSCRIBE]:
        # With this setting, Open MPI would put all ranks on the first node. SLURM has counted the cores.
        del os.environ[launch.OVERSUBSCRIBE]
    files = files_of_this_cluster()
    file, exits, log = Path(files["place"]), Path(files["exits"]), f"{files['place']}-%j.out"
    job, last = "", None
    try:
        script = batch_script(load(), int(arguments[1]), arguments[2:], launch.mpiexec(), log)
        # Block signals: one that arrives before sbatch answers would lose the job's id.
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        job = run_command(["sbatch", "--parsable"], script).stdout.strip().partition(";")[0]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        last = watch(job, file, exits)
        with suppress(OSError):
            lines = Path(log.replace("%j", job)).read_text(errors="replace").splitlines()
            print("\n".join(lines[-LAST_LINES:]), flush=True)
        return int(last.state != "COMPLETED")
    except ClusterError as error:
        print(error, flush=True)
        write_state(file, JobState(job, REFUSED, str(error)))
        return 1
    finally:
        for signum in stops:
            signal.signal(signum, signal.SIG_IGN)
        if job:
            if last is None:
                run_command(["scancel", "--quiet", job], check=False)
                watch(job, file, exits, CANCEL_S)
            Path(log.replace("%j", job)).unlink(missing_ok=True)


def watch(job: str, file: Path, exits: Path, seconds: float = float("inf")) -> JobState:
    """Write the job's state to a file whenever it changes, until the job ends; return the last state.

    End the job's ranks by SIGKILL soon after the first of them has ended, or SLURM has begun to end the job:
    SLURM itself takes half a minute.
    """
    last = JobState(job, SUBMITTING)
    began = since = time.monotonic()
    next_question, kill_at = 0.0, float("inf")
    while not last.is_over and time.monotonic() - began < seconds:
        now = time.monotonic()
        # When a rank ends, end the others too, whatever the launcher does. A rank that SIGTERM has ended does
        # not count: SLURM and launchers send SIGTERM to end ranks.
        is_first = not last.rank_ended and any(code != -signal.SIGTERM for _, code in exits_in(exits)[:1])
        if now >= next_question or is_first:
            state = ask(job)
            has_failed = state.state == "COMPLETING" and state.reason == "NonZeroExitCode"
            if is_first and (has_failed or state.state in ("RUNNING", "FAILED")):
                kill_at = now + MPI_GRACE_S
                state = replace(state, rank_ended=True)
            state = replace(state, rank_ended=last.rank_ended or state.rank_ended)
            if state.is_ending and not last.is_ending:
                kill_at = min(kill_at, now + SOFT_S)
            if state != last:
                write_state(file, state)
                last, since = state, now
            next_question = now + (FAST_S if now - since < FAST_FOR_S else SLOW_S)
        if now > kill_at:
            run_command(["scancel", "--quiet", "--full", "--signal=KILL", job], check=False)
            kill_at = now + SOFT_S
        time.sleep(POLL_S)
    return last


def write_state(file: Path, state: JobState) -> None:
    with atomic_write(file) as out:
        out.write(json.dumps(asdict(state)).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
