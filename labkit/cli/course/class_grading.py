"""Grade what a class has handed in, several submissions at a time, with nbgrader and its gradebook.

`nbgrader autograde` grades one submission after the other, and waits for a judge most of the time. Here, as
many processes as there are cores grade (`grading_worker.py`). They end with this process, however it ends. A
submission that was being graded then has no grade; the next command grades it.

This module needs nbgrader, the extra `grading`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from labkit.children import end, start_child
from labkit.cli.course import gradebook, grading
from labkit.cli.course.grading_worker import Graded
from labkit.cli.course.submissions import SUBMITTED
from labkit.files import locked, printable
from labkit.text import counted
from labkit.units import duration

LOCK = Path(".labkit-grading")  # so that two commands do not grade one course at once
WORKER = "labkit.cli.course.grading_worker"


class Worker:
    """A process that grades, one submission after the other."""

    def __init__(self, assignment: str, folder: str) -> None:
        self.words = [sys.executable, "-P", "-m", WORKER, assignment, folder]
        self.folder = folder  # is removed if this process is killed
        self.process = self._start()
        self.is_closed = False

    def _start(self) -> subprocess.Popen[Any]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return start_child(self.words, remove=self.folder, text=True, **pipes)

    def grade(self, student: str) -> Graded:
        """Let the process grade a student's submission, and wait for the end."""
        pipe_in: Any = self.process.stdin
        pipe_out: Any = self.process.stdout
        answer = ""
        try:
            pipe_in.write(f"{json.dumps(student)}\n")
            pipe_in.flush()
            answer = pipe_out.readline()
        except (OSError, ValueError):  # the process has ended
            pass
        if answer:
            return Graded(*json.loads(answer))
        end(self.process)
        status = self.process.returncode
        if not self.is_closed:
            self.process = self._start()
        return Graded(student, 0, 0, 0.0, [], f"the process that graded it has ended with status {status}")

    def close(self) -> None:
        """End the process, and all that it has started."""
        self.is_closed = True
        end(self.process)


@contextmanager
def workers(assignment: str, number: int) -> Iterator[SimpleQueue[Worker]]:
    """Start so many processes, and give them in a queue; end them with the block."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    started: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="labkit-grading-") as folder:
        try:
            for _ in range(number):
                started.append(Worker(assignment, folder))
                idle.put(started[-1])
            yield idle
        finally:
            with ThreadPoolExecutor(number) as at_once:
                list(at_once.map(Worker.close, started))


def students_of(assignment: str) -> list[str]:
    """Return the students who have handed in an assignment."""
    folders = Path(SUBMITTED).glob(f"*/{assignment}")
    return sorted(folder.parent.name for folder in folders if folder.is_dir())


def grade(
    assignment: str, students: Sequence[str], jobs: int, say: Callable[[str], None], *, again: bool = False
) -> list[Graded]:
    """Grade the submissions of these students, `jobs` at a time; return what became of each.

    Leave out those that are graded and have not changed since then, unless `again`. Raise BlockingIOError if
    another command grades this course.
    """
    with locked(LOCK, wait_s=0.0):
        gradebook.configuration()  # it moves times that nbgrader cannot read out of the way, for all
        grading.has_sandbox()
        left = [name for name in students if again or not grading.is_graded(name, assignment)]
        if len(left) < len(students):
            unchanged = counted(len(students) - len(left), "submission")
            say(f"{unchanged}: graded before and unchanged. --again grades them, too.")
        if not left:
            return []
        jobs = min(jobs, len(left))
        submissions = counted(len(left), "submission")
        say(f"Grading {submissions}, {jobs} at a time. Ctrl-C stops it; the same command goes on.")
        return _grade_all(assignment, left, jobs, say)


def _grade_all(
    assignment: str, students: Sequence[str], jobs: int, say: Callable[[str], None]
) -> list[Graded]:
    began = time.monotonic()
    all_graded: list[Graded] = []
    threads = ThreadPoolExecutor(jobs)

    with workers(assignment, jobs) as idle:

        def grade_one(student: str) -> Graded:
            worker = idle.get()
            try:
                return worker.grade(student)
            finally:
                idle.put(worker)

        futures: list[Future[Graded]] = [threads.submit(grade_one, student) for student in students]
        try:
            for future in as_completed(futures):
                graded = future.result()
                all_graded.append(graded)
                number = len(all_graded)
                left_s = (time.monotonic() - began) / number * (len(students) - number)
                say(f"{line_of(graded)} ({number} of {len(students)}{_time_left(left_s)})")
                for warning in graded.warnings:
                    say(f"    {printable(warning)}")
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
    return all_graded


def line_of(graded: Graded) -> str:
    """Return what became of a submission as a line."""
    name = printable(graded.student)
    if graded.error:
        return f"{name}: NOT GRADED: {printable(graded.error)}"
    return f"{name}: {graded.correct} of {graded.exercises} exercises correct, after {graded.seconds:.0f} s"


def _time_left(seconds: float) -> str:
    return f", about {duration(seconds)} left" if seconds >= 1.0 else ""


def summary(all_graded: Sequence[Graded], seconds: float) -> str:
    """Return how many submissions were graded, and the students without a grade."""
    failed = [printable(graded.student) for graded in all_graded if graded.error]
    line = f"{counted(len(all_graded) - len(failed), 'submission')} graded in {duration(seconds)}."
    return f"{line} Not graded: {', '.join(sorted(failed))}." if failed else line
