"""Find and remove what a killed cluster or MPI job leaves behind. Standard library only.

Ranks that are killed cannot remove their shared-memory segments. Their supervisor does; `labkit doctor`
reports what is still there.

All programs of a machine share /dev/shm and /tmp, and a file's name does not tell which program made it. So
the files of a job are those that appear while it runs and that one of its processes has open or mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable

if __name__ == "__main__":  # run by path with -I -S, Python does not know where mpiwatch is
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from mpiwatch import FLIGHT_RECORDER
from mpiwatch.processes import LINUX, alive, descendants, parents

SHM = "/dev/shm"
SHARED = SHM, "/tmp"
# The names that MPICH, UCX, Open MPI, libfabric and PSM2 give to their segments, and MPICH's mpiexec to a
# file that it keeps open on each node.
NAMES = (
    *("mpich_shm_", "mpich_shar_tmp", "ucx_shm_posix_", "sm_segment.", "vader_segment.", "osc_sm."),
    *("osc_rdma.", "fi_shm_", "psm2_shm", "hydra_hwloc_xmlfile_"),
)
IN_CREATE = 0x100  # from <sys/inotify.h>
LOOK_S = 0.2
Inode = tuple[int, int]  # the device and the number of a file on it


def remove(paths: list[str]) -> None:
    """Remove files and folders that may be gone already."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_own(path: str) -> bool:
    """Return whether a file exists and belongs to this user; a link's owner counts, not its target's."""
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def files_of_mpi(folders: Iterable[str] = SHARED) -> dict[str, Inode]:
    """Return this user's files that are named as MPI names segments and files of mpiexec, by path."""
    found = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in (f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(NAMES)):
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                        found[path] = (status.st_dev, status.st_ino)
    return found


def inodes_in_use(processes: Iterable[int]) -> set[Inode]:
    """Return the files that processes have open or mapped. Linux only."""
    used = set()
    for pid in processes:
        # Open files first: a segment is open until it is mapped.
        with contextlib.suppress(OSError):
            for file in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{file}")
                    used.add((status.st_dev, status.st_ino))
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:
            for line in maps:
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                if inode != "0":
                    major, minor = device.split(":")
                    used.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return used


class JobFiles:
    """The files that MPI makes for a job in the folders that all programs share; none except on Linux.

    Call `look` often while the job runs, at best whenever `created` is readable: a process that has ended
    does not tell what it had open. `created` is None where the system offers no such file.
    """

    def __init__(self, *, has_begun: bool = False) -> None:
        self.created = _creations(SHM) if LINUX else None
        self.decided = set() if has_begun else set(files_of_mpi().values())
        self.used: dict[str, Inode] = {}

    def look(self, processes: Callable[[], Iterable[int]]) -> None:
        """Note which of the files that have appeared since the last call `processes` have open or mapped."""
        if self.created is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.created, 1 << 16)
        new = {path: inode for path, inode in files_of_mpi().items() if inode not in self.decided}
        if new and LINUX:
            used = inodes_in_use(processes())
            self.used |= {path: inode for path, inode in new.items() if inode in used}
            self.decided |= set(new.values())

    def left(self) -> list[str]:
        """Return the job's files that still exist and that no process uses."""
        found = files_of_mpi() if self.used else {}
        left = {path: inode for path, inode in self.used.items() if found.get(path) == inode}
        used = inodes_in_use(parents()) if left else set()
        return [path for path, inode in left.items() if inode not in used]


def _creations(folder: str) -> int | None:
    """Return a file that becomes readable when a file is created in a folder; None if there are too many."""
    libc = ctypes.CDLL(None)
    file: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file >= 0 and libc.inotify_add_watch(file, folder.encode(), IN_CREATE) < 0:
        os.close(file)
        return None
    return file if file >= 0 else None


def forgotten_segments(folder: str = SHM) -> list[str]:
    """Return this user's MPI shared-memory segments that no process uses, whichever job made them."""
    found = files_of_mpi([folder])
    # Read after the list is made: a segment created since then is open in the process that created it.
    used = inodes_in_use(parents()) if found else set()
    return [path for path, inode in found.items() if inode not in used]


def forgotten_flight_recorders() -> list[str]:
    """Return this user's flight recorders whose creator has ended. Their names tell the creator's pid."""
    found = [
        path for folder in (SHM, tempfile.gettempdir()) for path in glob.glob(f"{folder}/{FLIGHT_RECORDER}*")
    ]
    pids = {path: os.path.basename(path).removeprefix(FLIGHT_RECORDER).split("-")[0] for path in found}
    return [path for path, pid in pids.items() if pid.isdigit() and not alive(int(pid)) and is_own(path)]


def forgotten() -> list[str]:
    """Return the segments and flight recorders that this user's killed jobs have left behind."""
    return forgotten_segments() + forgotten_flight_recorders()


def sweep(files: JobFiles, mpiexec: int) -> None:
    """Remove what a job's killed ranks left behind; `mpiexec` is the pid that their mpiexec had."""
    remove(files.left() + forgotten_flight_recorders())
    for folder in {"/tmp", os.environ.get("TMPDIR", "/tmp")}:
        if is_own(session := f"{folder}/ompi.{mpiexec}"):  # Open MPI's session folder
            shutil.rmtree(session, ignore_errors=True)


def sweep_after_this_job() -> None:
    """Start a process that sweeps as soon as this rank and its launcher have ended, however they end.

    It is for ranks that no supervisor watches, such as those of `mpiexec -n 4 labkit train`. It is in a
    session of its own, so that a launcher that kills its ranks does not kill it, and ends soon after them.
    """
    subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), str(os.getppid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    job = [int(pid) for pid in sys.argv[1:]]
    files = JobFiles(has_begun=True)
    while any(map(alive, job)):
        files.look(lambda: descendants(job[-1]))
        select.select([] if files.created is None else [files.created], [], [], LOOK_S)
    sweep(files, job[-1])
