"""Run a hostile submission as root or as an ordinary user, and see what it has done.

    python -m tests.exercises.hostile_run [WORD …]

runs all, or those whose names hold one of these words, and prints the table.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labkit.checks import usage
from labkit.checks.limits import FOLDER_BYTES, JOB_MEMORY_BYTES
from labkit.checks.sandbox import visible
from mpiwatch.processes import descendants
from tests.exercises.submissions import SUBMISSIONS, Submission

ROOT = Path(__file__).resolve().parents[2]
USERS = ("root", "user") if os.getuid() == 0 else ("user",)
NOBODY = 65534
SECRET = "c0ffee5ec7e7"
DEADLINE_S = 400.0  # for one submission and the right answer after it
LOOK_S = 0.05
# The judge looks every tenth of a second: a job can go beyond its limit until it has been seen and ended.
MOST_BYTES = JOB_MEMORY_BYTES + FOLDER_BYTES + (1 << 30)


@dataclass
class Seen:
    """What a submission has done."""

    verdict: dict[str, Any]
    following: dict[str, Any]  # the verdict on a right answer that was graded next
    seconds: float
    harm: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def text(self) -> str:
        """Return the finding and what the submission has printed."""
        return f"{self.verdict['finding']}\n{self.verdict['printed']}"


@contextmanager
def watched_folder() -> Iterator[Path]:
    """Yield a folder that no submission may read or change, although every user may."""
    with tempfile.TemporaryDirectory(prefix="labkit-watched-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "answers").write_text(SECRET)
        (folder / "bin").mkdir()
        for command in ("sbatch", "srun", "qsub", "ssh", "at", "crontab"):
            (folder / "bin" / command).write_text(f"#!/bin/sh\necho {command} >> {folder}/new\n")
            (folder / "bin" / command).chmod(0o755)
        for path in (folder, folder / "bin"):
            path.chmod(0o777)
        yield folder


def grade(submission: Submission, user: str, sandboxed: bool = True) -> Seen:
    """Grade a submission as a user, and return what it did. Raise RuntimeError if the grader does not work.

    Without a sandbox, only an ordinary user may: as root, a submission would reach every process of the
    machine.
    """
    if not sandboxed and (user == "root" or os.getuid() != 0):
        raise ValueError("without a sandbox, run a hostile submission as a user with nothing else here")
    with watched_folder() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = str(server.getsockname()[1])
        mark = f"mark-{port}-{os.getpid()}"
        names = {"WATCHED": str(folder), "SECRET": SECRET, "PORT": port, "MARK": mark}
        text = re.sub("|".join(names), lambda match: names[match[0]], submission.text)
        environment = {**os.environ, "A_TOKEN": SECRET, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
        environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
        words = [sys.executable, "-m", "tests.exercises.grade_one", submission.exercise]
        command = [*as_user(user), *words, "yes" if sandboxed else "no"]
        peak = [0]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            watcher = threading.Thread(target=watch, args=(process, peak), daemon=True)
            watcher.start()
            try:
                printed, errors = process.communicate(text, timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeError("the grader did not end") from None
            watcher.join()
        try:
            answer = json.loads(printed.splitlines()[-1])
            seen = Seen(answer["verdict"], answer["following"], answer["seconds"], peak_bytes=peak[0])
        except (ValueError, KeyError, IndexError):
            raise RuntimeError(f"the grader says: {printed[-500:]} {errors[-1500:]}") from None
        seen.harm = harm(seen, folder, server, mark)
        return seen


def harm(seen: Seen, folder: Path, server: socket.socket, mark: str) -> list[str]:
    """Return what a submission must not have done."""
    found = [line for line in seen.verdict["printed"].splitlines() if "HARM" in line]
    if SECRET in seen.text:
        found.append("the secret is in its finding")
    if seen.verdict["passed"]:
        found.append("it passes")
    if seen.verdict["check_failed"]:
        found.append(f"it gets no grade: {seen.verdict['finding']}")
    if not seen.following["passed"]:
        found.append(f"the next right answer: {seen.following['finding']}")
    if sorted(path.name for path in folder.iterdir()) != ["answers", "bin"]:
        found.append(f"it wrote to the watched folder: {sorted(path.name for path in folder.iterdir())}")
    if (folder / "answers").read_text() != SECRET:
        found.append("it changed a file of others")
    if seen.peak_bytes > MOST_BYTES:
        found.append(f"its processes took {seen.peak_bytes >> 20} MB")
    try:
        server.accept()
        found.append("it connected to a server")
    except BlockingIOError:
        pass
    left = [process for process in psutil.process_iter(["cmdline"]) if mark in str(process.info["cmdline"])]
    for process in left:
        found.append(f"it left {process.info['cmdline']}")
        process.kill()
    return found


def watch(process: subprocess.Popen[str], peak: list[int]) -> None:
    """Record the most memory that the processes below this one take."""
    while process.poll() is None:
        bytes_now = sum(usage._own_bytes(pid) for pid in descendants(process.pid))
        peak[0] = max(peak[0], bytes_now)
        time.sleep(LOOK_S)


def as_user(user: str) -> list[str]:
    """Return the first words of a command that runs as a user, who can read this Python and these files."""
    if user == "root" or os.getuid() != 0:
        return []
    words = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--die-with-parent",
        "--cap-add",
        "CAP_SETUID",
        "--cap-add",
        "CAP_SETGID",
    ]
    places = [*visible(), ROOT]
    closed = {folder for place in places for folder in place.parents if not folder.stat().st_mode & 0o001}
    for folder in sorted(closed):
        words += ["--perms", "0755", "--tmpfs", str(folder)]
        below = [place for place in places if folder in place.parents]
        between = {parent for place in below for parent in place.parents if folder in parent.parents}
        for parent in sorted(between):
            words += ["--perms", "0755", "--dir", str(parent)]
        for place in below:
            words += ["--ro-bind", str(place), str(place)]
    user_id = str(NOBODY)
    setpriv = shutil.which("setpriv") or "setpriv"
    return [*words, setpriv, f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"]


def main(words: list[str]) -> int:
    """Run the submissions, and print the table."""
    status = 0
    for name, submission in SUBMISSIONS.items():
        if words and not any(word in name for word in words):
            continue
        for user in USERS:
            try:
                seen = grade(submission, user)
            except RuntimeError as error:
                print(f"{name} | {user} | ERROR {error}", flush=True)
                status = 1
                continue
            status |= bool(seen.harm)
            result = "; ".join(seen.harm) or "refused"
            finding = seen.verdict["finding"][:110].replace("\n", " ")
            print(
                f"{name} | {user} | {result} | {finding} | {seen.seconds:.1f} s | {seen.peak_bytes >> 20} MB",
                flush=True,
            )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
