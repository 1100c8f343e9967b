"""Ranks that are forked from one process, so that what they need is imported once, and not by each of them.

    LABKIT_FORKS=ADDRESS mpiexec -n 4 python -I -S forking.py RANKS FOLDER MODULE [ARGUMENT …]

starts stand-ins. Each asks the process that listens at ADDRESS (`serve`) to fork a rank, which gets the
stand-in's files, environment and directory, and runs the module as `python -m MODULE ARGUMENT …` does. The
stand-in passes signals on and ends as the rank does; the rank is killed when its stand-in ends. The listener
takes RANKS of them and then closes, so that no code of a rank can ask for more; 0 stands for any number.
FOLDER is where mpiwatch is installed, which Python does not know with -I -S.

Where nothing listens, as on another machine, the rank imports everything itself: a stand-in becomes the rank.

With LABKIT_EXITS=FILE, a stand-in appends a line to this file when its rank ends: the rank's pid and exit
code. When one rank dies, MPI ends all of them within milliseconds, and mpiexec does not tell which died first
(MPICH names the first process of the world in any case). mpiexec learns of a death when the stand-in ends in
turn, that is after the line is written. Where nothing listens, the rank is then a child of its stand-in.

A stand-in imports little of the standard library and nothing else: it is started once for each rank.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # a stand-in does not wait for the import
    from collections.abc import Sequence, Set
    from typing import Any, NoReturn

ADDRESS = "LABKIT_FORKS"  # the environment variable with the name of the socket
EXITS = "LABKIT_EXITS"  # the environment variable with the path of the file of exits
FORK = "--fork"  # the argument of a program that forks all ranks of a world (labkit/forked_ranks.py)
SERVE = "--serve"  # the argument of a program that forks ranks: the listener is its standard input
FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)
HEAD = struct.Struct("=II")  # of a request: its length, and the number of its files
# Of a reply. There are two: the pid of the new process, and when it ends, its exit code or minus the signal.
# In between, the process that asked may send signals for it, one byte each.
STATUS = struct.Struct("=i")
FILES_AT_ONCE = 250  # Linux sends up to 253 files with one message


def listen() -> socket.socket:
    """Return a listener for the stand-ins that this process starts from now on. Linux only.

    They inherit its address: this sets the environment variable ADDRESS.
    """
    listener = socket.socket(socket.AF_UNIX)
    os.environ[ADDRESS] = f"labkit-{os.getpid()}-{os.urandom(8).hex()}"
    listener.bind(f"\0{os.environ[ADDRESS]}")  # a name without a file: nothing to remove
    listener.listen(64)
    return listener


def stand_in(ranks: int = 0) -> list[str]:
    """Return the first words of a stand-in's command line; a module and its arguments follow."""
    import mpiwatch  # noqa: PLC0415  (a stand-in itself does without)

    folder = os.path.dirname(os.path.dirname(os.path.abspath(mpiwatch.__file__)))
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(ranks), folder]


# The process that forks

# What it does besides waiting: an error in one of these functions does not end it, as it would end all ranks.
STEPS = "_accept", "_fork_if_possible", "_pass_ends_on", "_pass_signals_on"
RETRY_S = 0.05


def serve(starter: int = 0) -> list[str]:  # noqa: PLR0915 (one loop)
    """Fork a process for each request; return in the new process, with its module and arguments.

    Without `starter`, stand-ins ask for ranks. With it, `labkit.forked_process.start` asks for processes, and
    only in the process `starter` and in the judges that it has started. Students' code, which runs below the
    judges, gets no process. The listener is this program's standard input. Call it in a process that has one
    thread and has not initialised MPI. It never returns there.
    """
    import gc  # noqa: PLC0415  (a stand-in does without)

    from labkit.guard import Guard  # noqa: PLC0415
    from mpiwatch.processes import child_ends, die_with_parent  # noqa: PLC0415

    guard = Guard("the process that forks ranks")
    gc.freeze()  # the collector of a rank does not write to objects, and so they stay shared
    me, woken, wake = os.getpid(), child_ends(), file_that_wakes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
    stand_ins: dict[int, socket.socket] = {}  # connections to the processes that asked, by the new pid
    asked_by_starter: set[int] = set()
    listening = [socket.socket(fileno=os.dup(0))]  # the listener, until it is closed
    ranks_to_come = 0  # negative if the number is not known; then the listener stays open
    with open(os.devnull, "rb") as devnull:
        os.dup2(devnull.fileno(), 0)  # so `listening` holds the last copy of the listener
    are_ends_to_pass_on = False
    while True:
        watched: list[Any] = [woken, *listening, *stand_ins.values()]
        ready, _, _ = select.select(watched, [], [], RETRY_S if are_ends_to_pass_on else None)
        if woken in ready:
            os.read(woken, 1 << 16)
            are_ends_to_pass_on = True
        if are_ends_to_pass_on:
            are_ends_to_pass_on = not guard.is_done("_pass_ends_on", _pass_ends_on, stand_ins)
        if not listening and not stand_ins:  # all ranks have ended
            os._exit(0)
        guard.do("_pass_signals_on", _pass_signals_on, stand_ins, ready)
        if not set(listening) & set(ready):
            continue
        askers = {starter, *(asked_by_starter & stand_ins.keys())}
        accepted = guard.do("_accept", _accept, listening[0], askers if starter else set())
        if accepted is None:
            if guard.errors.get("_accept", 0) == Guard.tries:  # nobody gets a rank any more
                _refuse_all(listening.pop())
            continue
        connection, asking, request, files = accepted
        ranks_to_come = (ranks_to_come or request["ranks"]) - 1
        pid = guard.do("_fork_if_possible", _fork_if_possible)
        if pid == 0:
            leave_signals_to_rank()
            files_of_parent = [opened.detach() for opened in (*listening, *stand_ins.values(), connection)]
            die_with_parent(signal.SIGKILL, me)
            os.setsid()  # as mpiexec's own children: Linux shares a busy machine's cores among sessions
            return _become_rank(request, files, [woken, wake, *files_of_parent])
        if pid is None or pid < 0:
            connection.close()  # the stand-in becomes the rank
        else:
            with suppress(OSError):  # the stand-in may have been killed
                connection.sendall(STATUS.pack(pid))
            stand_ins[pid] = connection
            asked_by_starter |= {pid} if asking == starter else set()
        for file in files:
            os.close(file)
        if ranks_to_come == 0 and request["ranks"]:
            listening.pop().close()


def file_that_wakes() -> int:
    """Return the end of `child_ends`' pipe to which signals write; a forked child has to close it.

    It can only be asked for before the fork: in a child, asyncio resets it (since Python 3.12).
    """
    wake = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wake


def leave_signals_to_rank() -> None:
    """Handle signals as a new process does."""
    signal.set_wakeup_fd(-1)
    for signum in signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def draw_other_numbers() -> None:
    """Let a forked rank draw other random numbers than the process that has forked it, and other ranks."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _refuse_all(listener: socket.socket) -> None:
    """Let the stand-ins that wait, and those that come, become the ranks themselves."""
    with listener, suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # a supervisor may have a copy, which would keep it open
        listener.setblocking(False)
        while True:
            listener.accept()[0].close()


def _fork_if_possible() -> int:
    """Return what os.fork returns, or -1 if this user may have no more processes."""
    try:
        return os.fork()
    except OSError:
        return -1


def _accept(
    listener: socket.socket, askers: Set[int]
) -> tuple[socket.socket, int, dict[str, Any], list[int]] | None:
    """Return the connection to a stand-in, its pid, its request and its files; None if it gets no rank.

    `askers`: the pids that get one; empty for all of this user's.
    """
    connection, _ = listener.accept()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    asking, user, _ = struct.unpack("3i", credentials)
    if user == os.getuid() and (not askers or asking in askers):
        files: list[int] = []
        with suppress(OSError, struct.error):  # a stand-in that has been killed
            return connection, asking, _receive(connection, files), files
        for file in files:
            os.close(file)
    connection.close()  # the stand-in, if it lives, becomes the rank
    return None


def _receive(connection: socket.socket, files: list[int]) -> dict[str, Any]:
    """Return a stand-in's request; add the files that come with it to `files`.

    Raise OSError if this process may not open so many.
    """
    head, received, flags, _ = socket.recv_fds(connection, HEAD.size, FILES_AT_ONCE)
    files += received
    length, number = HEAD.unpack(head)
    while len(files) < number and not flags & socket.MSG_CTRUNC:
        _, received, flags, _ = socket.recv_fds(connection, 1, FILES_AT_ONCE)
        files += received
    if len(files) < number:
        raise OSError("some of the files of a stand-in could not be opened")
    request: dict[str, Any] = marshal.loads(connection.recv(length, socket.MSG_WAITALL))
    return request


def _become_rank(request: dict[str, Any], files: list[int], files_of_parent: list[int]) -> list[str]:
    """Take a stand-in's files, environment and directory; return its module and arguments."""
    for file in files_of_parent:
        os.close(file)
    _move(files, request["files"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    draw_other_numbers()
    words: list[str] = request["words"]
    return words


def _move(files: list[int], numbers: list[int]) -> None:
    """Give open files these numbers. A number may belong to another of the files as yet."""
    unused = (number for number in range(os.sysconf("SC_OPEN_MAX")) if number not in numbers)
    waiting = []
    for file in files:
        number = next(number for number in unused if not _is_open(number))
        os.dup2(file, number)
        os.close(file)
        waiting.append(number)
    for file, number in zip(waiting, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _pass_signals_on(stand_ins: dict[int, socket.socket], ready: Sequence[Any]) -> None:
    """Send ranks the signals that their stand-ins have got; kill those whose stand-ins have ended."""
    for pid, connection in stand_ins.items():
        if connection in ready:
            signals = b""
            with suppress(OSError):
                signals = connection.recv(64)
            for signum in signals or [signal.SIGKILL]:
                os.kill(pid, signum)  # its pid is its own until waitpid


def _pass_ends_on(stand_ins: dict[int, socket.socket]) -> None:
    """Tell the stand-ins of ranks that have ended."""
    while stand_ins:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in stand_ins:
            with stand_ins.pop(pid) as connection, suppress(OSError):  # the stand-in may have ended
                connection.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))


# The stand-in


def main(arguments: list[str]) -> NoReturn:
    """Let the listener fork the rank; end as it does. Without a listener, start the rank or become it."""
    ranks, folder, *words = arguments
    exits = os.environ.pop(EXITS, "")
    connection = socket.socket(socket.AF_UNIX)
    alone, parent = [sys.executable, "-P", "-m", *words], os.getppid()
    try:
        connection.connect(f"\0{os.environ.pop(ADDRESS)}")
    except (OSError, KeyError):
        if exits:
            _run_as_child(alone, exits, folder)
        os.execv(sys.executable, alone)
    files = []
    for file in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder that was listed
            if os.get_inheritable(file) and file != connection.fileno():
                files.append(file)
    request = request_for(words, files, dict(os.environ), os.getcwd(), ranks=int(ranks))
    pid_bytes = end_bytes = b""

    def forward(signum: int, frame: object) -> None:
        with suppress(OSError):
            connection.send(bytes([signum]))

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # the rank may run before the next line does
    with suppress(OSError):  # the listener may end
        send(connection, request, files)
    for signum in FORWARDED:
        signal.signal(signum, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    with suppress(OSError):
        pid_bytes = connection.recv(STATUS.size, socket.MSG_WAITALL)
        end_bytes = connection.recv(STATUS.size, socket.MSG_WAITALL)
    if not pid_bytes and os.getppid() == parent:
        # No rank was forked, and mpiexec still waits for one: become the rank.
        os.execv(sys.executable, alone)
    code = STATUS.unpack(end_bytes)[0] if end_bytes else -signal.SIGKILL
    if exits and end_bytes:
        with suppress(Exception):  # it ends as its rank does, whether that can be noted or not
            record_exit(exits, STATUS.unpack(pid_bytes)[0], code)
    if code < 0:
        with suppress(OSError):  # that of SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def request_for(
    words: list[str], files: list[int], environment: dict[str, str], directory: str, *, ranks: int = 0
) -> dict[str, Any]:
    """Return a request for a process that runs `python -m WORDS` in this directory.

    `files`: the file descriptors that the new process gets, in the order in which the files are sent.
    `ranks`: the size of the process's world; 0 if the process is not a rank.
    """
    return {
        "ranks": ranks,
        "files": files,
        "environment": environment,
        "directory": directory,
        "words": words,
    }


def send(connection: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Send a request, and the files that come with it."""
    content = marshal.dumps(request)
    socket.send_fds(connection, [HEAD.pack(len(content), len(files))], files[:FILES_AT_ONCE])
    for first in range(FILES_AT_ONCE, len(files), FILES_AT_ONCE):
        socket.send_fds(connection, [b"\0"], files[first : first + FILES_AT_ONCE])
    connection.sendall(content)


def _run_as_child(command: list[str], exits: str, folder: str) -> NoReturn:
    """Run the rank as a child, on a machine where no supervisor removes what killed ranks leave."""
    sys.path.append(folder)
    from mpiwatch import processes  # noqa: PLC0415

    processes.die_with_proxy()
    processes.sweep_after_this_job()
    me = os.getpid()
    rank = os.fork()
    if rank == 0:
        processes.die_with_parent(signal.SIGKILL, me)
        os.execv(sys.executable, command)
    for signum in FORWARDED:
        signal.signal(signum, lambda received, frame: os.kill(rank, received))
    _, status = os.waitpid(rank, 0)
    for signum in FORWARDED:  # the rank's pid may be another process's by now
        signal.signal(signum, signal.SIG_IGN)
    record_exit(exits, rank, os.waitstatus_to_exitcode(status))
    # Between several hosts MPICH reports a rank that a signal killed, but not one with an exit code.
    os.kill(me, signal.SIGKILL)
    os._exit(1)


def record_exit(exits: str, rank: int, code: int) -> None:
    """Append a line to the file of exits."""
    # One write per line, so that the lines of several ranks do not mix.
    file = os.open(exits, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{rank} {code}\n".encode())
    os.close(file)


if __name__ == "__main__":
    main(sys.argv[1:])
