"""What this system lets a user have, and what ranks of this machine need: files, processes, shared memory.

Measured with MPICH 5.0 and Python 3.11 on Linux.
"""

from __future__ import annotations

import os
import resource
import shlex
from typing import NamedTuple

import psutil

from labkit.text import counted
from labkit.units import MIB
from mpiwatch import launch
from mpiwatch.processes import LINUX, SHM

# The files that the controller has open, the most of all: measured with 1 to 16 ranks, and a margin.
FILES, FILES_OF_A_RANK = 105, 9
MOST_FILES = 10_240  # that a process asks for where the system sets no limit, as on macOS
# Processes and threads: the controller, the supervisors and the process that forks; a rank and, with Open
# MPI, its stand-in.
TASKS, TASKS_OF_A_RANK = 15, 14
UNLIMITED = resource.RLIM_INFINITY


class Lack(NamedTuple):
    """Something of which there is too little, as a sentence, and a command or an advice that mends it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}."


# What programs say that could not start a process or a thread, or open a file.
NO_MORE_TASKS = ("Resource temporarily unavailable", "can't start new thread", "nanny did not start")
NO_MORE_FILES = ("Too many open files",)


def hint(output: str) -> str:
    """Return a sentence if the output of ranks that did not start shows that a limit was reached."""
    if any(phrase in output for phrase in NO_MORE_TASKS):
        return (
            "The system starts no more processes or threads for you: see `ulimit -u`, and the limits of the "
            "container or the batch job. End programs that you no longer need, or ask for fewer ranks."
        )
    if any(phrase in output for phrase in NO_MORE_FILES):
        return "A process may not open more files: see `ulimit -n`."
    return ""


def lacks(ranks: int) -> list[Lack]:
    """Return what is too little for a notebook with ranks on this machine."""
    all_lacks = (open_files(ranks), tasks(ranks), shared_memory(ranks))
    return [lack for lack in all_lacks if lack is not None]


def open_files(ranks: int) -> Lack | None:
    """Return what is wrong if a process may not open as many files as one of them needs."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # up to which `raise_limit_of_files` goes
    needed = FILES + FILES_OF_A_RANK * ranks
    if limit == UNLIMITED or limit >= needed:
        return None
    return Lack(
        f"a process may have {limit} files open here, and a notebook with {counted(ranks, 'rank')} needs "
        f"{needed}",
        f"`ulimit -n {max(1024, 2 * needed)}` raises the limit, in the terminal where JupyterLab is started",
    )


def raise_limit_of_files() -> None:
    """Let this process open as many files as the system lets this user's processes open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == UNLIMITED else hard
    if soft != UNLIMITED and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def tasks(ranks: int) -> Lack | None:
    """Return what is wrong if this user may not have as many processes and threads as the ranks need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = TASKS + TASKS_OF_A_RANK * ranks
    has_no_limit = limit == UNLIMITED or os.getuid() == 0  # Linux does not hold root to it
    if not LINUX or has_no_limit or limit >= needed + tasks_of_all_users():
        return None
    present = tasks_of_this_user()
    if limit >= needed + present:
        return None
    return Lack(
        f"you may have {limit} processes and threads here, {present} are there, and "
        f"{counted(ranks, 'rank')} would add {needed}",
        "End programs and notebooks that you no longer need, ask for fewer ranks, or raise the limit "
        f"(`ulimit -u {2 * (needed + present)}`, in the terminal where JupyterLab is started)",
    )


def tasks_of_all_users() -> int:
    """Return the number of processes and threads of this machine. It takes microseconds. Linux only."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def tasks_of_this_user() -> int:
    """Return the number of this user's processes and threads."""
    total = 0
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid():
                total += process.num_threads()
        except psutil.Error:  # it has ended
            pass
    return total


def shared_memory(ranks: int) -> Lack | None:
    """Return what is wrong if ranks of this machine cannot even start for lack of shared memory."""
    what = launch.lack_of_shared_memory(ranks)
    if not what:
        return None
    return Lack(what, f"To mend it: {remedy_for_shared_memory()}")


def after_a_bus_error(folder: str = SHM) -> str:
    """Return a sentence, without its full stop, about shared memory for a rank that SIGBUS has killed."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return ""
    total = room.f_blocks * room.f_frsize
    return (
        f"This signal comes when {folder} is full, where ranks share memory: it has {total // MIB} MiB. To "
        f"enlarge it: {remedy_for_shared_memory()}"
    )


def remedy_for_shared_memory(folder: str = SHM) -> str:
    """Return how to enlarge the memory that processes share."""
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        return "start the container with --shm-size=1g"
    return f"sudo mount -o remount,rw,size=1g {shlex.quote(folder)}"
