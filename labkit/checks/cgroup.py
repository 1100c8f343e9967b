"""A cgroup for the memory of a job: the kernel then holds all of the job's processes together to a limit.

It also counts what belongs to no process: files in memory, pipes and sockets. Where systemd runs commands for
this user, `sandbox.scope` asks systemd for a cgroup. Where it does not, as in most containers, this module
makes one in the cgroup of this process, if the system lets it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from mpiwatch.processes import LINUX

PREFIX = "labkit-job-"  # of the name, before the pid of the process that has made it
END_S = 2.0  # for the kernel to take ended processes out of a cgroup
# The files that hold the limits: of memory, and of memory and swap together (version 1) or swap (version 2).
LIMITS_1 = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
LIMITS_2 = "memory.max", "memory.swap.max"
# A line of /proc/self/mountinfo: the cgroup that is mounted, where, and how.
MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
# Become a member of the cgroup, then the command.
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@cache
def parent() -> Path | None:
    """Return the cgroup of this process's memory, if this process may make others in it; None otherwise."""
    if not LINUX:
        return None
    try:
        membership = Path("/proc/self/cgroup").read_text()
        mounts = MOUNT.findall(Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for root, mounted_at, kind, options in mounts:
            is_version_1 = kind == "cgroup" and "memory" in controllers.split(",")
            if is_version_1 and "memory" not in options.split(","):
                continue
            if is_version_1 or (kind == "cgroup2" and controllers == ""):
                folder = Path(mounted_at, os.path.relpath(path, root))
                if _gives_limits(folder):
                    return folder
    return None


def _gives_limits(folder: Path) -> bool:
    """Tell whether a new cgroup in this one can be limited, and can get members."""
    try:
        trial = make_in(folder, 1 << 30)
    except OSError:
        return False
    try:
        return os.access(trial / "cgroup.procs", os.W_OK)
    finally:
        remove(trial)


def make(most_bytes: int) -> Path | None:
    """Make a cgroup whose members may use this much memory together; None if the system does not let it."""
    folder = parent()
    if folder is None:
        return None
    _remove_left(folder)
    try:
        return make_in(folder, most_bytes)
    except OSError:
        return None


def make_in(folder: Path, most_bytes: int) -> Path:
    """Make a cgroup in another one. Raise OSError if it cannot be made, or has no limits of memory."""
    group = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=folder))
    try:
        if (group / LIMITS_1[0]).exists():
            (group / LIMITS_1[0]).write_text(str(most_bytes))
            with suppress(OSError):  # a kernel without swap's accounting lacks the file
                (group / LIMITS_1[1]).write_text(str(most_bytes))
        else:
            (group / LIMITS_2[0]).write_text(str(most_bytes))
            with suppress(OSError):
                (group / LIMITS_2[1]).write_text("0")
    except OSError:
        group.rmdir()
        raise
    return group


def joining(group: Path | None) -> list[str]:
    """Return the first words of a command that becomes a member of a cgroup before it begins."""
    return ["sh", "-c", JOIN, str(group)] if group else []


def has_ended_members(group: Path) -> bool:
    """Tell whether the kernel has ended a process of a cgroup because its memory ran out."""
    for name in ("memory.oom_control", "memory.events"):
        with suppress(OSError):
            if re.search(r"^oom_kill [1-9]", (group / name).read_text(), re.MULTILINE):
                return True
    return False


def remove(group: Path) -> None:
    """Remove a cgroup, when its last process has ended."""
    end_at = time.monotonic() + END_S
    while group.exists():
        with suppress(OSError):
            group.rmdir()
            return
        if time.monotonic() > end_at:
            return
        time.sleep(0.01)


def _remove_left(folder: Path) -> None:
    """Remove cgroups of processes that have been killed. The kernel keeps those that have members."""
    for group in folder.glob(f"{PREFIX}*"):
        pid = group.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                group.rmdir()
