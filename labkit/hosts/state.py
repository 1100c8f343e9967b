"""Which hosts are up: a folder in /tmp, with a file that says what holds them and where they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.hosts.namespaces import FOLDER, TOKEN, inode

POLL = 0.01  # seconds


class HostsError(RuntimeError):
    """The hosts cannot be had, or are not there; the message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines in place of a traceback
        return [f"HostsError: {self}"]


@dataclass(frozen=True)
class Host:
    """One host: `rate` is its link's in bit/s, in each direction; `pid` is the process that keeps it."""

    name: str
    address: str
    rate: int
    pid: int


@dataclass(frozen=True)
class State:
    """All hosts, and the process that holds them: with it they go."""

    token: str
    holder: int
    born: str
    hosts: tuple[Host, ...] = ()

    def save(self) -> None:
        """Write the file, at once."""
        new = folder() / "state.new"
        new.write_text(json.dumps(asdict(self)))
        new.rename(folder() / "state.json")

    def alive(self) -> bool:
        """Tell whether the holder lives (and not another process with its old pid)."""
        return born(self.holder) == self.born


def folder() -> Path:
    """Return the folder of this user's hosts."""
    return Path(os.environ.get(FOLDER) or f"/tmp/allreducelab-hosts-{os.getuid()}")


def load() -> State | None:
    """Return what the file says, alive or not; None if there is none."""
    try:
        if folder().stat().st_uid != os.getuid():
            raise HostsError(f"{folder()} is another user's; remove it, or name another in {FOLDER}.")
        state = json.loads((folder() / "state.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return State(state["token"], state["holder"], state["born"], tuple(Host(**one) for one in state["hosts"]))


def born(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty if it is gone, or a zombie."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def inside(state: State) -> set[int]:
    """Return the processes on the hosts, but those that keep them and this one."""
    keepers = {state.holder, os.getpid(), *(host.pid for host in state.hosts)}
    networks = set()
    if state.alive():  # else its namespaces' numbers may be others' by now
        for pid in keepers - {os.getpid()}:
            with suppress(OSError):
                networks.add(inode(pid, "net"))

    def there(pid: int) -> bool:
        if marked(pid, state):
            return True
        with suppress(OSError):
            return bool(networks) and inode(pid, "net") in networks
        return False

    everyone = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return {pid for pid in everyone - keepers if there(pid)}


def sweep(state: State, seconds: float = 10.0) -> None:
    """End all processes on the hosts and those that keep them, and remove the folder.

    Raises HostsError if something is left after this time.
    """
    deadline = time.monotonic() + seconds
    asked: set[int] = set()
    keepers = {host.pid for host in state.hosts if marked(host.pid, state)}
    if state.alive() and state.holder != os.getpid():
        keepers.add(state.holder)
    while left := inside(state):
        if time.monotonic() > deadline:
            raise HostsError(f"processes {sorted(left)} on the hosts have not ended in {seconds:.0f} s.")
        # TERM first: an mpiexec that is killed leaves files behind. What stays after a second is killed.
        late = time.monotonic() > deadline - seconds + 1
        for pid in left if late else left - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        time.sleep(POLL)
    ages = {pid: born(pid) for pid in keepers}
    for pid in keepers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(age and born(pid) == age for pid, age in ages.items()):
        if time.monotonic() > deadline:
            raise HostsError(f"processes {sorted(keepers)}, which keep the hosts, have not ended.")
        time.sleep(POLL)
    shutil.rmtree(folder(), ignore_errors=True)


def marked(pid: int, state: State) -> bool:
    """Tell whether a process carries the hosts' token in its environment."""
    with suppress(OSError):
        return f"{TOKEN}={state.token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
