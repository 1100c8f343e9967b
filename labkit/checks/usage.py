"""What all processes of a job use together, of memory, files and processes. Linux only."""

from __future__ import annotations

import os
import re
import resource
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from labkit.checks.limits import JOB_MEMORY_BYTES, JOB_OPEN_FILES, PROCESSES, UNNAMED_BYTES
from mpiwatch.processes import descendants

# A line of /proc/PID/maps of memory that processes share and that no name leads to: addresses, offset,
# device, inode.
UNNAMED = re.compile(r"^(\w+)-(\w+) ...s (\w+) (\S+) (\d+) +/(?:dev/zero|SYSV|memfd:).*\(deleted\)$")
REMOVED = "(deleted)"  # is at the end of such a line
EVERYTHING_S = 0.4  # between two looks of a Watch at everything
GROWTH_BYTES = 128 << 20  # if memory has grown as much, a Watch looks at everything
MEMORY_EXCESS = f"takes memory without end: more than {JOB_MEMORY_BYTES >> 30} GiB in all its processes"


class Unnamed(NamedTuple):
    """A file, or memory that processes share, to which no name leads: it lasts while a process has it."""

    device: int
    inode: int
    size: int


def excess(processes: Iterable[int]) -> str:
    """Return how these processes together exceed a limit, as a finding says it; empty if they do not.

    What ends while this function reads is left out.
    """
    pids = list(processes)
    if len(pids) > PROCESSES:
        return f"starts processes without end: more than {PROCESSES}"
    # Resident memory counts shared pages once for each process: an upper bound, but quick to read.
    if sum(map(_resident_bytes, pids)) > JOB_MEMORY_BYTES and sum(map(_own_bytes, pids)) > JOB_MEMORY_BYTES:
        return MEMORY_EXCESS
    open_files = 0
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        descriptors = _descriptors(pid)
        open_files += len(descriptors)
        if open_files > JOB_OPEN_FILES:
            return f"opens files without end: more than {JOB_OPEN_FILES:,} in all its processes"
        for file in [*_removed_files(descriptors), *_shared_memory(pid)]:
            key = file.device, file.inode
            sizes[key] = max(file.size, sizes.get(key, 0))
    if sum(sizes.values()) > UNNAMED_BYTES:
        return f"keeps removed files, or memory that processes share, of more than {UNNAMED_BYTES >> 20} MB"
    return ""


class Watch:
    """Looks at what a job's processes use: at each call at their memory, at everything only now and then.

    A look at everything takes half a millisecond for each process. What no name leads to grows only while a
    process writes to it, which a look at memory shows, or in files, whose growth takes longer.
    """

    def __init__(self) -> None:
        self._everything_at = 0.0  # when to look at everything next
        self._resident = 0  # bytes, when it last did

    def excess(self, processes: Collection[int]) -> str:
        """Return how these processes together exceed a limit; empty if they do not, as far as it looks."""
        resident = sum(map(_resident_bytes, processes))
        has_grown = resident > self._resident + GROWTH_BYTES or len(processes) > PROCESSES
        if not has_grown and time.monotonic() < self._everything_at:
            return ""
        self._everything_at = time.monotonic() + EVERYTHING_S
        self._resident = resident
        return excess(processes)


def below(pid: int) -> set[int]:
    """Return the pids of all processes below this one.

    As `descendants`, and ten times as quick, since it reads nothing of the machine's other processes.
    """
    pids: set[int] = set()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    children = [int(child) for child in file.read().split()]
                pids.update(children)
                waiting += children
        except OSError:
            if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                return descendants(pid)  # a kernel without these files
            # Otherwise, the process has ended.
    return pids


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _resident_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def _own_bytes(pid: int) -> int:
    """Return a process's memory; of pages that it shares with others, its fraction of them."""
    fields = re.findall(r"^(?:Pss|SwapPss):\s+(\d+) kB$", _read(f"/proc/{pid}/smaps_rollup"), re.MULTILINE)
    return 1024 * sum(map(int, fields)) if fields else _resident_bytes(pid)


def _descriptors(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def _removed_files(descriptors: list[str]) -> Iterator[Unnamed]:
    for path in descriptors:
        try:
            about = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 0:
            yield Unnamed(about.st_dev, about.st_ino, 512 * about.st_blocks)


def _shared_memory(pid: int) -> Iterator[Unnamed]:
    """Yield memory that a process shares with others, and that counts for none until it is touched."""
    text = _read(f"/proc/{pid}/maps")
    if REMOVED not in text:  # as in most processes; this is read ten times a second
        return
    for line in text.splitlines():
        match = UNNAMED.match(line) if line.endswith(REMOVED) else None
        if match is None:
            continue
        first, last, offset, device, inode = match.groups()
        major, minor = device.split(":")
        size = int(last, 16) - int(first, 16) + int(offset, 16)
        yield Unnamed(os.makedev(int(major, 16), int(minor, 16)), int(inode), size)
