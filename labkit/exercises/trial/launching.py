"""Start a job on this machine, watch its time and its output, and collect what its ranks have written."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.children import end
from labkit.exercises.exercise import Case
from labkit.exercises.trial import sandbox, transport, visible
from labkit.exercises.trial.limits import FILE_BYTES, PROCESSES, processes
from labkit.supervisor import supervised
from mpiwatch import env
from mpiwatch.program.options import Options, command_line

START_S = 60.0  # for all ranks to start; a second on an idle machine
EXTRA_S = 50.0  # beyond a deadline, for ranks that sleep or wait for a core
END_S = 1.0  # from the first rank's stack, or from the end of all, until the job is ended
HANG_S = 3.0  # a wait for a message this long is reported
OUTPUT_BYTES = 1 << 20  # a job that prints more is ended
KEPT_BYTES = 1 << 14
POLL_S = 0.02
STACK_BYTES = 1 << 18  # read of a stack, or of a report
JOB = "labkit.exercises.trial.job"
MOST_FILES = 1000  # in a job's folder
# Variables that reach a job. Others may hold an instructor's secrets; with a launcher's, a new job would try
# to join an old one.
KEPT = {
    "PATH",
    "HOME",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUSERBASE",
}


@dataclass(frozen=True)
class Task:
    """What a job runs: the function `name`, which each of the cells with these texts defines, on all cases.

    `prelude`, `wrap` and `digest` are the exercise's. A rank that has computed for `deadline_s` on one text
    ends the job. So does one that has not come to its end EXTRA_S later: it sleeps, or cores are busy.
    """

    name: str
    prelude: str
    cases: tuple[Case, ...]
    wrap: Callable[[Any, Case], Any] | None
    digest: Callable[[Any], Any] | None
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
    excess: str  # what it did too much of, if it was ended for that; empty otherwise
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
    job = folder / "job"
    (job / "work").mkdir(parents=True)
    about = {**vars(task), "cases": pickle.dumps(task.cases), "extra_s": EXTRA_S}
    about["processes"] = PROCESSES if sandbox.in_use else processes()
    (job / "task").write_bytes(pickle.dumps(about))
    report = job / "report.json"
    words = JOB, str(job)
    if task.on_ranks:
        watched = command_line(Options(words, True, HANG_S, json=str(report)))
        command = [*_mpiexec(), "-n", str(task.ranks), *watched]
    else:
        command = [sys.executable, "-m", *words]
    environment = {**clean_environment(), "HOME": str(job / "work")}
    if sandbox.in_use:
        modules = folder / "modules"
        visible.copy_modules(_modules(task), task.prelude, modules)
        environment |= {"PYTHONPATH": str(modules), "TMPDIR": "/tmp"}
        command = sandbox.command(command, job, [modules])
    status, output, is_full = _run(command, job, environment, task)
    excess = "prints" if output.count > OUTPUT_BYTES else "writes" * is_full
    trial = Trial([], [], None, status, excess, output.text(), "")
    for rank in range(task.ranks):
        try:
            trial.records.append(transport.read(job / f"rank-{rank}"))
        except transport.Unreadable as error:
            trial.records.append([])
            trial.unreadable = str(error)
        trial.stacks.append(_text(job / f"rank-{rank}.stack", STACK_BYTES))
        lines = _text(job / f"rank-{rank}.printed", 4 * transport.MAX_PRINTED).splitlines()
        trial.printed += "".join(f"rank {rank}: {line}\n" if task.on_ranks else f"{line}\n" for line in lines)
    with suppress(ValueError, AttributeError):
        trial.report = json.loads(_text(report, STACK_BYTES) or "{}").get("report")
    return _by_text(trial)


def _modules(task: Task) -> list[str]:
    """Return the modules of labkit with which a job begins: its program, and what the exercise gives it."""
    content = pickle.dumps((task.cases, task.wrap, task.digest))  # with the modules' names
    given = [name.decode() for name in set(re.findall(rb"labkit(?:\.\w+)+", content))]
    return [JOB, *given, *["mpiwatch.__main__"] * task.on_ranks]


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
    ended = [Trial([each[number] for each in parts], [], None, 0, "", "", "") for number in range(count - 1)]
    return [*ended, replace(trial, records=[each[count - 1] if len(each) == count else [] for each in parts])]


def clean_environment() -> dict[str, str]:
    """Return what a judge and a job get of this process's environment, with the settings of a rank."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("LC_")}
    if site.ENABLE_USER_SITE:
        kept["PYTHONUSERBASE"] = site.getuserbase()  # it depends on HOME, which differs in a job
    return {**env.one_machine(kept), **kept, **env.ONE_THREAD, **env.OPEN_MPI}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a new folder, and remove it with all that a student's code has left there."""
    folder = tempfile.mkdtemp(prefix="labkit-exercise-")
    try:
        yield Path(folder)
    finally:
        with suppress(RecursionError):  # folders in folders in folders
            shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):
            for words in ("chmod", "-R", "u+rwX"), ("rm", "-rf"):
                subprocess.run([*words, folder], stderr=subprocess.DEVNULL, check=False)


def _mpiexec() -> list[str]:
    mpiexec = env.mpiexec()
    return [mpiexec, "-launcher", "fork"] if env.is_mpich(mpiexec) else [mpiexec]


def _run(
    command: list[str], folder: Path, environment: dict[str, str], task: Task
) -> tuple[int | None, _Output, bool]:
    """Run the command to its end; return its status, None if it had to be ended, and its output.

    The last value tells whether it had to be ended because its folder was full.
    """
    job = subprocess.Popen(
        [*supervised("child"), *command],
        cwd=folder / "work",
        env=environment,
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
    return status, output, status is None and is_full(folder)


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
        if time.monotonic() > limit or output.count > OUTPUT_BYTES or is_full(folder):
            return None
        time.sleep(POLL_S)
    return job.returncode


def is_full(folder: Path) -> bool:
    """Tell whether a job has written more to its folder than it may, or hides what it has written."""
    size, count, left = 0, 0, [str(folder)]
    while left and size <= FILE_BYTES and count <= MOST_FILES:
        try:
            for entry in os.scandir(left.pop()):
                count += 1
                size += 512 * entry.stat(follow_symlinks=False).st_blocks
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
        except PermissionError:
            return True
        except OSError:  # it has just been removed
            pass
    return bool(left) or size > FILE_BYTES or count > MOST_FILES


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _text(path: Path, most: int) -> str:
    try:
        return transport.read_bytes(path, most).decode(errors="replace")
    except transport.Unreadable:
        return ""
