"""Ask a judge, which is a process of its own, for the verdict on a cell's text."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from labkit import forked_process, forking, priority
from labkit.checks.exercise import Exercise, Verdict
from labkit.checks.launching import EXTRA_S, FORKED, MODULES, START_S, clean_environment, scratch_folder
from labkit.checks.limits import set_readable
from labkit.children import end, start_child
from labkit.guard import Guard, note_in_log
from mpiwatch.processes import supervised

JUDGE = "labkit.checks.judge"
STEPS = ("_address_and_folder",)  # of a check: an error in one of these functions does not keep its verdict
# Where jobs in a sandbox share copies of modules; by default, those of each process that asks judges.
# Processes that grade a class together set it.
modules_folder = ""
MOST_VERDICT = 1 << 20  # bytes of a judge's verdict, which holds what the student's code has printed


def judge_text(exercise: Exercise, text: str, *, sandboxed: bool = False) -> Verdict:
    """Return the verdict on a cell's text, from a process of its own that runs the job and judges it.

    With `sandboxed`, the job runs in a sandbox (`labkit.checks.sandbox`).
    """
    limit_s = 2 * START_S + exercise.deadline_s + EXTRA_S
    guard = Guard("a check", note_in_log)
    try:
        # Without a process that forks them, the judge and the job import everything themselves.
        address, parent = guard.do("_address_and_folder", _address_and_folder) or ("", None)
        # Without a sandbox, a submission can write to the judge's pipe, but it does not know the token.
        token = secrets.token_hex(16)
        request = {
            "module": exercise.reference.__module__,
            "name": exercise.name,
            "text": text,
            "sandboxed": sandboxed,
            "modules": modules_folder or ("" if parent is None else os.path.join(parent, MODULES)),
            "forks": address,
            "token": token,
        }
        with scratch_folder(parent) as folder:
            process: Any = forked_process.start(
                address,
                [JUDGE, str(folder)],
                env=clean_environment(),
                stdin=subprocess.PIPE,
                before=supervised(remove=str(folder)),  # if it is not forked, it ends with this process, too
            )
            with process:
                try:
                    process.stdin.write(json.dumps(request).encode())
                    process.stdin.close()
                    verdict = _read_verdict(process.stdout.fileno(), token, limit_s)
                    if isinstance(process, forked_process.ForkedProcess):
                        process.kill()  # the judge has ended its job, and ends now
                finally:
                    end(process)
        return verdict
    except (OSError, ValueError, TypeError) as error:
        return Verdict(False, str(error), check_failed=True)


def _read_verdict(pipe: int, token: str, limit_s: float) -> Verdict:
    """Wait for the line with this token, and return the verdict in it. Raise OSError if none comes."""
    end_at = time.monotonic() + limit_s
    unread = b""
    while True:
        line, newline, rest = unread.partition(b"\n")
        if newline:
            unread = rest
            if line.startswith(token.encode()):
                return Verdict(**json.loads(line.removeprefix(token.encode())))
            continue
        left_s = max(0.0, end_at - time.monotonic())
        if not select.select([pipe], [], [], left_s)[0]:
            raise TimeoutError(f"the judge did not answer within {limit_s:g} s")
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            raise OSError("the judge has ended without a verdict")
        unread = unread[-MOST_VERDICT:] + chunk


class _Forking(NamedTuple):
    """A process that forks judges, its address, and the folder that its supervisor removes after a kill."""

    process: subprocess.Popen[bytes]
    address: str
    folder: str


_forking: dict[int, _Forking] = {}  # by the pid of this process: a child that it forks needs its own
_starting = threading.Lock()  # `check` may run in several threads


def _address_and_folder() -> tuple[str, str | None]:
    """Return the address of a process that forks judges and jobs, and the folder for their files.

    The supervisor of that process removes the folder if SIGKILL ends this one. Where the system cannot have
    such a process, the address is empty, and the folder None.
    """
    if sys.platform != "linux":
        return "", None
    with _starting:
        known = _forking.get(os.getpid())
        if known and known.process.poll() is None:
            os.killpg(known.process.pid, signal.SIGCONT)  # a student's code may have stopped it
        else:
            folder = known.folder if known else tempfile.mkdtemp(prefix="labkit-exercises-")
            command = [sys.executable, "-P", "-m", FORKED, forking.SERVE, str(os.getpid())]
            try:
                with forking.listen() as listener:
                    start = partial(
                        start_child, command, remove=folder, stdin=listener.fileno(), env=clean_environment()
                    )
                    process = priority.with_normal_priority(start)
            except OSError:
                if not known:
                    os.rmdir(folder)
                raise
            known = _forking[os.getpid()] = _Forking(process, os.environ.pop(forking.ADDRESS), folder)
        return known.address, known.folder


def grade_text(exercise: Exercise, text: str, *, sandboxed: bool) -> Verdict:
    """Return the verdict on a submission.

    A check that fails is an excuse only if it fails for the reference, too.
    """
    if not sandboxed:
        set_readable(False)
    verdict = judge_text(exercise, text, sandboxed=sandboxed)
    if verdict.check_failed and judge_text(exercise, exercise.text, sandboxed=sandboxed).passed:
        return replace(verdict, check_failed=False)
    return verdict
