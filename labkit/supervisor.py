"""Run a command that dies with another process, together with everything the command has started.

    python lifeline.py ROLE STARTER COMMAND [ARGUMENT …]

ROLE says whom to die with: a `controller` dies with STARTER, the pid of the process that starts this program,
and takes the files that describe its cluster with it; `engines` die with their controller, thus with the
cluster's owner, whoever has started them anew; a `child` dies with STARTER, and has more time to tidy up.

A cluster is a tree of some twenty processes (controller, mpiexec, ranks, their nannies), and a notebook's
kernel is ended with SIGKILL, which nothing can catch: without a watcher beside it the tree lives on, at full
speed if it is in a deadlock. This program is that watcher. It starts COMMAND, waits for whichever ends first,
the command or the watched process, then ends what is left of the tree and the shared-memory segments that
ranks ended by a signal could not remove themselves.

It is run as a file, by path, and imports the standard library alone: every engine waits for its start.
On Linux two promises of the kernel make it airtight: the tree's orphans become children of this process
(PR_SET_CHILD_SUBREAPER), and the command gets a signal should this process itself be killed
(PR_SET_PDEATHSIG). Elsewhere the tree is what `ps` shows of it.
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
import tempfile
import time

LINUX = sys.platform == "linux"
GRACE = {"controller": 2.0, "engines": 2.0, "child": 10.0}  # seconds from TERM to KILL; ipyparallel's own: 5
SHM = "/dev/shm"
# Names that MPICH, UCX, libfabric and Open MPI give to their segments.
SEGMENTS = (
    "mpich*",
    "ucx*",
    "sm_segment*",
    "vader_segment*",
    "osc_sm*",
    "osc_rdma*",
    "ofi*",
    "fi_shm*",
    "psm*",
)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def supervised(role: str) -> list[str]:
    """Return the start of a command line, by which the rest ends with this process (see above)."""
    # -I -S: neither the user's environment nor site-packages; a watcher must start at once.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), role, str(os.getpid())]


def cluster_files() -> dict[str, str]:
    """Return the files that describe this cluster, which ipyparallel names in the environment."""
    security = os.path.join(os.environ.get("IPP_PROFILE_DIR", ""), "security")
    name = os.environ.get("IPP_CLUSTER_ID", "")
    stem = f"{security}/ipcontroller-{name}" if name else f"{security}/ipcontroller"
    return {
        "cluster": f"{security}/cluster-{name}.json",
        "client": f"{stem}-client.json",
        "engine": f"{stem}-engine.json",
        "hub": os.path.join(os.environ.get("IPP_PROFILE_DIR", ""), "log", f"engines{name}.json"),
        "holder": os.path.join(os.environ.get("IPP_PROFILE_DIR", ""), "log", f"holder-{name}"),
        "deaths": os.path.join(os.environ.get("IPP_PROFILE_DIR", ""), "log", f"deaths-{name}"),
    }


def own_output() -> str:
    """Return the log file that this program writes to, if any."""
    with contextlib.suppress(OSError):
        path = os.readlink("/proc/self/fd/1")
        return path if path.endswith(".log") else ""
    return ""


def watched_pid(role: str, starter: int) -> int:
    """Return the process to die with."""
    if role == "engines":
        # Without a controller of its own (`ipcluster engines`) a set of engines dies with its starter.
        for _ in range(10):
            with contextlib.suppress(OSError, ValueError, KeyError), open(cluster_files()["cluster"]) as file:
                return int(json.load(file)["controller"]["state"]["pid"])
            time.sleep(0.02)  # the file is written in place: it may be half there
    return starter


def alive(pid: int) -> bool:
    """Tell whether a process exists (a zombie does not count where /proc can tell)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return not LINUX


def parents() -> dict[int, int]:
    """Return {pid: parent's pid} of every process."""
    if not LINUX:
        rows = subprocess.run(
            ["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False
        ).stdout
        return {int(pid): int(parent) for pid, parent in (row.split() for row in rows.splitlines())}
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                table[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
    return table


def descendants(root: int) -> set[int]:
    """Return every process below `root`."""
    table, front = parents(), {root}
    found: set[int] = set()
    while front:
        front = {pid for pid, parent in table.items() if parent in front} - found
        found |= front
    return found


def reap() -> None:
    """Collect the orphans that have ended: they are this process's children now."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_tree(command: subprocess.Popen[bytes], known: set[int], grace: float) -> None:
    """End the command and all below it: TERM for the command, KILL for what is left after `grace` seconds."""
    known = known | descendants(os.getpid())
    if command.poll() is None:
        command.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(grace)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        left = {pid for pid in known | descendants(os.getpid()) if alive(pid)}
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        command.poll()
        time.sleep(0.02)
        reap()


def in_use(folder: str = SHM) -> set[str]:
    """Return the files below /dev/shm, or another folder, that a process of this user has open or mapped."""
    used = set()
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError), open(f"{process}/maps") as maps:
            used |= {line.split(maxsplit=5)[5].strip() for line in maps if f"{folder}/" in line}
        with contextlib.suppress(OSError):
            for link in os.scandir(f"{process}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(link.path))
    return used


def sweep(mpiexec: int) -> None:
    """Remove what a killed MPI job, whose mpiexec had this pid, could not."""
    sweep_segments()
    for path in glob.glob("/dev/shm/labkit-flight-recorder-*") + glob.glob(
        f"{tempfile.gettempdir()}/labkit-flight-recorder-*"
    ):
        with contextlib.suppress(
            OSError, ValueError
        ):  # see labkit.watch.flight_recorder.layout: it carries its maker's pid
            if not alive(int(path.split("-")[2])) and os.stat(path).st_uid == os.getuid():
                os.unlink(path)
    for folder in {"/tmp", os.environ.get("TMPDIR", "/tmp")}:
        shutil.rmtree(f"{folder}/ompi.{mpiexec}", ignore_errors=True)  # Open MPI's session
    # MPICH's files do not say whose they are: while another job runs, they may be that one's.
    names = ((int(path.split("/")[2]), read(path)) for path in glob.glob("/proc/[0-9]*/comm"))
    if LINUX and not any(name == "hydra_pmi_proxy\n" and alive(pid) for pid, name in names):
        for path in glob.glob("/tmp/hydra_hwloc_xmlfile_*"):
            with contextlib.suppress(OSError):
                if os.stat(path).st_uid == os.getuid():
                    os.unlink(path)


def read(path: str) -> str:
    """Return a file's text, or nothing if it is gone."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def forgotten_segments(folder: str = SHM) -> list[str]:
    """Return this user's shared-memory segments that no process holds any more."""
    found = [path for pattern in SEGMENTS for path in glob.glob(f"{folder}/{pattern}")]
    used = in_use(folder) if found else set()  # read after the list: a segment just made is open in its maker
    forgotten = []
    for path in found:
        with contextlib.suppress(OSError):  # removed as we look
            if path not in used and os.stat(path).st_uid == os.getuid():
                forgotten.append(path)
    return forgotten


def sweep_segments() -> None:
    """Remove the forgotten segments."""
    for path in forgotten_segments():
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_hydra(mpiexec: str) -> bool:
    """Tell MPICH's process starter from another."""
    path = os.path.realpath(mpiexec)
    return "hydra" in path or os.path.exists(os.path.join(os.path.dirname(path), "hydra_pmi_proxy"))


def die_with_parent(death_signal: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent is gone; where no kernel promises that, do nothing."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it went before we asked
            os.kill(os.getpid(), death_signal)


def wait_for_either(command: subprocess.Popen[bytes], pid: int) -> set[int]:
    """Return when the command or the watched process has ended: what `ps` last showed below the command."""
    known: set[int] = set()
    if LINUX and hasattr(os, "pidfd_open"):
        poll = select.poll()
        try:
            for watched in (pid, command.pid):
                poll.register(os.pidfd_open(watched), select.POLLIN)
        except ProcessLookupError:
            return known  # the watched process is gone already
        except OSError:
            pass  # a kernel before 5.3, or a sandbox: look every now and then
        else:
            poll.poll()
            return known
    while command.poll() is None and alive(pid):
        known = descendants(os.getpid()) or known
        time.sleep(0.3)
    return known


def main(arguments: list[str]) -> int:
    role, starter, *command_line = arguments
    pid = watched_pid(role, int(starter))
    # MPICH's mpiexec leaves its ranks behind at TERM in a deadlock, Open MPI's at KILL.
    death_signal = signal.SIGKILL if is_hydra(command_line[0]) else signal.SIGTERM
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def stop(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, stop)
    files = cluster_files() if role == "controller" else {}
    for kind in ("client", "engine"):
        with contextlib.suppress(KeyError, OSError):
            os.unlink(files[kind])  # of a controller that a power cut ended: engines must not believe it
    me = os.getpid()
    command = subprocess.Popen(command_line, preexec_fn=lambda: die_with_parent(death_signal, me))  # noqa: PLW1509
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda received, frame: command.send_signal(received))
    known: set[int] = set()
    try:
        known = wait_for_either(command, pid)
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        end_tree(command, known, GRACE[role])
        if role != "child" and not alive(pid):  # nobody is left to read our output, or to tidy up after us
            files = {**cluster_files(), "output": own_output()}
        # A controller's sockets for engines on hosts (see socket_controller.py).
        hosts = os.environ.get("LABKIT_HOSTS") or f"/tmp/allreducelab-hosts-{os.getuid()}"
        sockets = glob.glob(f"{hosts}/{command.pid}:*")
        for path in [*files.values(), *sockets]:
            with contextlib.suppress(OSError):
                os.unlink(path)
        sweep(command.pid)
    code = command.returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
