"""Processes: ask the system about them, end them together, and remove what they leave behind.

It is run by path, too:

    python processes.py GRACE SUPERVISORS [--remove FOLDER] STARTER COMMAND [ARGUMENT …]

is a supervisor: it runs a command until that or the process STARTER has ended, then ends everything that the
command has started and removes what killed ranks leave behind. GRACE is how many seconds the command has
after SIGTERM to clean up. Supervisors that the command has started then have SUPERVISORS seconds, and SIGKILL
ends everything that is left. FOLDER is removed if STARTER has ended, and so cannot do it.

On Linux the kernel makes it reliable: orphans of the command become children of this process
(PR_SET_CHILD_SUBREAPER), and the command gets a signal if this process itself is killed (PR_SET_PDEATHSIG).
Elsewhere `ps` has to show the tree.

Ranks that are killed cannot remove their shared-memory segments. All programs of a machine share /dev/shm and
/tmp, and a file's name does not tell which program made it. So the files of a job are those that appear while
it runs and that one of its processes has open or mapped.

Every engine waits for the start of its supervisor, and every rank's watchdog uses this module: it imports the
standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set

if __name__ == "__main__":  # run by path with -I -S, Python does not know where mpiwatch is
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from mpiwatch.guard import Guard

__all__ = [
    "GRACE_S",
    "LINUX",
    "PR_SET_PDEATHSIG",
    "SHM",
    "STEPS",
    "STOP_SIGNALS",
    "Guard",
    "alive",
    "child_ends",
    "cores",
    "descendants",
    "die_with_parent",
    "die_with_proxy",
    "drain",
    "end_signal",
    "forgotten_segments",
    "is_mpich",
    "may_watch_processes",
    "print_error",
    "remove",
    "run_by_path",
    "start_time",
    "supervise",
    "supervised",
    "sweep_after_this_job",
    "without_job",
]

FLIGHT_RECORDER = "mpiwatch-flight-recorder-"  # of its file's name; its creator's pid follows
TYPE_CHECKING = False
if TYPE_CHECKING:  # every engine waits for the start of its supervisor, which does not wait for the import
    from typing import Any, Protocol

    class Command(Protocol):
        """What a supervisor runs: a process, or several. The methods are those of `subprocess.Popen`."""

        @property
        def pid(self) -> int: ...

        @property
        def returncode(self) -> Any: ...

        @property
        def pids(self) -> Collection[int]:
            """Return the pids of the children whose exit statuses `poll` collects."""

        def poll(self) -> int | None: ...
        def wait(self, timeout: float | None = None) -> int: ...
        def terminate(self) -> None: ...
        def send_signal(self, number: int, /) -> None: ...


LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def alive(pid: int) -> bool:
    """Return whether a process exists and has not ended; a zombie has ended."""
    if LINUX:
        return bool(_stat(pid))
    try:
        os.getpgid(pid)  # unlike kill(), it does not find zombies on macOS and the BSDs
    except PermissionError:  # another user's
        return True
    except OSError:
        return False
    return True


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on; empty if it has ended."""
    # The name in it may end within a character: Linux cuts it after 15 bytes.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
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


def may_watch_processes() -> bool:
    """Return whether a file tells when a process ends: since Linux 5.3, and not in all sandboxes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout


def parents() -> dict[int, int]:
    """Return the parent's pid of every process that has not ended, by the process's pid."""
    if LINUX:
        stats = {int(entry): _stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
        return {pid: int(fields[1]) for pid, fields in stats.items() if fields}
    return {int(pid): int(parent) for pid, parent in map(str.split, _ps("-axo", "pid=,ppid=").splitlines())}


def descendants(pid: int) -> set[int]:
    """Return the pids of a process's children, their children, and so on."""
    table, generation = parents(), {pid}
    pids: set[int] = set()
    while generation:
        generation = {child for child, parent in table.items() if parent in generation} - pids
        pids |= generation
    return pids


def descendants_by_tasks(pid: int) -> set[int]:
    """Return the same, from what Linux tells of these processes alone: cheaper where hundreds run.

    While a child ends, the system may leave its sibling out: read until two readings agree. Raise OSError if
    this system does not tell.
    """
    earlier, pids = None, _read_descendants(pid)
    while pids != earlier:
        earlier, pids = pids, _read_descendants(pid)
    return pids


def _read_descendants(pid: int) -> set[int]:
    pids: set[int] = set()
    unread = [pid]
    while unread:
        parent = unread.pop()
        for children in _children_by_task(parent):
            unread += [child for child in children if child not in pids]
            pids.update(children)
    return pids


def _children_by_task(pid: int) -> Iterable[list[int]]:
    """Yield the children that each thread of a process has started; none of one that has ended."""
    tasks: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                yield [int(child) for child in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"/proc/{pid}/task/{task}"):
                raise  # this kernel was built without the file


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
    with contextlib.suppress(OSError), open(f"/proc/{launcher}/comm", errors="replace") as file:
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


# Variables of a batch job, and of a rank, by their first letters: SLURM, which also tells MPICH's launcher to
# use it, PBS, LSF, Grid Engine, Cobalt, LoadLeveler, Flux; PMI and PMIx. Those that follow are settings.
OF_A_JOB = (
    *("SLURM", "HYDRA_BOOTSTRAP", "HYDRA_RMK", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    *("PBS_", "LSB_", "PE_HOSTFILE", "COBALT_", "LOADL", "FLUX_JOB", "FLUX_TASK"),
    *("PMI_", "PMIX_"),
)
NOT_OF_A_JOB = ("SLURM_CONF", "PMIX_MCA_")


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which mpiexec starts ranks on this machine, whatever job this process is in.

    Jupyter itself may run in a batch job. With the job's variables, mpiexec would start the ranks through the
    batch system, on the job's machines and with its number of tasks.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(OF_A_JOB) or name.startswith(NOT_OF_A_JOB)
    }


# What killed ranks leave behind

SHM = "/dev/shm"
SHARED = SHM, "/tmp"
# The names that MPICH, UCX, Open MPI, libfabric and PSM2 give to their segments, and MPICH's mpiexec to a
# file that it keeps open on each node.
NAMES = (
    *("mpich_shm_", "mpich_shar_tmp", "ucx_shm_posix_", "sm_segment.", "vader_segment.", "osc_sm."),
    *("osc_rdma.", "fi_shm_", "psm2_shm", "hydra_hwloc_xmlfile_"),
)
IN_CREATE = 0x100  # from <sys/inotify.h>
IN_Q_OVERFLOW = 0x4000  # of an event that says that others were lost
EVENT = struct.Struct("iIII")  # of inotify: watch, mask, cookie, length of the name that follows
LOOK_S = 0.2
SETTLED_S = 10.0  # from a job's last file until the next is probably another job's
GATHER_S = 5.0  # from a look at another job's first file until the next one, which covers all its files
SWEEP = "--sweep"  # PID …: the program that sweeps when these processes have ended


def remove(paths: list[str]) -> None:
    """Remove files and folders that may be gone already."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)  # does nothing to a file or a link
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_own(path: str) -> bool:
    """Return whether a file exists and belongs to this user; a link's owner counts, not its target's."""
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def files_of_mpi(folders: Iterable[str] = SHARED) -> set[str]:
    """Return this user's files that are named as MPI names segments and files of mpiexec."""
    paths = set()
    for folder in map(os.path.realpath, folders):  # as the system shows files in use
        with contextlib.suppress(OSError):
            paths |= {f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(NAMES)}
    return {path for path in paths if is_own(path)}


def in_use(files: Set[str], processes: Iterable[int]) -> set[str]:
    """Return which of these files processes have open or mapped. Linux only."""
    # By device and inode, because a process may see a file at another path; and by path, because some file
    # systems list other devices there. Each new file on a busy machine makes each supervisor look: search the
    # text, and parse no line of it.
    numbers: dict[tuple[int, int], str] = {}
    names = {*map(os.path.basename, files)}
    lines = {os.fsencode(f" {path}\n"): path for path in files}
    for path in files:
        with contextlib.suppress(OSError):  # it has just been removed
            status = os.stat(path)
            numbers[status.st_dev, status.st_ino] = path
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            lines[f" {device} {status.st_ino} ".encode()] = path
    used: set[str] = set()
    for pid in processes:
        if len(used) == len(files):
            break
        # Open files first: a segment is open until it is mapped.
        with contextlib.suppress(OSError):
            for file in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError, KeyError):
                    # Ask only for these names: a file on a server that is gone would not answer.
                    if os.path.basename(os.readlink(f"/proc/{pid}/fd/{file}")) in names:
                        status = os.stat(f"/proc/{pid}/fd/{file}")
                        used.add(numbers[status.st_dev, status.st_ino])
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            content = maps.read()
            used |= {path for line, path in lines.items() if line in content}
    return used


class JobFiles:
    """The files that MPI makes for a job in the folders that all programs share; none except on Linux.

    Call `look` often while the job runs, at best whenever `created` is readable: a process that has ended
    does not tell what it had open. `created` is None where the system offers no such file.
    """

    def __init__(self, *, has_begun: bool = False) -> None:
        self.created = _creations(SHM) if LINUX else None
        self.decided = set() if has_begun else files_of_mpi()
        self.used: set[str] = set()
        self.found_s = time.monotonic()  # when the last of the job's files was found

    def look(self, processes: Callable[[], Iterable[int]], *, if_created: bool = False) -> None:
        """Note which of the files that have appeared since the last call `processes` have open or mapped.

        `if_created`: do nothing unless `created` tells of a file that MPI has made for this user. Other users
        and other programs make files all the time, and each of them wakes all supervisors of a machine.
        """
        if self.created is not None:
            may_be_of_mpi = any(map(_may_be_of_mpi, _read_created(self.created)))
            if if_created and not may_be_of_mpi:
                return
        new = files_of_mpi() - self.decided
        if new and LINUX:
            used = in_use(new, processes())
            self.decided |= new
            if used:
                self.used |= used
                self.found_s = time.monotonic()

    @property
    def have_settled(self) -> bool:
        """Whether no file of the job was found for a while: a new one is probably another job's."""
        return time.monotonic() > self.found_s + SETTLED_S

    def left(self) -> list[str]:
        """Return the job's files that still exist and that no process uses."""
        return _unused(self.used & files_of_mpi()) if self.used else []


def _unused(files: set[str]) -> list[str]:
    # Read after the list is made: a segment created since then is open in the process that created it.
    return sorted(files - in_use(files, parents())) if files else []


def _read_created(file: int) -> list[str]:
    """Return the names of the files that were created since the last call; an empty name: others, too."""
    events = b""
    with contextlib.suppress(BlockingIOError):
        events = os.read(file, 1 << 16)
    names = []
    while events:
        _, mask, _, length = EVENT.unpack_from(events)
        name = events[EVENT.size : EVENT.size + length].rstrip(b"\0")
        names.append("" if mask & IN_Q_OVERFLOW else os.fsdecode(name))
        events = events[EVENT.size + length :]
    return names


def _may_be_of_mpi(name: str) -> bool:
    """Return whether a file in SHM is this user's and named as MPI names segments; True without a name."""
    return not name or (name.startswith(NAMES) and is_own(f"{SHM}/{name}"))


def _creations(folder: str) -> int | None:
    """Return a file that becomes readable when a file is created in a folder; None if there are too many."""
    libc = ctypes.CDLL(None)
    file: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if libc.inotify_add_watch(file, folder.encode(), IN_CREATE) < 0:
        if file >= 0:
            os.close(file)
        return None
    return file


def forgotten_segments(folder: str = SHM) -> list[str]:
    """Return this user's MPI shared-memory segments that no process uses, whichever job made them."""
    return _unused(files_of_mpi([folder]))


def forgotten_flight_recorders() -> list[str]:
    """Return this user's flight recorders whose creator has ended. Their names tell the creator's pid."""
    paths = [
        path for folder in (SHM, tempfile.gettempdir()) for path in glob.glob(f"{folder}/{FLIGHT_RECORDER}*")
    ]
    pids = {path: os.path.basename(path).removeprefix(FLIGHT_RECORDER).split("-")[0] for path in paths}
    return [path for path, pid in pids.items() if pid.isdigit() and not alive(int(pid)) and is_own(path)]


def sweep(files: JobFiles, mpiexec: int) -> None:
    """Remove what a job's killed ranks left behind; `mpiexec` is the pid that their mpiexec had."""
    remove(files.left())
    remove(forgotten_flight_recorders())
    sessions = [f"{folder}/ompi.{mpiexec}" for folder in {"/tmp", os.environ.get("TMPDIR", "/tmp")}]
    remove([path for path in sessions if is_own(path)])  # Open MPI's


def sweep_after(job: list[int]) -> None:
    """Wait until these processes, the last of which is an mpiexec, have ended; then sweep."""
    files, guard = JobFiles(has_begun=True), Guard("sweeper")
    while any(map(alive, job)):
        guard.do("look_at_job", look_at_job, files, job[-1])
        select.select([] if files.created is None else [files.created], [], [], LOOK_S)
    guard.insist("sweep", sweep, files, job[-1])


def look_at_job(files: JobFiles, mpiexec: int) -> None:
    """Note which of MPI's files a job's processes use; mpiexec on each node has a file, too."""
    files.look(lambda: {mpiexec} | descendants(mpiexec))


def sweep_after_this_job() -> None:
    """Start a process that sweeps as soon as this rank and its launcher have ended, however they end.

    It is for ranks that no supervisor watches: those that a plain `mpiexec` has started, or on another
    machine. It is in a session of its own and no child of this rank: a launcher or SLURM that kills all of a
    job's processes does not kill it. It ends soon after them.
    """
    sweeper = run_by_path(__file__, SWEEP, str(os.getpid()), str(os.getppid()))
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh", *sweeper],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


# The supervisor

GRACE_S = 10.0  # from SIGTERM to SIGKILL, unless the caller says otherwise
KILLED_S = 20.0  # for killed processes to be gone, on a busy machine; until then their segments are in use
POLL_S = 0.3  # between looks, where the system reports neither new segments nor the end of processes
QUIET_S = 10.0  # between looks where it does, for files in /tmp: an idle job costs nothing
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervised(grace_s: float = GRACE_S, *, remove: str = "", supervisors_s: float = 0.0) -> list[str]:
    """Return the first words of a command line; the command that follows ends with this process.

    After SIGTERM, the command has `grace_s` seconds to clean up; then supervisors that it has started have
    `supervisors_s` seconds. If this process has ended by then, the folder `remove` is removed.
    """
    options = ["--remove", remove] if remove else []
    return run_by_path(__file__, str(grace_s), str(supervisors_s), *options, str(os.getpid()))


def run_by_path(file: str, *arguments: str) -> list[str]:
    """Return the words that start a program which needs the standard library alone."""
    # -I -S: ignore the user's environment and site-packages, so that the program starts quickly.
    return [sys.executable, "-I", "-S", os.path.abspath(file), *arguments]


def is_mpich(mpiexec: str) -> bool:
    """Return whether an `mpiexec` is Hydra, the process manager of MPICH."""
    path = os.path.realpath(mpiexec)
    return "hydra" in path or os.path.exists(os.path.join(os.path.dirname(path), "hydra_pmi_proxy"))


def end_signal(mpiexec: str) -> signal.Signals:
    """Return the signal that makes an `mpiexec` end its ranks even if they are in a deadlock.

    MPICH's leaves such ranks running after SIGTERM, Open MPI's after SIGKILL.
    """
    return signal.SIGKILL if is_mpich(mpiexec) else signal.SIGTERM


class Program(subprocess.Popen[bytes]):
    """A program that a supervisor runs."""

    @property
    def pids(self) -> Collection[int]:
        """Return its pid."""
        return {self.pid}


def reap_orphans(command: Command) -> None:
    """Collect the exit statuses of orphans, which have become children of this process.

    Those of the command are left to it. A process that has ended but stays a zombie counts as running
    for others: a notebook that waits for the end of engines which an earlier kernel had started would wait
    until its deadline.
    """
    with contextlib.suppress(AttributeError, ChildProcessError):  # macOS has no waitid, and no orphans here
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in command.pids:
                return
            os.waitpid(ended.si_pid, 0)


# What a supervisor does, besides waiting: an error in one of these functions does not end it.
STEPS = "own_descendants", "look", "drain", "reap_orphans", "kill", "sweep", "remove"


def own_descendants() -> set[int]:
    """Return the pids of all processes that this one has started, directly or not."""
    return descendants(os.getpid())


def end_tree(
    command: Command, known: set[int], files: JobFiles, grace_s: float, supervisors_s: float
) -> None:
    """End the command and its descendants: SIGTERM for the command, SIGKILL for the rest after `grace_s`.

    The rest first get SIGTERM and `supervisors_s` seconds, because a supervisor among them may still have
    files to remove.
    """
    guard = Guard("supervisor")
    known = known | (guard.do("own_descendants", own_descendants) or set())
    guard.do("look", look, files)
    if command.poll() is None:
        command.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(grace_s)
    asked: set[int] = set()
    began = time.monotonic()
    while time.monotonic() < began + KILLED_S:
        guard.do("look", look, files)
        now_known = guard.do("own_descendants", own_descendants)
        known |= now_known or set()
        left = {pid for pid in known if alive(pid)}
        if now_known is not None and not left:
            return
        if time.monotonic() < began + supervisors_s:
            others = left - {*command.pids}
            guard.do("kill", kill, others - asked, signal.SIGTERM)
            asked |= others
            left -= others
        guard.do("kill", kill, left)
        command.poll()
        time.sleep(0.02)
        guard.do("reap_orphans", reap_orphans, command)


def kill(pids: Iterable[int], signum: int = signal.SIGKILL) -> None:
    """Send processes a signal; some of them may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def look(files: JobFiles, others: Collection[int] = (), if_created: bool = False) -> None:
    """Note which of MPI's files the processes that this one has started, and others, have in use.

    `if_created`: only if the system tells of new ones.
    """
    files.look(lambda: cheap_descendants() | set(others), if_created=if_created)


def cheap_descendants() -> set[int]:
    """Return the same as `own_descendants`, at less cost if the system allows it."""
    try:
        return descendants_by_tasks(os.getpid())
    except OSError:
        return own_descendants()


def child_ends() -> int:
    """Return a file that becomes readable when a child of this process ends, or when it gets a signal."""
    readable, wake = os.pipe()
    for file in readable, wake:
        os.set_blocking(file, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    return readable


def wait_for_either(command: Command, pid: int, files: JobFiles) -> set[int]:
    """Wait until the command or the process `pid` has ended; note which of MPI's files they use.

    Return the command's descendants as last seen; an empty set where the kernel keeps track of them.
    """
    known: set[int] = set()
    woken, wait_s = child_ends(), POLL_S
    poll, ends = select.poll(), select.poll()
    if LINUX:  # elsewhere, each `ps` is a child that ends, too
        poll.register(woken, select.POLLIN)
        ends.register(woken, select.POLLIN)
    # On other systems, kernels before 5.3 and in some sandboxes, only polling shows the process's end.
    with contextlib.suppress(AttributeError, OSError):
        end = os.pidfd_open(pid)
        poll.register(end, select.POLLIN)
        ends.register(end, select.POLLIN)
        if files.created is not None:
            poll.register(files.created, select.POLLIN)
            wait_s = QUIET_S
    guard = Guard("supervisor")
    is_woken = only_files = False  # whether something has happened, and whether it was new files alone
    while command.poll() is None and alive(pid):
        if not LINUX:
            known = guard.do("own_descendants", own_descendants) or known
        # A notebook's kernel may load MPI, too.
        guard.do("look", look, files, [pid], is_woken)
        if only_files and files.have_settled:
            # A check makes nine files within 50 ms, and keeps one. In a class whose servers have one user, a
            # look at each by each supervisor takes more of the cores than the checks do. If a process ends
            # meanwhile, look at once: the others still have its files open.
            guard.do("poll", ends.poll, 1000 * GATHER_S)
        ready = guard.do("poll", poll.poll, 1000 * wait_s)
        is_woken = bool(ready)
        only_files = is_woken and all(file == files.created for file, _ in ready)
        guard.do("drain", drain, woken)
        guard.do("reap_orphans", reap_orphans, command)
    return known


def drain(file: int) -> None:
    """Read what a non-blocking file holds."""
    with contextlib.suppress(BlockingIOError):
        os.read(file, 1 << 16)


def supervise(
    start: list[str] | Callable[[Callable[[], None]], Command | None],
    watched: int,
    grace_s: float,
    death_signal: int,
    left_files: Callable[[int, bool], list[str]],
    *,
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS,
    supervisors_s: float = 0.0,
) -> int | None:
    """Run a command until it or the process `watched` ends; return the command's exit status.

    `start`: the command line; or a function that starts the command by forking. It gets a function that each
    child has to call first, and returns None in a child, where this function returns None at once.
    `death_signal`: the signal that the command gets if this process is killed. `left_files` returns the paths
    of the files and folders to remove in the end; it gets the command's pid, and whether a signal to this
    process has ended it. `stop_signals`: the signals that do so; the command gets the others.
    `supervisors_s`: how long nested supervisors have to clean up, in seconds.
    """
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    stopped = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stopped
        if stopped:  # a second signal must not interrupt the cleaning
            return
        stopped = True
        raise SystemExit(128 + signum)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(death_signal, me)

    def pass_on(signum: int, frame: object) -> None:
        command.send_signal(signum)

    me, files = os.getpid(), JobFiles()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)  # until `finally` follows
    for signum in stop_signals:
        signal.signal(signum, stop)
    if callable(start):
        started = start(prepare)
        if started is None:
            return None
    else:
        started = Program(start, preexec_fn=prepare)
    command: Command = started
    for signum in {signal.SIGUSR1, signal.SIGUSR2, *STOP_SIGNALS} - {*stop_signals}:
        signal.signal(signum, pass_on)
    known: set[int] = set()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        known = wait_for_either(command, watched, files)
    finally:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        guard = Guard("supervisor")
        guard.do("end_tree", end_tree, command, known, files, grace_s, supervisors_s)
        guard.insist("sweep", sweep, files, command.pid)
        # Last: engines that end after their controller's supervisor has removed the files write one more.
        guard.insist("remove", lambda: remove(left_files(command.pid, stopped)))
    code = command.returncode
    if code is None:  # SIGKILL has not ended it: it waits for a disk or a server
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit status."""
    if arguments[0] == SWEEP:
        sweep_after([int(pid) for pid in arguments[1:]])
        return 0
    grace_s, supervisors_s, *arguments = arguments
    folders = []
    if arguments[0] == "--remove":
        _, folder, *arguments = arguments
        folders.append(folder)
    starter, *command = int(arguments[0]), *arguments[1:]

    def left_files(pid: int, stopped: bool) -> list[str]:
        return [] if alive(starter) else folders  # a starter that lives shows what the log in a folder says

    code = supervise(
        command,
        starter,
        float(grace_s),
        end_signal(command[0]),
        left_files,
        supervisors_s=float(supervisors_s),
    )
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
