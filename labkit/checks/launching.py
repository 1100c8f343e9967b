"""Start a job on this machine, limit its time and its output, and collect what its ranks have written."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import forked_process, forking
from labkit.checks import cgroup, job_modules, sandbox, transport, usage
from labkit.checks.exercise import Case, Exercise
from labkit.checks.limits import FILE_BYTES, FOLDER_FILES, PROCESSES, RECORD_BYTES, processes
from labkit.children import end
from labkit.guard import Guard
from mpiwatch import launch
from mpiwatch.launch import Options, command_line
from mpiwatch.processes import LINUX, is_mpich

START_S = 60.0  # for all ranks to start; a second on an idle machine
EXTRA_S = 20.0  # beyond a deadline, for ranks that sleep or wait for a core
END_S = 1.0  # from the last request until the job is ended
STACKS_S = EXTRA_S  # from the first rank's stack until the job is ended, for those that wait for a core
WRITTEN_S = 0.3  # from the last rank's
HANG_S = 2.0  # a wait for a message this long is reported
OUTPUT_BYTES = 1 << 20  # a job that prints more is ended
LEAST_POLL_S, POLL_S = 0.001, 0.02  # a mistake without ranks runs for a millisecond, a job for seconds
STACK_BYTES = 1 << 18  # read of a stack, or of a report
TOO_MUCH = f"returns too much: more than {RECORD_BYTES >> 20} MB on one rank"
WATCH_S = 0.1  # between two looks at what all processes of a job use
JOB, RANKS, FORKED = job_modules.JOB, job_modules.RANKS, "labkit.checks.forked"
MOST_FILES = 1000  # in a job's folder
MODULES = "modules"  # the folder of copies of modules for jobs in a sandbox
# Variables that reach a job. Others may hold an instructor's secrets; with a launcher's, a new job would try
# to join an old one.
KEPT = {
    *("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONUSERBASE"),
}


@dataclass
class Run:
    """What a job did with one text. `records` holds each rank's records in order."""

    records: list[list[dict[str, Any]]] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)  # of each rank at the end of its time; empty otherwise
    report: dict[str, Any] | None = None  # of a hang, or of a rank that died
    is_complete: bool = False  # whether each rank has come to the end
    status: int | None = None  # None if the job was ended, or goes on
    excess: str = ""  # which limit the job exceeded, if it was ended for that; it goes on after "it"
    output: str = ""  # all of the job's, for errors of the check
    printed: dict[int, str] = field(default_factory=dict)  # by the student's code, in each case; -1: before
    unreadable: str = ""  # why the records cannot be used


class Job:
    """A job on this machine, which runs students' cells and their function on cases; a context manager.

    A rank that has computed for `exercise.deadline_s` on a cell ends the job. So does one that has not come
    to its end EXTRA_S later: it sleeps, or cores are busy. `forks` is the address of the process that forks
    its supervisor; without one, the supervisor imports everything itself. A job that runs no code of students
    (`is_trusted`) needs no sandbox. `modules_folder` is where jobs in a sandbox share copies of modules;
    without it, this job has its own. Raise OSError if the job cannot be started.
    """

    # What the wait for a request does: an error in one of these ends neither the wait nor the check.
    STEPS = "has_all", "read_output", "excess", "has_stacks"

    def __init__(
        self,
        folder: Path,
        exercise: Exercise,
        cases: Sequence[Case],
        forks: str = "",
        *,
        is_trusted: bool = False,
        modules_folder: Path | None = None,
    ) -> None:
        self.exercise = exercise
        self.ranks = max(case.ranks for case in cases) if exercise.on_ranks else 1
        self.requests = 0
        self.guard = Guard("a check")
        self.output = b""
        self.watch = usage.Watch()
        self.watch_at = 0.0  # when to look next at what all processes use
        self.supervisor = folder / "supervisor"  # gets the pid of the process above all others of the job
        self.is_sandboxed = sandbox.in_use and not is_trusted
        self.handover = sandbox.Handover() if self.is_sandboxed else None
        self.folder = folder / "job"  # as this process sees it
        work = self.folder / "work"
        work.mkdir(parents=True)
        inside = self.folder  # as the job sees it
        variables = dict[str, str]()
        stdin = subprocess.DEVNULL
        if self.handover is None:
            words = self._command(inside)
            self._write_task(cases)
        else:
            inside = Path(sandbox.FOLDER)
            modules = job_modules.copies_for_job(exercise, cases, modules_folder or folder / MODULES)
            group = self.handover.group
            words = sandbox.command(self._command(inside), folder, modules, group=group)
            variables |= sandbox.variables()
            variables["PYTHONPATH"] = ":".join(f"{sandbox.SHOWN}/{name}" for name in modules)
            stdin = self.handover.theirs
        process: Any = forked_process.start(
            forks,
            [FORKED, str(os.getpid()), str(self.supervisor), *words],
            cwd=str(work),
            env={**clean_environment(), **variables, "HOME": str(inside / "work")},
            stdin=stdin,
            joins_stderr=True,
        )
        self.process = process
        self.printed = process.stdout.fileno()
        os.set_blocking(self.printed, False)
        if self.handover is not None:
            self._hand_over(self.handover, cases)

    def _command(self, folder: Path) -> list[str]:
        """Return the command line of the job, which sees its folder at this path."""
        self.report = "report.json"
        words = [JOB, str(folder)]
        if self.exercise.on_ranks:
            report = str(folder / self.report)
            options = Options(tuple(words), True, HANG_S, json=report, strict=self.exercise.is_strict)
            words = command_line(options)[2:]
        can_be_forked = LINUX and (not self.exercise.on_ranks or is_mpich(launch.mpiexec()))
        if can_be_forked and not self.is_sandboxed:
            return [forking.FORK, str(self.ranks), *words]  # the supervisor forks the ranks
        # In a sandbox, a rank must not see the files of the supervisor: a process in there forks the ranks.
        if can_be_forked and self.exercise.on_ranks:
            return [sys.executable, "-m", RANKS, str(self.ranks), *words]
        python = [sys.executable, "-m"] if self.is_sandboxed else forking.stand_in(self.ranks)
        start = [*mpiexec(), "-n", str(self.ranks)] if self.exercise.on_ranks else []
        return [*start, *python, *words]

    def _write_task(self, cases: Sequence[Case]) -> None:
        names = "name", "prelude", "wrap", "digest", "returns_new", "on_ranks", "deadline_s", "is_strict"
        task = {name: getattr(self.exercise, name) for name in names}
        task |= {"cases": pickle.dumps(list(cases)), "extra_s": EXTRA_S}
        task["processes"] = PROCESSES if self.is_sandboxed else processes()
        (self.folder / "task").write_bytes(pickle.dumps(task))

    def _hand_over(self, handover: sandbox.Handover, cases: Sequence[Case]) -> None:
        """Get the folder of a job in a sandbox, and let the job begin. Raise OSError if it does not start."""
        try:
            self.folder = handover.folder(START_S)
            self._write_task(cases)
            handover.start_command()
        except OSError as error:
            end(self.process)
            self.guard.insist("read_output", self.read_output)
            printed = self.output.decode(errors="replace").strip().splitlines()
            self.close()
            raise OSError(printed[-1] if printed else str(error)) from None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the job, if it has not ended."""
        if self.process.stdout.closed:
            return
        end_at = time.monotonic() + END_S  # MPI_Finalize may wait for messages that nobody receives
        with suppress(OSError):
            self._request(None)
            while self.is_running and time.monotonic() < end_at:
                time.sleep(LEAST_POLL_S)  # the check waits for it
        end(self.process)
        self.process.stdout.close()
        if self.handover is not None:
            self.handover.close()

    def run_texts(
        self, texts: Sequence[str], cases: Sequence[int], limit_s: float | None = None
    ) -> list[Run]:
        """Run cells with these texts, and their function on the cases of these numbers.

        Return one run for each text. A text that ends the job is the last one with a run. `limit_s` is
        given for known mistakes: the job is ended if they take longer, and their communicators are freed.
        """
        first, runs = self.requests, list[Run]()
        for text in texts:
            self._request(text, cases, free=limit_s is not None)
        if limit_s is None:
            limit_s = START_S + self.exercise.deadline_s + EXTRA_S
        end_at = time.monotonic() + limit_s
        while len(runs) < len(texts) and (not runs or runs[-1].is_complete):
            runs.append(self._wait_for_end(first + len(runs), end_at))
        return runs

    @property
    def is_running(self) -> bool:
        """Return whether the job can run more texts."""
        return self.process.poll() is None

    def _request(self, text: str | None, cases: Sequence[int] = (), free: bool = False) -> None:
        """Write the next request; without a text, it is the last.

        The student's code may have put links into the folder: follow none.
        """
        new = self.folder / f"new-{secrets.token_hex(8)}"
        with new.open("x") as file:
            json.dump({"text": text, "cases": list(cases), "free": free}, file)
        new.rename(self.folder / f"request-{self.requests}")
        self.requests += 1

    def _wait_for_end(self, number: int, end_at: float) -> Run:  # noqa: PLR0912 (a branch for each end)
        """Wait for the end of the request of this number, not longer than it may take; return what it did."""
        run, is_ending, pause = Run(), False, LEAST_POLL_S
        stacks = [self.folder / f"rank-{rank}.stack" for rank in range(self.ranks)]
        records = [self.folder / f"rank-{rank}-{number}" for rank in range(self.ranks)]
        following = [self.folder / f"rank-{rank}-{number + 1}" for rank in range(self.ranks)]
        while not (run.is_complete or time.monotonic() > end_at):
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
            run.is_complete = bool(self.guard.do("has_all", self.has_all, following))
            run.status = None if run.is_complete else self.process.poll()
            self.guard.do("read_output", self.read_output)
            if len(self.output) > OUTPUT_BYTES:
                run.excess = "prints without end: more than 1 MB"
            elif any(_size(path) > RECORD_BYTES for path in records):
                run.excess = TOO_MUCH
            elif run.status is not None:
                run.excess = self._memory_excess()
                break
            elif not run.is_complete:
                run.excess = self.guard.do("excess", self.excess) or ""
            if run.excess:
                break
            if not is_ending and self.guard.do("has_stacks", self.has_stacks, stacks):
                is_ending, end_at = True, time.monotonic() + STACKS_S
            if is_ending and all(map(_size, stacks)):
                end_at = min(end_at, time.monotonic() + WRITTEN_S)
        if not run.is_complete:
            end(self.process)
            self.guard.insist("read_output", self.read_output)
        run.output = self.output.decode(errors="replace")
        for rank, stack in enumerate(stacks):
            try:
                if _size(records[rank]) > RECORD_BYTES:
                    run.records.append([])
                    run.excess = run.excess or TOO_MUCH
                else:
                    run.records.append(transport.read(records[rank]))
            except transport.Unreadable as error:
                run.records.append([])
                run.unreadable = str(error)
            run.stacks.append(_text(stack, STACK_BYTES))
            start = f"rank {rank}: " if self.exercise.on_ranks else ""
            for case, printed in _printed(run.records[-1]).items():
                lines = "".join(f"{start}{line}\n" for line in printed.splitlines())
                run.printed[case] = run.printed.get(case, "") + lines
        with suppress(ValueError, AttributeError):
            run.report = json.loads(_text(self.folder / self.report, STACK_BYTES) or "{}").get("report")
        return run

    def has_all(self, paths: Sequence[Path]) -> bool:
        """Return whether all of these files exist."""
        return all(path.exists() for path in paths)

    def has_stacks(self, stacks: Sequence[Path]) -> bool:
        """Return whether a rank has written its stack, as it does at its deadline."""
        return any(map(_size, stacks))

    def excess(self) -> str:
        """Return which limit the job exceeds, as a finding says it after "it"; empty if none."""
        is_overfull = is_full(self.folder)
        if self.is_sandboxed and not is_overfull:
            about = os.statvfs(self.folder)  # of all that it has in memory, also outside its folder
            is_overfull = about.f_files - about.f_ffree > FOLDER_FILES
        if is_overfull:
            return "writes without end: more than 64 MB, or more than 1,000 files"
        if not LINUX or time.monotonic() < self.watch_at:
            return ""
        self.watch_at = time.monotonic() + WATCH_S
        excess = self._memory_excess()
        if excess:
            return excess
        supervisor = _text(self.supervisor, STACK_BYTES)
        return self.watch.excess(usage.below(int(supervisor))) if supervisor else ""

    def _memory_excess(self) -> str:
        """Return that the kernel has ended a process of the job for its memory; empty if it has not."""
        group = self.handover.group if self.handover is not None else None
        return usage.MEMORY_EXCESS if group is not None and cgroup.has_ended_members(group) else ""

    def read_output(self) -> None:
        """Read what the job has printed since the last call; a pipe that is full makes it wait."""
        with suppress(BlockingIOError):
            while len(self.output) <= OUTPUT_BYTES:
                chunk = os.read(self.printed, 1 << 16)
                if not chunk:
                    break
                self.output += chunk


def clean_environment() -> dict[str, str]:
    """Return what a judge and a job get of this process's environment, with the settings of a rank."""
    environment = {
        name: value for name, value in os.environ.items() if name in KEPT or name.startswith("LC_")
    }
    if site.ENABLE_USER_SITE:
        environment["PYTHONUSERBASE"] = site.getuserbase()  # it depends on HOME, which differs in a job
    return {**launch.one_machine(environment), **environment, **launch.ONE_THREAD, **launch.OPEN_MPI}


@contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """Give a new folder, and remove it with all that a student's code has left there."""
    if parent is not None:
        os.makedirs(parent, 0o700, exist_ok=True)  # a system may remove old folders of temporary files
    folder = tempfile.mkdtemp(prefix="labkit-exercise-", dir=parent)
    try:
        yield Path(folder)
    finally:
        with suppress(RecursionError):  # folders in folders in folders
            shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):
            for words in ("chmod", "-R", "u+rwX"), ("rm", "-rf"):
                subprocess.run([*words, folder], stderr=subprocess.DEVNULL, check=False)


def mpiexec() -> list[str]:
    """Return the first words of a command line that starts ranks on this machine."""
    path = launch.mpiexec()
    return [path, "-launcher", "fork"] if is_mpich(path) else [path]


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
        except (FileNotFoundError, NotADirectoryError):  # it has just been removed
            pass
        except OSError:  # it cannot be read, or its path is too long
            return True
    return bool(left) or size > FILE_BYTES or count > MOST_FILES


def _printed(records: list[dict[str, Any]]) -> dict[int, str]:
    """Return what a rank has printed in each case; -1 stands for what comes before the first."""
    printed: dict[int, str] = {}
    number = -1
    for record in records:
        if isinstance(record.get("begin"), int):
            number = record["begin"]
        if "printed" in record:
            printed[number] = printed.get(number, "") + record["printed"]
    return printed


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
