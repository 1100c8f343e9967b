"""Limits of what a student's code may use: memory, files, processes. The judge limits its time.

The system holds each process to some of them. For the job as a whole, systemd holds it to its limits where
it runs; in any case the judge looks what all of the job's processes use together (`usage.py`), and ends the
job.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

# Of each process.
MEMORY_BYTES = 768 << 20  # of address space, beyond what it has when the code begins
FILE_BYTES = 64 << 20  # of each file; also of a job's folder
OPEN_FILES = 512
RECORD_BYTES = 8 << 20  # of what a rank sends to the judge for one cell; the largest right results need 3 MB
# Of a job, all of its processes together.
PROCESSES = 256  # besides those that the user has already; in a sandbox, there are none
JOB_MEMORY_BYTES = 1 << 30
JOB_OPEN_FILES = 2000  # the system keeps up to 200 kB for each pipe and socket
UNNAMED_BYTES = 256 << 20  # of removed files that are still open, and of memory that processes share
# Of a job in a sandbox: its folder, /tmp and /dev/shm, where MPI's shared memory is.
FOLDER_BYTES = 256 << 20
FOLDER_FILES = 5000

PR_SET_DUMPABLE = 4  # from <sys/prctl.h>


def limit(processes: int) -> None:
    """Limit what this process, and each that it starts, may use. Only root can raise the limits again.

    `processes`: how many processes and threads this user may have; root may have any number.
    """
    limits = {
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "linux":  # other systems have no cheap way to read the present use
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + MEMORY_BYTES
        limits[resource.RLIMIT_NPROC] = processes
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))


def processes() -> int:
    """Return how many processes and threads this user may have, including the present ones."""
    count = PROCESSES
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.getuid():
                count += int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[17])
    return count


def hard_limits() -> dict[str, int]:
    """Return the limits of every process in a sandbox, by their names in `resource`."""
    return {
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_NPROC": PROCESSES,
        "RLIMIT_CORE": 0,
    }


def set_readable(on: bool) -> None:
    """Let this user's other processes reach this one's memory and files through /proc, or not.

    Without a sandbox, a submission could write its own verdict that way. Only Linux can keep other processes
    away, and never root's.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(on), 0, 0, 0)
