"""Bring hosts up, see how they are, take them down."""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.hosts import links
from labkit.hosts.namespaces import FOLDER, TOKEN
from labkit.hosts.state import Host, HostsError, State, born, folder, load, sweep

PATIENCE_S = 30.0
INSTEAD = "An emulated link, which waits as a slow network would, works everywhere."
own: subprocess.Popen[str] | None = None  # the holder, if this process has started it


@dataclass(frozen=True)
class Counters:
    """Bytes that a host's network card has received and sent so far, headers included."""

    received: int
    sent: int


def up(
    n: int = 4, rate: str = "1gbit", slow: Mapping[int, str] | None = None, *, owner: int | None = None
) -> tuple[Host, ...]:
    """Make `n` hosts, lab0 to lab{n-1}, each with a link of this rate in both directions; return them.

    Hosts that a killed owner has left behind are removed first.

    Args:
        n: the number of hosts, at least 1.
        rate: as `tc` takes it: 1gbit, 100mbit.
        slow: the rates of those hosts whose link has another, {number of the host: rate}.
        owner: a process id; when that process ends, however it ends, the hosts are taken down. None keeps
            them until `down`.

    Raises:
        HostsError: hosts are up already, the arguments make no sense, or this system does not allow it.

    """
    slow = dict(slow or {})
    if not 1 <= n <= links.LARGEST:
        raise HostsError(f"the number of hosts is between 1 and {links.LARGEST}; n is {n}.")
    if outside := sorted(set(slow) - set(range(n))):
        raise HostsError(f"slow names host {outside[0]}; the {n} hosts are 0 to {n - 1}.")
    rates = [links.bits(slow.get(index, rate)) for index in range(n)]
    check_system()
    before = load()
    if before is not None:
        if before.alive():
            raise HostsError(f"{len(before.hosts)} hosts are up already; `labkit hosts down` removes them.")
        sweep(before)
    shutil.rmtree(folder(), ignore_errors=True)
    state = State(secrets.token_hex(8), os.getpid(), born(os.getpid()))
    folder().mkdir(mode=0o700, parents=True)
    state.save()
    try:
        write_agent()
        start_holder(state.token, owner or 0, rates)
    except BaseException:
        shutil.rmtree(folder(), ignore_errors=True)
        raise
    return running().hosts


def check_system() -> None:
    """Raise unless this system has what hosts are made of."""
    if sys.platform != "linux":
        raise HostsError(
            f"hosts are made of Linux's network namespaces, which {sys.platform} lacks. {INSTEAD}"
        )
    missing = [program for program in ("ip", "tc") if not shutil.which(program, path=search_path())]
    if missing:
        raise HostsError(f"the program {missing[0]} is missing; the package iproute2 has it. {INSTEAD}")


def search_path() -> str:
    """Return PATH with the folders that ordinary users may lack."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def write_agent() -> None:
    """Write the program that MPI takes for ssh."""
    agent = folder() / "agent"
    program = Path(__file__).with_name("namespaces.py")
    agent.write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -S '{program}' '{folder()}' \"$@\"\n")
    agent.chmod(0o700)


def start_holder(token: str, owner: int, rates: list[int]) -> None:
    """Start the process that holds the hosts; return when they are up."""
    command = [sys.executable, "-m", "labkit.hosts.holder", str(owner), *map(str, rates)]
    environment = {**os.environ, TOKEN: token, FOLDER: str(folder()), "PATH": search_path()}
    global own  # noqa: PLW0603
    holder = subprocess.Popen(
        command,
        env=environment,
        text=True,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said = ""
    try:
        with holder.stdout as answer, selectors.DefaultSelector() as selector:  # type: ignore[union-attr]
            selector.register(answer, selectors.EVENT_READ)
            said = answer.readline().strip() if selector.select(PATIENCE_S) else "it took too long"
    finally:
        if said != "up":
            holder.kill()
            holder.wait()
    if said != "up":
        who, hope = ("root", "") if os.getuid() == 0 else ("this user", "Root may be allowed to. ")
        raise HostsError(f"this system does not let {who} make network namespaces ({said}). {hope}{INSTEAD}")
    own = holder


def running() -> State:
    """Return the hosts that are up; raise HostsError if none are."""
    state = load()
    if state is None or not state.hosts or not state.alive():
        raise HostsError("no hosts are up; `labkit hosts up` makes four.")
    return state


def down() -> bool:
    """Take the hosts down, and end all that runs on them; return whether there were any.

    Raises HostsError if something will not end.
    """
    state = load()
    if state is not None:
        sweep(state)
    if own is not None:
        own.wait()
    return state is not None


def counters() -> dict[str, Counters]:
    """Return the counters of every host's network card, by the host's name."""
    found = {}
    for host in running().hosts:
        lines = Path(f"/proc/{host.pid}/net/dev").read_text().splitlines()
        numbers = next(line.split()[1:] for line in lines if line.strip().startswith(f"{links.CARD}:"))
        found[host.name] = Counters(int(numbers[0]), int(numbers[8]))
    return found
