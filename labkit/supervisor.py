"""Run a command that ends when another process ends, together with everything the command has started.

    python supervisor.py ROLE STARTER COMMAND [ARGUMENT …]

STARTER is the pid of the process that starts this program. ROLE is one of

- `controller`: end with STARTER, and remove the files that describe the cluster;
- `engines`: end with the cluster's controller, whichever process started the engines;
- `job`: the same for engines that are a SLURM job, with enough time to cancel it;
- `jupyter`: end with STARTER, allow more time for cleaning up, and remove JupyterLab's runtime folder;
- `child`: end with STARTER, and allow more time for cleaning up.

A cluster is a tree of about twenty processes (controller, mpiexec, ranks, their nannies). Jupyter ends a
notebook's kernel with SIGKILL, which no handler can catch; without a supervisor the tree would live on, at
full speed if it is in a deadlock. This program starts COMMAND, waits until the command or the watched process
has ended, ends the rest of the tree and removes what killed ranks leave behind.

It is run by path and imports only the standard library and modules of labkit that do the same: every engine
waits for its start. On Linux the kernel makes it reliable: orphans of the tree become children of this
process (PR_SET_CHILD_SUBREAPER), and the command gets a signal if this process itself is killed
(PR_SET_PDEATHSIG). Elsewhere `ps` has to show the tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

if __name__ == "__main__":  # run by path with -I -S, Python does not know where labkit is
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from labkit import leftovers
from mpiwatch import env
from mpiwatch.processes import LINUX, alive, descendants, die_with_parent

GRACE_S = {
    "controller": 2.0,
    "engines": 2.0,
    "jupyter": 10.0,
    "child": 10.0,
    "job": 35.0,
}  # from SIGTERM to SIGKILL; ipyparallel has 5 s
KILLED_S = 20.0  # for killed processes to be gone, on a busy machine; until then their segments are in use
POLL_S = 0.3  # between looks at orphans; and at processes, where the system cannot report their end
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervised(role: str) -> list[str]:
    """Return the first words of a command line; the command that follows ends with this process."""
    # -I -S: ignore the user's environment and site-packages, so that the supervisor starts quickly.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), role, str(os.getpid())]


def own_log() -> str:
    """Return the log file that this program writes its output to, or an empty string."""
    with contextlib.suppress(OSError):
        path = os.readlink("/proc/self/fd/1")
        return path if path.endswith(".log") else ""
    return ""


def controller_pid() -> int | None:
    """Return the pid of the cluster's controller, or of its supervisor; None without a whole cluster file."""
    path = leftovers.files_of_this_cluster()["cluster"]
    with contextlib.suppress(OSError, ValueError, KeyError), open(path) as file:
        return int(json.load(file)["controller"]["state"]["pid"])
    return None


def watched_pid(role: str, starter: int) -> int:
    """Return the pid of the process to end with."""
    if role in ("engines", "job"):
        # Engines without a controller of their own (`ipcluster engines`) end with their starter.
        for _ in range(10):
            if controller := controller_pid():
                return controller
            time.sleep(0.02)  # ipyparallel writes the file in place: it may be incomplete
    return starter


def reap() -> None:
    """Collect the exit statuses of orphans, which have become children of this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_orphans(command: int) -> None:
    """Do what `reap` does while the command runs; its own exit status is left to `subprocess`.

    A process that has ended but stays a zombie counts as running for others: a notebook that waits for the
    end of engines which an earlier kernel had started would wait until its deadline.
    """
    with contextlib.suppress(ChildProcessError):
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
        reap()


def wait_for_either(command: subprocess.Popen[bytes], pid: int, files: leftovers.JobFiles) -> set[int]:
    """Wait until the command or the process `pid` has ended; note which files the command's ranks use.

    Return the command's descendants as last seen; an empty set where the kernel keeps track of them.
    """
    known: set[int] = set()
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
                files.look(own_descendants)
                reap_orphans(command.pid)
            return known
    while command.poll() is None and alive(pid):
        known = own_descendants() or known
        files.look(own_descendants)
        time.sleep(POLL_S)
    return known


def files_to_remove(role: str, watched: int, command: int, *, stopped: bool = False) -> list[str]:
    """Return the files to remove after the command, of this pid, has ended; `stopped` by a signal to us."""
    cluster = leftovers.files_of_this_cluster()
    controller = controller_pid()
    if controller not in (None, os.getpid(), watched) and alive(controller):
        cluster = {}  # a new cluster has taken the name, and the files are its own
    files, logs = cluster if role == "controller" else {}, []
    # A starter that has ended cannot read our output or clean up. One that stops its controller needs
    # neither log, and waits for our end: remove them now, as Jupyter may kill it before it removes them.
    if role in ("controller", "engines", "job") and (
        not alive(watched) or (stopped and role == "controller")
    ):
        files = {**cluster, "log": own_log()}
        logs = leftovers.engine_logs_of_this_cluster() if role == "controller" else []
    # A controller's sockets for engines on hosts (labkit.cluster.engine.socket_controller).
    hosts = os.environ.get("LABKIT_HOSTS") or f"/tmp/allreducelab-hosts-{os.getuid()}"
    return [*files.values(), *logs, *glob.glob(f"{hosts}/{command}:*")]


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit status."""
    role, starter, *command_line = arguments
    pid = watched_pid(role, int(starter))
    death_signal = signal.SIGTERM if role == "job" else env.end_signal(command_line[0])
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    stopped = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        raise SystemExit(128 + signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)
    if role == "controller":
        # Files of a controller that a power cut ended: engines must not read them.
        cluster = leftovers.files_of_this_cluster()
        leftovers.remove([cluster["client"], cluster["engine"]])
    me, files = os.getpid(), leftovers.JobFiles()
    command = subprocess.Popen(command_line, preexec_fn=lambda: die_with_parent(death_signal, me))  # noqa: PLW1509
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda received, frame: command.send_signal(received))
    known: set[int] = set()
    try:
        known = wait_for_either(command, pid, files)
    finally:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        end_tree(command, known, files, GRACE_S[role])
        leftovers.sweep(files, command.pid)
        # Last: engines that end after their controller's supervisor has removed the files write one more.
        leftovers.remove(files_to_remove(role, pid, command.pid, stopped=stopped))
        if role == "jupyter" and not alive(pid):  # otherwise the starter shows what the log in it says
            shutil.rmtree(os.environ["JUPYTER_RUNTIME_DIR"], ignore_errors=True)
    code = command.returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
