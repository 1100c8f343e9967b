"""Child processes that end with this process, however it ends, and by a deadline."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from mpiwatch.processes import GRACE_S, supervised


class ChildError(RuntimeError):
    """A child that failed, or that had to be ended at its deadline."""


def start_child(
    command: Sequence[str], *, remove: str = "", supervisors_s: float = 0.0, **options: Any
) -> subprocess.Popen[Any]:
    """Start a command that ends with this process, together with all processes that it starts.

    That holds even if SIGKILL ends this process, which also removes the folder `remove`. The child reads
    nothing and has a session of its own: Ctrl-C reaches this process alone, which then ends the child in
    order. `supervisors_s`: how long nested supervisors have to clean up, in seconds.
    `options` are those of `subprocess.Popen`.
    """
    apart = {"stdin": subprocess.DEVNULL, "start_new_session": True}
    supervisor = supervised(remove=remove, supervisors_s=supervisors_s)
    return subprocess.Popen([*supervisor, *command], **{**apart, **options})


def run_child(
    command: Sequence[str],
    *,
    deadline_s: float | None,
    environment: Mapping[str, str] | None = None,
    capture: bool = True,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit status and, with `capture`, its standard output.

    Raise ChildError if the child does not end within `deadline_s` seconds, or, with `check`, if its exit
    status is not 0.
    """
    stdout = subprocess.PIPE if capture else None
    with start_child(command, env=environment, stdout=stdout, text=True) as job:
        try:
            output, _ = job.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            message = f"{_shown(command)} did not end within {deadline_s:g} s and was ended: "
            raise ChildError(f"{message}it hangs or is too slow") from None
        finally:
            end(job)
    if check and job.returncode:
        raise ChildError(
            f"{_shown(command)} failed with exit status {job.returncode}; see its messages above"
        )
    return subprocess.CompletedProcess(job.args, job.returncode, output)


def end(job: subprocess.Popen[Any]) -> None:
    """End a supervised child: its supervisor first ends all processes below it."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(GRACE_S + 5)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def _shown(command: Sequence[str]) -> str:
    """Return the command as one types it, shortened to one line."""
    words = shlex.join(command).splitlines()[0]
    return f"`{words[:77]}…`" if len(words) > 80 else f"`{words}`"
