"""What notebook 09 starts beside its ranks: programs, by the right launcher and by another, and jobs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from labkit.children import end, run_child, start_child
from labkit.nn.store import read_arrays
from mpiwatch import launch
from mpiwatch.processes import is_mpich

DEADLINE_S = 60.0
POLL_S = 0.02
OTHER_MPICH, OTHER_OPEN_MPI = "PMI", "OMPI_COMM_WORLD"  # how the names of their variables begin
OTHER_LAUNCHER = """\
#!/bin/sh
# other_mpiexec N PROGRAM …: start N copies, and number them as another MPI library's mpiexec would.
n=$1
shift
ranks=""
for rank in $(seq 0 $((n - 1))); do
    env "{variables}_SIZE=$n" "{variables}_RANK=$rank" "$@" &
    ranks="$ranks $!"
done
status=0
for rank in $ranks; do
    wait "$rank" || status=$?
done
exit $status
"""


def launcher(profile: str, ranks: int, job_id: str | None = None) -> list[str]:
    """Return the first words of a command that starts `ranks` ranks where the ranks of a notebook run.

    `job_id`: with the profile "slurm", the number of the job whose nodes they use.
    """
    if profile == "slurm":
        protocol = "pmi2" if is_mpich(launch.mpiexec()) else "pmix"
        return ["srun", f"--jobid={job_id}", "--overlap", f"--mpi={protocol}", "-n", str(ranks)]
    return [*_mpiexec(profile), "-n", str(ranks)]


def _mpiexec(profile: str) -> list[str]:
    """Return the command that is `mpiexec` where the ranks run."""
    if profile == "hosts":
        return [sys.executable, "-m", "labkit.hosts.mpi"]
    return [launch.mpiexec()]


def other_launcher(folder: Path, ranks: int) -> list[str]:
    """Write a launcher as of another MPI library to a folder; return the words that start `ranks` ranks.

    It sets variables that the library in use does not read, and runs no service that this library could ask.
    """
    variables = OTHER_OPEN_MPI if is_mpich(launch.mpiexec()) else OTHER_MPICH
    file = folder / "other_mpiexec"
    file.write_text(OTHER_LAUNCHER.replace("{variables}", variables))
    return ["sh", str(file), str(ranks)]


def run_command(command: Sequence[object], deadline_s: float = DEADLINE_S) -> tuple[int, list[str]]:
    """Run a command; return its exit code, and the lines of its output and its errors.

    Raise ChildError if it does not end within `deadline_s` seconds.
    """
    both = ["sh", "-c", 'exec "$@" 2>&1', "sh", *map(str, command)]
    environment = {**launch.settings(), **os.environ, **launch.ONE_THREAD}
    done = run_child(both, deadline_s=deadline_s, environment=environment, check=False)
    return done.returncode, done.stdout.splitlines()


def would_start(script: str) -> str:
    """Return what SLURM says about whether, and when, a job script could run. Nothing is submitted."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.sh")
        file.write_text(script)
        return "\n".join(run_command(["sbatch", "--test-only", file, Path(folder, "run")])[1])


class JobRun(NamedTuple):
    """A job that has ended: its exit code, and the lines that it wrote. As text: its epochs and exit code."""

    exit_code: int
    lines: list[str]

    def __str__(self) -> str:
        rows = []
        for line in self.lines:
            if line.startswith("[rank 0] epoch") and "loss" in line:
                text = line.partition(", accuracy")[0].removeprefix("[rank 0] ")
                rows.append("   " + text.replace(" (all ", " on rank 0, ").replace(")", " on all ranks"))
        return "\n".join([*rows, f"   exit code {self.exit_code}"])


def run_job(script: str, folder: Path, profile: str, ranks: int = 2, *, time_limit: bool = False) -> JobRun:
    """Run a job script as SLURM would on its first node, to its end or to a time limit; return what it did.

    `folder`: the folder of the run, the script's argument. `ranks`: SLURM_NTASKS. With `time_limit`, the
    script gets SIGUSR1 after epoch 1, and the whole job SIGKILL after epoch 2. The script finds the launcher
    of this place as `mpiexec`. Its output is in a file beside `folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".out")
    with tempfile.TemporaryDirectory() as commands, log.open("w") as output:
        mpiexec, file = Path(commands, "mpiexec"), Path(commands, "job.sh")
        mpiexec.write_text(f'#!/bin/sh\nexec {shlex.join(_mpiexec(profile))} "$@"\n')
        mpiexec.chmod(0o755)
        file.write_text(script)
        path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**launch.settings(), **os.environ, "SLURM_NTASKS": str(ranks), "PATH": path}
        job = start_child(["bash", str(file), str(folder)], env=environment, stdout=output, stderr=output)
        try:
            if time_limit:
                _reach_the_limit(job, log, folder / "checkpoint.npz")
            job.wait(DEADLINE_S)
        finally:
            end(job)
    return JobRun(job.returncode, log.read_text().splitlines())


def _reach_the_limit(job: subprocess.Popen[bytes], log: Path, checkpoint: Path) -> None:
    """Send the script SIGUSR1 after epoch 1; kill it and all that it has started after epoch 2."""
    _wait_until(lambda: "epoch 1" in log.read_text() or job.poll() is not None)
    if job.poll() is not None:
        return
    (script,) = (child for child in psutil.Process(job.pid).children() if child.name() == "bash")
    script.send_signal(signal.SIGUSR1)  # what --signal=B:USR1@60 asks for
    _wait_until(lambda: checkpoint.exists() or job.poll() is not None)
    _wait_until(lambda: "epoch 2: loss" in log.read_text() or job.poll() is not None)
    with suppress(psutil.NoSuchProcess):
        for process in [script, *script.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raise TimeoutError at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job did not get on within {DEADLINE_S:g} s: see its output")
        time.sleep(POLL_S)


def checkpoint_text(file: Path) -> str:
    """Return what a checkpoint holds, and how many steps to the end of epoch 2 the next start repeats."""
    arrays = read_arrays(file)
    about = json.loads(arrays.pop("about").tobytes())
    about.pop("format")  # of the file itself
    progress = about["progress"][0]  # of rank 0
    steps_per_epoch = (progress["done"] - progress["step"]) // max(1, progress["epoch"] - 1)
    repeated = max(0, 2 * steps_per_epoch - progress["done"])
    parts = sorted({name.partition("/")[0] for name in (*about, *arrays)})
    return (
        f"The checkpoint is of step {progress['done']}: the next start repeats at least {repeated} steps.\n"
        f"It holds {', '.join(parts)}."
    )


def same_weights(first: Path, second: Path) -> bool:
    """Return whether two runs have saved the same parameters, bit for bit. Arguments: the runs' folders."""
    with np.load(first / "model.npz") as ours, np.load(second / "model.npz") as theirs:
        return ours.files == theirs.files and all(
            np.array_equal(ours[key], theirs[key]) for key in ours.files
        )
