"""Run a command that ends when another process ends, together with everything the command has started.

    python supervisor.py GRACE [--remove FOLDER] STARTER COMMAND [ARGUMENT …]

STARTER is the pid of the process that starts this program, and that the command ends with. GRACE is how many
seconds the command has after SIGTERM to clean up; then SIGKILL ends all that is left of it. FOLDER is removed
if STARTER has ended and cannot do it.

A cluster is a tree of about twenty processes (controller, mpiexec, ranks, their nannies). Jupyter ends a
notebook's kernel with SIGKILL, which no handler can catch; without a supervisor the tree would live on, at
full speed if it is in a deadlock. This program starts COMMAND, waits until the command or the watched process
has ended, ends the rest of the tree and removes what killed ranks leave behind.

It is run by path and imports only the standard library and modules of mpiwatch that do the same: every engine
waits for its start. On Linux the kernel makes it reliable: orphans of the tree become children of this
process (PR_SET_CHILD_SUBREAPER), and the command gets a signal if this process itself is killed
(PR_SET_PDEATHSIG). Elsewhere `ps` has to show the tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

if __name__ == "__main__":  # run by path with -I -S, Python does not know where mpiwatch is
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from mpiwatch import env, leftovers
from mpiwatch.processes import LINUX, alive, descendants, die_with_parent

GRACE_S = 10.0  # from SIGTERM to SIGKILL, unless the caller says otherwise
KILLED_S = 20.0  # for killed processes to be gone, on a busy machine; until then their segments are in use
POLL_S = 0.3  # between looks at orphans; and at processes, where the system cannot report their end
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervised(grace_s: float = GRACE_S, *, remove: str = "") -> list[str]:
    """Return the first words of a command line; the command that follows ends with this process.

    After SIGTERM it has `grace_s` seconds to clean up. The folder `remove` is removed after it if this
    process has ended by then.
    """
    options = ["--remove", remove] if remove else []
    return run_by_path(__file__, str(grace_s), *options, str(os.getpid()))


def run_by_path(file: str, *arguments: str) -> list[str]:
    """Return the words that start a program which needs the standard library alone."""
    # -I -S: ignore the user's environment and site-packages, so that the program starts quickly.
    return [sys.executable, "-I", "-S", os.path.abspath(file), *arguments]


def reap_orphans(command: int) -> None:
    """Collect the exit statuses of orphans, which have become children of this process.

    That of the command is left to `subprocess`. A process that has ended but stays a zombie counts as running
    for others: a notebook that waits for the end of engines which an earlier kernel had started would wait
    until its deadline.
    """
    with contextlib.suppress(AttributeError, ChildProcessError):  # macOS has no waitid, and no orphans here
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == command:
                return
            os.waitpid(ended.si_pid, 0)


def own_descendants() -> set[int]:
    """Return the pids of all processes that this one has started, directly or not."""
    return descendants(os.getpid())


def end_tree(
    command: subprocess.Popen[bytes], known: set[int], files: leftovers.JobFiles, grace_s: float
) -> None:
    """End the command and its descendants: SIGTERM for the command, SIGKILL for the rest after `grace_s`."""
    known = known | own_descendants()
    files.look(own_descendants)
    if command.poll() is None:
        command.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(grace_s)
    deadline = time.monotonic() + KILLED_S
    while time.monotonic() < deadline:
        files.look(own_descendants)
        left = {pid for pid in known | own_descendants() if alive(pid)}
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        command.poll()
        time.sleep(0.02)
        reap_orphans(command.pid)


def wait_for_either(command: subprocess.Popen[bytes], pid: int, files: leftovers.JobFiles) -> set[int]:
    """Wait until the command or the process `pid` has ended; note which of MPI's files they use.

    Return the command's descendants as last seen; an empty set where the kernel keeps track of them.
    """
    known: set[int] = set()

    def using() -> set[int]:
        return own_descendants() | {pid}  # a notebook's kernel may load MPI, too

    if LINUX and hasattr(os, "pidfd_open"):
        poll = select.poll()
        try:
            for watched in (pid, command.pid):
                poll.register(os.pidfd_open(watched), select.POLLIN)
        except ProcessLookupError:
            return known  # the watched process has ended already
        except OSError:
            pass  # a kernel before 5.3, or a sandbox: poll as elsewhere
        else:
            if files.created is not None:
                poll.register(files.created, select.POLLIN)
            while not {file for file, _ in poll.poll(1000 * POLL_S)} - {files.created}:
                files.look(using)
                reap_orphans(command.pid)
            return known
    while command.poll() is None and alive(pid):
        known = own_descendants() or known
        files.look(using)
        time.sleep(POLL_S)
    return known


def supervise(
    command_line: list[str],
    watched: int,
    grace_s: float,
    death_signal: int,
    left_files: Callable[[int, bool], list[str]],
) -> int:
    """Run a command until it or the process `watched` ends; return the command's exit status.

    `death_signal`: the signal that the command gets if this process is killed. `left_files` returns the paths
    of the files and folders to remove in the end; it gets the command's pid, and whether a signal to this
    process has ended it.
    """
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    stopped = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        raise SystemExit(128 + signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)
    me, files = os.getpid(), leftovers.JobFiles()
    command = subprocess.Popen(command_line, preexec_fn=lambda: die_with_parent(death_signal, me))  # noqa: PLW1509
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda received, frame: command.send_signal(received))
    known: set[int] = set()
    try:
        known = wait_for_either(command, watched, files)
    finally:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        end_tree(command, known, files, grace_s)
        leftovers.sweep(files, command.pid)
        # Last: engines that end after their controller's supervisor has removed the files write one more.
        leftovers.remove(left_files(command.pid, stopped))
    code = command.returncode
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit status."""
    grace_s, *arguments = arguments
    folders = []
    if arguments[0] == "--remove":
        _, folder, *arguments = arguments
        folders.append(folder)
    starter, *command = int(arguments[0]), *arguments[1:]

    def left_files(pid: int, stopped: bool) -> list[str]:
        return [] if alive(starter) else folders  # a starter that lives shows what the log in a folder says

    return supervise(command, starter, float(grace_s), env.end_signal(command[0]), left_files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
