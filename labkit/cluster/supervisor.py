"""The supervisor of a cluster's controller or engines: it ends them, and removes the files of the cluster.

    python supervisor.py FOLDER ROLE STARTER REMOVES COMMAND [ARGUMENT …]

runs COMMAND as mpiwatch.processes does. FOLDER is where mpiwatch is installed, STARTER is the pid of the
process that starts this program, REMOVES a pattern of files to remove at the end, and ROLE is one of

- `controller`: end with STARTER, and remove the files that describe the cluster;
- `engines`: end with the cluster's controller, whichever process started the engines;
- `job`: the same for engines that are a job of a batch system, with enough time to cancel it.

Like mpiwatch.processes it is run by path and imports the standard library alone.
"""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import time

if __name__ == "__main__":  # run by path with -I -S, Python does not know where labkit and mpiwatch are
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.path.append(sys.argv.pop(1))

from labkit import forking
from labkit.cluster.adapter import files
from labkit.cluster.places.files import files_of_this_cluster
from labkit.guard import Guard
from mpiwatch import processes
from mpiwatch.processes import LINUX, alive, die_with_parent, is_mpich, run_by_path, supervise

ENGINE = "labkit.cluster.adapter.engine"  # the program that forks the engines
GRACE_S = {"controller": 2.0, "engines": 2.0, "job": 35.0}  # from SIGTERM to SIGKILL; ipyparallel has 5 s
CHECKS_S = 1.5  # after the engines have ended, for the supervisor of their checks to clean up


def supervised(role: str, removes: str = "") -> list[str]:
    """Return the first words of a command line; the command that follows ends as its role says.

    `removes`: a pattern of files to remove when it has ended; `{pid}` in it is the command's process id.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(processes.__file__)))
    return run_by_path(__file__, folder, role, str(os.getpid()), removes)


def controller_pid() -> int | None:
    """Return the pid of the cluster's controller, or of its supervisor; None without a whole cluster file."""
    return files.read_controller_pid(files_of_this_cluster()["cluster"])


# What a supervisor does before and after it waits; mpiwatch.processes.STEPS are what it does meanwhile. An
# error in one of these functions keeps none of the others from being done.
STEPS = (
    *("controller_pid", "remove_old_files", "name_file_of_exits", "leave_job", "start_listener"),
    *("files_of_place", "own_log", "has_successor", "shared_files", "logs_of_engines"),
)


def files_to_remove(role: str, watched: int, removes: str, command: int, stopped: bool) -> list[str]:
    """Return the files to remove after the command, of this pid, has ended; `stopped` by a signal to us."""
    guard = Guard("a supervisor")
    # A starter that has ended cannot read our output or clean up. One that stops its controller needs
    # neither log, and waits for our end: remove them now, as Jupyter may kill it before it removes them.
    unread = not alive(watched) or (stopped and role == "controller")
    paths: list[str] = guard.insist("files_of_place", files_of_place, removes, command) or []
    if unread:
        paths += guard.insist("own_log", own_log) or []
    if guard.insist("has_successor", has_successor, watched):
        return paths  # a new cluster has taken the name, and the files are its own
    if unread or role == "controller":
        paths += guard.insist("shared_files", shared_files) or []
    if unread and role == "controller":
        # A kernel that was killed while it stopped its engines has left their log. The controller ends last.
        paths += guard.insist("logs_of_engines", logs_of_engines) or []
    return paths


def files_of_place(removes: str, command: int) -> list[str]:
    """Return the files that the profile's pattern names, after the command of this pid has ended."""
    return glob.glob(removes.replace("{pid}", str(command))) if removes else []


def own_log() -> list[str]:
    """Return the log that this process and its command write, if they write one."""
    try:
        log = os.readlink("/proc/self/fd/1")
    except OSError:  # not on Linux
        return []
    return [log] if log.endswith(".log") else []


def has_successor(watched: int) -> bool:
    """Return whether a new cluster has taken the name of this one."""
    successor = controller_pid()
    return successor is not None and successor not in (os.getpid(), watched) and alive(successor)


def shared_files() -> list[str]:
    """Return the files that describe this cluster and its ranks."""
    return list(files_of_this_cluster().values())


def logs_of_engines() -> list[str]:
    """Return the logs of a named cluster's engines."""
    folder, cluster_id = files.this_cluster()
    if not cluster_id:
        return []
    return glob.glob(f"{glob.escape(files.logs_of_engines(folder, cluster_id))}*.log")


def remove_old_files(role: str) -> None:
    """Remove the files that an earlier cluster of this name has left after a power cut.

    The new engines would read them.
    """
    paths = files_of_this_cluster()
    old = ("client", "engine") if role == "controller" else ("exits", "place")
    processes.remove([paths[name] for name in old])


def name_file_of_exits() -> None:
    """Name the file in which the programs that start the ranks note how each rank ends."""
    os.environ[forking.EXITS] = files_of_this_cluster()["exits"]


def leave_job() -> None:
    """Start ranks on this machine, or where the profile says, and not in the batch job of this process."""
    for name in os.environ.keys() - processes.without_job(os.environ).keys():
        del os.environ[name]


def start_listener() -> None:
    """Start the process that forks engines for mpiexec's stand-ins, as with Open MPI.

    Without it, each stand-in becomes its engine.
    """
    me = os.getpid()
    with forking.listen() as listener:
        subprocess.Popen(
            [sys.executable, "-P", "-m", ENGINE, forking.SERVE],
            stdin=listener.fileno(),
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, me),  # noqa: PLW1509
        )


def command_that_forks(command: list[str]) -> list[str]:
    """Return the command that forks engines in place of an mpiexec of MPICH; empty for any other command.

    The settings of a person may start engines in another way than cluster_profiles/mpi.
    """
    mpiexec, *words = command
    start = forking.stand_in()
    if not is_mpich(mpiexec) or words[:1] != ["-n"] or words[2 : 2 + len(start)] != start:
        return []
    number, arguments = words[1], words[3 + len(start) :]
    return [sys.executable, "-P", "-m", ENGINE, forking.FORK, number, mpiexec, *arguments]


def main(arguments: list[str]) -> int:
    role, starter, removes, *command = arguments
    watched, guard = int(starter), Guard("a supervisor")
    # Engines without a controller of their own (`ipcluster engines`) end with their starter.
    for _ in range(0 if role == "controller" else 10):
        controller = guard.do("controller_pid", controller_pid)
        if controller:
            watched = controller
            break
        time.sleep(0.02)  # ipyparallel writes the file in place: it may be incomplete
    guard.insist("remove_old_files", remove_old_files, role)
    if role != "controller":
        guard.insist("name_file_of_exits", name_file_of_exits)
    if role == "engines":
        guard.insist("leave_job", leave_job)
    death_signal = signal.SIGTERM if role == "job" else processes.end_signal(command[0])
    is_mpiexec = command[0] != sys.executable  # profiles for other machines run a Python program
    if role == "engines" and is_mpiexec and LINUX:
        forking_command = command_that_forks(command)
        if forking_command:
            command = forking_command
        else:
            guard.insist("start_listener", start_listener)
    code = supervise(
        command,
        watched,
        GRACE_S[role],
        death_signal,
        lambda pid, stopped: files_to_remove(role, watched, removes, pid, stopped),
        # `Cluster.signal_engines(SIGINT)` is for the ranks, as without the lab. ipyparallel stops by SIGTERM.
        stop_signals=(signal.SIGTERM, signal.SIGHUP) if role == "engines" else processes.STOP_SIGNALS,
        supervisors_s=CHECKS_S if role == "engines" else 0.0,
    )
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
