"""Start a job on this machine, limit its time and its output, and collect what its ranks have written."""

from __future__ import annotations

import json
import os
import pickle
import re
import runpy
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from labkit import forking
from labkit.children import end, start_child
from labkit.exercises import sandbox, transport
from labkit.exercises.exercise import Case, Exercise
from labkit.exercises.limits import FILE_BYTES, PROCESSES, processes
from mpiwatch import launch
from mpiwatch.launch import Options, command_line
from mpiwatch.processes import GRACE_S, die_with_parent, end_signal, is_mpich, supervise

START_S = 60.0  # for all ranks to start; a second on an idle machine
EXTRA_S = 50.0  # beyond a deadline, for ranks that sleep or wait for a core
END_S = 1.0  # from the first rank's stack, or from the last request, until the job is ended
HANG_S = 3.0  # a wait for a message this long is reported
OUTPUT_BYTES = 1 << 20  # a job that prints more is ended
KEPT_BYTES = 1 << 14
LEAST_POLL_S, POLL_S = 0.001, 0.02  # a mistake without ranks runs for a millisecond, a job for seconds
STACK_BYTES = 1 << 18  # read of a stack, or of a report
JOB = "labkit.exercises.job"
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


@dataclass
class Run:
    """What a job did with one text. `records` holds each rank's records in order."""

    records: list[list[dict[str, Any]]]
    stacks: list[str]  # of each rank at the end of its time; empty otherwise
    report: dict[str, Any] | None  # of a hang, or of a rank that died
    is_complete: bool  # whether each rank has come to the end
    status: int | None  # None if the job was ended, or goes on
    excess: str  # what it did too much of, if it was ended for that; empty otherwise
    output: str  # all of the job's, for errors of the check
    printed: str = ""  # what the student's code has printed
    unreadable: str = ""  # why the records cannot be used


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


class Supervisor:
    """The supervisor of a job, forked before this process knows an answer; below it, the job is forked, too.

    It has imported what a job needs, and waits for the job's command. It has the methods of a
    `subprocess.Popen` that a `Job` uses.
    """

    def __init__(self) -> None:
        starter = os.getpid()
        (order, self._order), (output, own_output) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(own_output, 1)
            os.dup2(own_output, 2)
            os.dup2(order, 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # above all, the file that takes the verdict
            _supervise_job(starter)
        os.close(order)
        os.close(own_output)
        self.stdout = open(output, "rb")  # noqa: SIM115  (as long as the process)
        self.returncode: int | None = None

    def start(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        """Start a command in a folder."""
        with open(self._order, "wb") as file:
            file.write(pickle.dumps((list(command), str(folder), dict(environment))))

    def poll(self) -> int | None:
        """Return the exit status; None if the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> None:
        """Wait for the end; raise subprocess.TimeoutExpired if it does not come in time."""
        end_at = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end_at:
                raise subprocess.TimeoutExpired("the supervisor of a job", timeout)
            time.sleep(LEAST_POLL_S)

    def terminate(self) -> None:
        """Have the process end its job, and then itself."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self.pid, signal.SIGKILL)


def _supervise_job(starter: int) -> NoReturn:
    """Wait for a command; supervise it, and be the processes that it has forked. File 3 gives the command."""
    with open(3, "rb") as file:
        order = file.read()
    if not order:
        os._exit(0)
    os.setsid()
    command, folder, environment = pickle.loads(order)  # from the judge
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    me = os.getpid()
    listener = forking.listen()
    if os.fork() == 0:
        die_with_parent(signal.SIGKILL, me)
        os.dup2(listener.fileno(), 0)
        listener.close()
        sys.argv[:] = forking.serve()
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    listener.close()
    os._exit(supervise(command, starter, GRACE_S, end_signal(command[0]), lambda pid, stopped: []))


class Job:
    """A job on this machine, which runs students' cells and their function on cases; a context manager.

    It is for at most `texts` cells. A rank that has computed for `exercise.deadline_s` on one of them ends
    the job. So does one that has not come to its end EXTRA_S later: it sleeps, or cores are busy. Raise
    OSError if the job cannot be started.
    """

    def __init__(
        self,
        folder: Path,
        exercise: Exercise,
        cases: Sequence[Case],
        texts: int = 1,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.exercise, self.folder = exercise, folder / "job"
        self.ranks = max(case.ranks for case in cases) if exercise.on_ranks else 1
        (self.folder / "work").mkdir(parents=True)
        names = "name", "prelude", "wrap", "digest", "on_ranks", "deadline_s"
        task = {name: getattr(exercise, name) for name in names}
        task |= {"cases": pickle.dumps(list(cases)), "texts": texts, "extra_s": EXTRA_S}
        task["processes"] = PROCESSES if sandbox.in_use else processes()
        (self.folder / "task").write_bytes(pickle.dumps(task))
        self.report = self.folder / "report.json"
        words = [JOB, str(self.folder)]
        if exercise.on_ranks:
            words = command_line(Options(tuple(words), True, HANG_S, json=str(self.report)))[2:]
        python = [sys.executable, "-m"] if supervisor is None else forking.stand_in(self.ranks)
        start = [*mpiexec(), "-n", str(self.ranks)] if exercise.on_ranks else []
        command = [*start, *python, *words]
        environment = {**clean_environment(), "HOME": str(self.folder / "work")}
        if sandbox.in_use:
            # It begins with the job's program and what the exercise gives it: pickles hold modules' names.
            content = pickle.dumps((list(cases), exercise.wrap, exercise.digest))
            given = [name.decode() for name in set(re.findall(rb"(?:labkit|mpiwatch)(?:\.\w+)+", content))]
            seen = [JOB, *given, *["mpiwatch.__main__"] * exercise.on_ranks]
            modules = folder / "modules"
            sandbox.copy_modules(seen, exercise.prelude, modules)
            environment |= {"PYTHONPATH": str(modules), "TMPDIR": "/tmp"}
            command = sandbox.command(command, self.folder, [modules])
        self.requests = 0
        self.limit_s = START_S  # besides the time that a request may take
        self.directory = os.open(self.folder, os.O_RDONLY)
        self.process: Any = supervisor
        if supervisor is not None:
            supervisor.start(command, self.folder / "work", environment)
        else:
            pipe, same = subprocess.PIPE, subprocess.STDOUT
            work = self.folder / "work"
            self.process = start_child(command, cwd=work, env=environment, stdout=pipe, stderr=same)
        self.output = _Output(self.process.stdout)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            if self.is_running:
                self._request(None)
                self.process.wait(END_S)  # MPI_Finalize may wait for messages that nobody receives
        self._end()
        os.close(self.directory)

    def run(self, texts: Sequence[str], cases: Sequence[int], limit_s: float | None = None) -> list[Run]:
        """Run cells with these texts, and their function on the cases of these numbers.

        Return one run for each text. A text that ends the job is the last one with a run. `limit_s` is
        given for known mistakes: the job is ended if they take longer, and their communicators are freed.
        """
        first = self.requests
        for text in texts:
            self._request(text, cases, free=limit_s is not None)
        if limit_s is None:
            limit_s = self.limit_s + len(texts) * self.exercise.deadline_s + EXTRA_S
        self.limit_s = 0.0
        end_at, runs, is_done = time.monotonic() + limit_s, list[Run](), True
        while is_done and len(runs) < len(texts):
            number = first + len(runs)
            status, is_done = self._wait(number, end_at)
            if not is_done:
                self._end()
            runs.append(self._run(number, status, is_done))
        return runs

    def _run(self, number: int, status: int | None, is_done: bool) -> Run:
        """Return what the ranks have written about the request of this number."""
        is_full_now = status is None and not is_done and is_full(self.folder)
        excess = "prints" if self.output.count > OUTPUT_BYTES else "writes" * is_full_now
        run = Run([], [], None, is_done, status, excess, self.output.text())
        for rank in range(self.ranks):
            try:
                run.records.append(transport.read(self.folder / f"rank-{rank}-{number}"))
            except transport.Unreadable as error:
                run.records.append([])
                run.unreadable = str(error)
            run.stacks.append(_text(self.folder / f"rank-{rank}.stack", STACK_BYTES))
            printed = "".join(record["printed"] for record in run.records[-1] if "printed" in record)
            start = f"rank {rank}: " * self.exercise.on_ranks
            run.printed += "".join(f"{start}{line}\n" for line in printed.splitlines())
        with suppress(ValueError, AttributeError):
            run.report = json.loads(_text(self.report, STACK_BYTES) or "{}").get("report")
        return run

    @property
    def is_running(self) -> bool:
        """Return whether the job can run more texts."""
        return self.process.poll() is None

    def _request(self, text: str | None, cases: Sequence[int] = (), free: bool = False) -> None:
        """Write the next request; without a text, it is the last.

        The student's code may have put links into the folder: follow none.
        """
        content = json.dumps({"text": text, "cases": list(cases), "free": free}).encode()
        name, new = f"request-{self.requests}", f"new-{secrets.token_hex(8)}"
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=self.directory)
        with open(file, "wb") as stream:
            stream.write(content)
        os.rename(new, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self.requests += 1

    def _wait(self, number: int, end_at: float) -> tuple[int | None, bool]:
        """Wait for the end of a request or of the job, but not longer than it may take.

        Return the job's exit status, or None, and whether the request has come to its end.
        """
        stacks = [self.folder / f"rank-{rank}.stack" for rank in range(self.ranks)]
        done = [self.folder / f"rank-{rank}-{number}.done" for rank in range(self.ranks)]
        is_ending, pause = False, LEAST_POLL_S
        while not all(path.exists() for path in done):
            if (status := self.process.poll()) is not None:
                return status, False
            if not is_ending and any(map(_size, stacks)):
                is_ending = True
                end_at = time.monotonic() + END_S
            if time.monotonic() > end_at or self.output.count > OUTPUT_BYTES or is_full(self.folder):
                return None, False
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
        return None, True

    def _end(self) -> None:
        end(self.process)
        self.output.thread.join(1)


def clean_environment() -> dict[str, str]:
    """Return what a judge and a job get of this process's environment, with the settings of a rank."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("LC_")}
    if site.ENABLE_USER_SITE:
        kept["PYTHONUSERBASE"] = site.getuserbase()  # it depends on HOME, which differs in a job
    return {**launch.one_machine(kept), **kept, **launch.ONE_THREAD, **launch.OPEN_MPI}


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


def mpiexec() -> list[str]:
    """Return the first words of a command line that starts ranks on this machine."""
    found = launch.mpiexec()
    return [found, "-launcher", "fork"] if is_mpich(found) else [found]


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
