"""Start a job on this machine, watch its time and its output, and collect what its ranks have written."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit import env
from labkit.children import end
from labkit.exercises.trial import transport
from labkit.supervisor import supervised
from labkit.watch.program.options import Options, command_line

START_S = 60.0  # for all ranks to start; a second on an idle machine
EXTRA_S = 50.0  # beyond a deadline, for ranks that sleep or wait for a core
END_S = 1.0  # from the first rank's stack, or from the end of all, until the job is ended
HANG_S = 3.0  # a wait for a message this long is reported
OUTPUT_BYTES = 1 << 20  # a job that prints more is ended
KEPT_BYTES = 1 << 14
POLL_S = 0.02
# Variables of a launcher or of an MPI process, with which a new job would try to join the old one, and the
# networks that ranks on hosts use.
LAUNCHERS = (
    "PMI",
    "FI_",
    "UCX_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "MPIEXEC_",
    "OMPI_",
    "PRTE_",
    "PRRTE_",
    "OPAL_",
    "SLURM",
)


@dataclass(frozen=True)
class Task:
    """What a job runs: the function `name`, which each of the cells with these texts defines, on all cases.

    `module` is the catalogue's module with the exercise. A rank that has computed for `deadline_s` on one
    text ends the job. So does one that has not come to its end EXTRA_S later: it sleeps, or cores are busy.
    """

    module: str
    name: str
    texts: tuple[str, ...]
    ranks: int
    on_ranks: bool
    deadline_s: float


@dataclass
class Trial:
    """What a job did with one text. `records` holds each rank's records in order."""

    records: list[list[dict[str, Any]]]
    stacks: list[str]  # of each rank at the end of its time; empty otherwise
    report: dict[str, Any] | None  # of a hang, or of a rank that died
    status: int | None  # None if the job was ended
    was_flooding: bool
    output: str  # all of the job's, for errors of the check
    printed: str  # what the student's code has printed
    unreadable: str = ""  # why the records cannot be used

    @property
    def is_complete(self) -> bool:
        """Return whether each rank has come to the end."""
        return all(records and records[-1].get("end") for records in self.records)


@dataclass
class _Output:
    """The beginning of what a job prints, read by a thread."""

    stream: Any
    kept: bytes = b""
    count: int = 0
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def text(self) -> str:
        """Return what was kept."""
        return self.kept.decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := self.stream.read1(1 << 16):
                self.count += len(chunk)
                if len(self.kept) < KEPT_BYTES:
                    self.kept += chunk[: KEPT_BYTES - len(self.kept)]
                if self.count > OUTPUT_BYTES:
                    time.sleep(POLL_S)  # the job is about to be ended


def run_job(folder: Path, task: Task) -> list[Trial]:
    """Run students' cells and their function in a job of its own. The folder must be empty.

    Return one trial for each text. A text that ends the job is the last one with a trial.

    Raise OSError if the job cannot be started.
    """
    key = secrets.token_bytes(32)
    path = folder / "task.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({**asdict(task), "extra_s": EXTRA_S, "key": key.hex()}))
    report = folder / "report.json"
    words = "labkit.exercises.trial.job", str(folder)
    if task.on_ranks:
        watched = command_line(Options(words, True, HANG_S, json=str(report)))
        command = [*_mpiexec(), "-n", str(task.ranks), *watched]
    else:
        command = [sys.executable, "-m", *words]
    status, output = _run(command, folder, task)
    trial = Trial([], [], None, status, output.count > OUTPUT_BYTES, output.text(), "")
    for rank in range(task.ranks):
        try:
            trial.records.append(transport.read(folder / f"rank-{rank}", key))
        except (transport.Unreadable, OSError) as error:
            trial.records.append([])
            trial.unreadable = str(error)
        trial.stacks.append(_text(folder / f"rank-{rank}.stack"))
        lines = _text(folder / f"rank-{rank}.printed").splitlines()
        trial.printed += "".join(f"rank {rank}: {line}\n" if task.on_ranks else f"{line}\n" for line in lines)
    with suppress(ValueError, AttributeError):
        trial.report = json.loads(_text(report) or "{}").get("report")
    return _by_text(trial)


def _by_text(trial: Trial) -> list[Trial]:
    """Return the trial of each text. How the job has ended belongs to the last."""
    parts: list[list[list[dict[str, Any]]]] = []
    for records in trial.records:
        mine: list[list[dict[str, Any]]] = [[]]
        for record in records:
            if "cell" in record and mine[-1]:
                mine.append([])
            mine[-1].append(record)
        parts.append(mine)
    count = max(map(len, parts))
    ended = [
        Trial([each[number] for each in parts], [], None, 0, False, "", "") for number in range(count - 1)
    ]
    return [*ended, replace(trial, records=[each[count - 1] if len(each) == count else [] for each in parts])]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what an MPI launcher has set, for a job of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**env.one_machine(kept), **kept, **env.ONE_THREAD, **env.OPEN_MPI}


def _mpiexec() -> list[str]:
    mpiexec = env.mpiexec()
    return [mpiexec, "-launcher", "fork"] if env.is_mpich(mpiexec) else [mpiexec]


def _run(command: list[str], folder: Path, task: Task) -> tuple[int | None, _Output]:
    """Run the command to its end; return its status, None if it had to be ended, and its output."""
    work = folder / "work"
    work.mkdir()
    job = subprocess.Popen(
        [*supervised("child"), *command],
        cwd=work,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = _Output(job.stdout)
    try:
        status = _wait(job, output, folder, task)
    finally:
        end(job)
        output.thread.join(1)
    return status, output


def _wait(job: subprocess.Popen[bytes], output: _Output, folder: Path, task: Task) -> int | None:
    """Wait for the job's end, but not longer than it may take; return its status, or None."""
    limit = time.monotonic() + START_S + task.deadline_s + EXTRA_S
    stacks = [folder / f"rank-{rank}.stack" for rank in range(task.ranks)]
    done = [folder / f"rank-{rank}.done" for rank in range(task.ranks)]
    is_ending = False
    while job.poll() is None:
        if not is_ending and (any(map(_size, stacks)) or all(path.exists() for path in done)):
            is_ending = True
            limit = time.monotonic() + END_S
        if time.monotonic() > limit or output.count > OUTPUT_BYTES:
            return None
        time.sleep(POLL_S)
    return job.returncode


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[: 1 << 18]
    except OSError:
        return ""
