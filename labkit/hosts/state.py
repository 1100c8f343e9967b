"""Which hosts are up: a folder in /tmp with a file that names the hosts and the process that holds them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.hosts.namespaces import FOLDER, TOKEN, inode
from mpiwatch.processes import start_time

POLL_S = 0.01
TERM_S = 1.0  # from SIGTERM to SIGKILL


class HostsError(RuntimeError):
    """The hosts cannot be created or are not there. The message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines instead of a traceback
        return [f"HostsError: {self}"]


@dataclass(frozen=True)
class Host:
    """One host: `bandwidth` is its link's in bit/s, in each direction; `pid` is the process that keeps it."""

    name: str
    address: str
    bandwidth: int
    pid: int


@dataclass(frozen=True)
class HostsState:
    """All hosts, and the process that holds them: when it ends, they are gone."""

    token: str
    holder: int
    holder_start: str
    hosts: tuple[Host, ...] = ()

    def save(self) -> None:
        """Write the file, in one step."""
        new = folder() / "state.new"
        new.write_text(json.dumps(asdict(self)))
        new.rename(folder() / "state.json")

    def alive(self) -> bool:
        """Return whether the holder runs, and its pid is not another process's by now."""
        return bool(self.holder_start) and start_time(self.holder) == self.holder_start


def folder() -> Path:
    """Return the folder of this user's hosts."""
    return Path(os.environ.get(FOLDER) or f"/tmp/allreducelab-hosts-{os.getuid()}")


def load() -> HostsState | None:
    """Return what the file says, whether the hosts are alive or not; None if there is no folder.

    Raise HostsError if the folder is not one of hosts: nothing in it may be removed.
    """
    other = f"Set {FOLDER} to another folder."
    try:
        status = folder().lstat()  # a link of another user's could lead to a folder of this one
        if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode):
            raise HostsError(f"{folder()} belongs to another user or is a link; remove it. {other}")
        if {path.name for path in folder().iterdir()} <= {"state.new"}:  # `up` was killed
            return None
        state = json.loads((folder() / "state.json").read_text())
        return HostsState(**{**state, "hosts": tuple(Host(**host) for host in state["hosts"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError) and not folder().is_dir():
            return None
        raise HostsError(f"{folder()} is not a folder of hosts: {error}. {other}") from None


def processes_on(state: HostsState) -> set[int]:
    """Return the processes on the hosts, without those that hold them and without this one."""
    keepers = {state.holder, os.getpid(), *(host.pid for host in state.hosts)}
    networks = set()
    if state.alive():  # else the numbers of its namespaces may be other namespaces' by now
        networks = {network_of(pid) for pid in keepers - {os.getpid()}} - {0}
    everything = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return {pid for pid in everything - keepers if has_token(pid, state) or network_of(pid) in networks}


def network_of(pid: int) -> int:
    """Return the number of a process's network namespace; 0 if it is not to be seen."""
    with suppress(OSError):
        return inode(pid, "net")
    return 0


def sweep(state: HostsState, seconds: float = 10.0) -> None:
    """End all processes on the hosts and those that hold them, and remove the folder.

    Raise HostsError if a process is left after this time.
    """
    start = time.monotonic()
    terminated: set[int] = set()
    keepers = {host.pid for host in state.hosts if has_token(host.pid, state)}
    if state.alive() and state.holder != os.getpid():
        keepers.add(state.holder)
    while True:
        left = processes_on(state)
        if not left:
            break
        waited = time.monotonic() - start
        if waited > seconds:
            raise HostsError(f"processes {sorted(left)} on the hosts did not end within {seconds:.0f} s.")
        # SIGTERM first: an mpiexec that is killed leaves files behind.
        late = waited > TERM_S
        for pid in left if late else left - terminated:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        terminated |= left
        time.sleep(POLL_S)
    started = {pid: start_time(pid) for pid in keepers}
    for pid in keepers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(ticks and start_time(pid) == ticks for pid, ticks in started.items()):
        if time.monotonic() - start > seconds:
            raise HostsError(f"processes {sorted(keepers)}, which hold the hosts, did not end.")
        time.sleep(POLL_S)
    shutil.rmtree(folder(), ignore_errors=True)


def has_token(pid: int, state: HostsState) -> bool:
    """Return whether a process has the hosts' token in its environment."""
    with suppress(OSError):
        return f"{TOKEN}={state.token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
