"""Limits of what a student's code may use: memory, files, processes. The judge limits its time."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

MEMORY_BYTES = 768 << 20  # of address space, for each process, beyond what it has when the code begins
FILE_BYTES = 64 << 20  # of each file; also of a job's folder
OPEN_FILES = 512
PROCESSES = 256  # besides those that the user has already; in a sandbox, there are none


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
