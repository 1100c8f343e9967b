"""Start ranks as a SLURM job, and represent that job as a process on this machine.

    python -m labkit.cluster.slurm.job -n RANKS PROGRAM …

replaces `mpiexec`. It submits the job, ends when the job ends, and cancels the job on SIGTERM, which its
supervisor sends when the cluster's controller has ended. It writes the job's state to the cluster's file
`job`, which the notebook reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from labkit.cluster.errors import ClusterError
from labkit.cluster.slurm import queue
from labkit.cluster.slurm.queue import JobState
from labkit.cluster.slurm.script import batch_script
from labkit.cluster.slurm.settings import load
from labkit.files import atomic_write
from labkit.leftovers import files_of_this_cluster
from mpiwatch import env

FAST_S, SLOW_S = 0.5, 2.0  # between two queries: in the first FAST_FOR_S of a state, and later
FAST_FOR_S = 10.0
EXITS_POLL_S = 0.25
MPI_GRACE_S = 1.0  # how long MPI has to end the other ranks after one has ended
SOFT_S = 2.0  # from SIGTERM to SIGKILL for a job's ranks; SLURM's KillWait is half a minute
CANCEL_S = 30.0  # how long a cancelled job may take to leave the queue
LAST_LINES = 20


def main(arguments: list[str]) -> int:
    """Run the job to its end; return 0 if it ended without an error."""
    if arguments[:1] != ["-n"]:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    if os.environ.get(env.OVERSUBSCRIBE) == env.OPEN_MPI[env.OVERSUBSCRIBE]:
        # With this setting, Open MPI would put all ranks on the first node. SLURM has counted the cores.
        del os.environ[env.OVERSUBSCRIBE]
    files = files_of_this_cluster()
    log = f"{files['job']}-%j.out"
    exits = Path(files["exits"])
    exits_before = size(exits)
    job = ""
    try:
        # Block signals: one that arrives before sbatch answers would lose the job's id.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        script = batch_script(load(), int(arguments[1]), arguments[2:], env.mpiexec(), log)
        job = queue.submit(script)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        last = watch(job, Path(files["job"]), exits, exits_before)
        print(tail(Path(log.replace("%j", job))), flush=True)
        return int(last.state != "COMPLETED")
    except ClusterError as error:
        print(error, flush=True)
        write(Path(files["job"]), JobState(job, "REFUSED", str(error)))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if job:
            end(job)
            Path(log.replace("%j", job)).unlink(missing_ok=True)


def watch(job: str, file: Path, exits: Path, exits_before: int) -> JobState:
    """Write the job's state to a file whenever it changes, until the job ends; return the last state."""
    last, since, next_question = JobState(job, "PENDING"), time.monotonic(), 0.0
    kill_at = float("inf")
    write(file, last)
    while not last.is_over:
        now = time.monotonic()
        # When a rank ends, end the others too, whatever the launcher does.
        is_first = not last.rank_ended and has_rank_ended(exits, exits_before)
        if now >= next_question or is_first:
            state = queue.ask(job)
            rank_ended = last.rank_ended or (is_first and (state.state == "RUNNING" or state.has_failed))
            state = replace(state, rank_ended=rank_ended)
            if is_first and rank_ended:
                kill_at = now + MPI_GRACE_S
            if state.is_ending and not last.is_ending:
                kill_at = min(kill_at, now + SOFT_S)
            if state != last:
                write(file, state)
                last, since = state, now
            next_question = now + (FAST_S if now - since < FAST_FOR_S else SLOW_S)
        if now > kill_at:
            queue.cancel(job, "--full", "--signal=KILL")
            kill_at = now + SOFT_S
        time.sleep(EXITS_POLL_S)
    return last


def has_rank_ended(exits: Path, before: int) -> bool:
    """Return whether a rank has ended since the file of exits had this size, and not by SIGTERM.

    SLURM and launchers send SIGTERM to end ranks.
    """
    try:
        with exits.open("rb") as file:
            file.seek(before)
            first = file.readline().split()
    except OSError:
        return False
    return len(first) > 1 and int(first[1]) != -signal.SIGTERM


def end(job: str) -> None:
    """Cancel the job, and wait until it has left the queue."""
    began = time.monotonic()
    is_killed = False
    state = queue.ask(job)
    if not (state.is_over):
        queue.cancel(job)
    while not state.is_over and time.monotonic() - began < CANCEL_S:
        if not is_killed and time.monotonic() - began > SOFT_S:
            queue.cancel(job, "--full", "--signal=KILL")
            is_killed = True
        time.sleep(EXITS_POLL_S)
        state = queue.ask(job)


def write(file: Path, state: JobState) -> None:
    """Write a state to the file that the notebook reads."""
    with atomic_write(file) as out:
        out.write(json.dumps(asdict(state)).encode())


def size(file: Path) -> int:
    """Return a file's size in bytes; 0 if there is no such file."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def tail(file: Path) -> str:
    """Return the last lines of the job's output."""
    try:
        return "\n".join(file.read_text(errors="replace").splitlines()[-LAST_LINES:])
    except OSError:
        return ""


def _stop(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
