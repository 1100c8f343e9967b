"""Ask the operating system about processes, with the standard library alone.

The supervisor, which starts before every engine, and the ranks' watchdogs both use this module, so it must
import quickly and load neither MPI nor psutil.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def alive(pid: int) -> bool:
    """Return whether a process exists and has not ended; a zombie has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    if LINUX:
        return bool(_stat(pid))
    try:
        os.getpgid(pid)  # unlike kill(), it does not find zombies on macOS and the BSDs
    except OSError:
        return False
    return True


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on; empty if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return fields if fields[0] not in "ZX" else []
    return []


def start_time(pid: int) -> str:
    """Return when a process was started, as no later process with its pid was; empty if it has ended.

    It does not change when the clock is set: Linux counts from the system's start, and macOS notes it once.
    """
    if LINUX:
        return "".join(_stat(pid)[19:20])
    state, _, started = _ps("-o", "stat=,lstart=", "-p", str(pid)).partition(" ")
    return "" if state.startswith("Z") else started.strip()


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout


def parents() -> dict[int, int]:
    """Return the parent's pid of every process that has not ended, by the process's pid."""
    if LINUX:
        found = {int(entry): _stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
        return {pid: int(fields[1]) for pid, fields in found.items() if fields}
    return {int(pid): int(parent) for pid, parent in map(str.split, _ps("-axo", "pid=,ppid=").splitlines())}


def descendants(pid: int) -> set[int]:
    """Return the pids of a process's children, their children, and so on."""
    table, generation = parents(), {pid}
    found: set[int] = set()
    while generation:
        generation = {child for child, parent in table.items() if parent in generation} - found
        found |= generation
    return found


def die_with_parent(death_signal: int, parent: int) -> None:
    """Have the kernel send this process a signal when its parent, of this pid, ends. Linux only.

    Other systems have no such request, and the function does nothing there. The kernel drops the request when
    a process gains rights, for example by entering a user namespace: call this function afterwards.
    """
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the request
            os.kill(os.getpid(), death_signal)


def die_with_proxy() -> None:
    """Have this rank end when the process of MPICH that has started it is killed.

    mpiexec and the ranks notice nothing of that end: all of them would go on. Open MPI's ranks notice it.
    """
    launcher = os.getppid()
    with contextlib.suppress(OSError), open(f"/proc/{launcher}/comm") as file:
        if file.read() == "hydra_pmi_proxy\n":
            die_with_parent(signal.SIGKILL, launcher)


def wait_until_read(file: int, deadline_s: float = 5.0) -> None:
    """Wait until the reader of this pipe has read all that was written to it, or until the deadline.

    When a launcher ends its ranks, it drops output that it has not read. So a rank that prints an error calls
    this function before it aborts the job. Return at once if the file is not a pipe.
    """
    unread, end = bytearray(4), time.monotonic() + deadline_s
    with contextlib.suppress(OSError):
        while fcntl.ioctl(file, termios.FIONREAD, unread) == 0 and any(unread) and time.monotonic() < end:
            time.sleep(0.002)


def print_error(text: str) -> None:
    """Print a text on standard error, and wait until the launcher has read it.

    The text is written at once, so that the launcher does not mix it with the output of other ranks.
    """
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):  # in tests, standard error may be no file
        wait_until_read(sys.stderr.fileno())
