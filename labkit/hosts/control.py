"""Bring hosts up, report their state, take them down."""

from __future__ import annotations

import os
import secrets
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.hosts import links
from labkit.hosts.namespaces import FOLDER, TOKEN
from labkit.hosts.state import Host, HostsError, HostsState, folder, load, sweep
from mpiwatch import launch
from mpiwatch.processes import start_time

START_S = 30.0  # for the hosts to come up
ALTERNATIVE = "An emulated link, which waits as a slow network would, works on every system."
HOLDER = "labkit.hosts.holder"  # the module that the process runs which holds the hosts
own_holder: subprocess.Popen[str] | None = None  # if this process has started it


@dataclass(frozen=True)
class Counters:
    """Bytes that a host's network card has received and sent so far, headers included."""

    received: int
    sent: int


def up(
    n: int = 4, bandwidth: str = "1gbit", slow: Mapping[int, str] | None = None, *, owner: int | None = None
) -> tuple[Host, ...]:
    """Create `n` hosts, lab0 to lab{n-1}, each with a link of this bandwidth in both directions; return them.

    Hosts that a killed owner has left behind are removed first. Raise HostsError if hosts are up already, an
    argument is out of range, or this system does not allow hosts.

    - `n`: the number of hosts, at least 1.
    - `bandwidth`: as `tc` takes it: 1gbit, 100mbit.
    - `slow`: the bandwidth of each host whose link has another, by the host's number.
    - `owner`: a process id. When that process ends, the hosts are taken down. None keeps them until `down`.
    """
    slow = dict(slow or {})
    if not 1 <= n <= links.MAX_HOSTS:
        raise HostsError(f"the number of hosts must be between 1 and {links.MAX_HOSTS}; n is {n}.")
    outside = sorted(set(slow) - set(range(n)))
    if outside:
        raise HostsError(f"slow names host {outside[0]}; the {n} hosts are 0 to {n - 1}.")
    bandwidths = [links.bits_per_s(slow.get(index, bandwidth)) for index in range(n)]
    check_system()
    if shlex.quote(str(folder())) != str(folder()):  # MPI passes the agent's path to shells, and splits it
        raise HostsError(
            f"the path {folder()} has a character that shells interpret; set {FOLDER} to a folder whose path "
            f"has only letters, digits and . _ - /"
        )
    before = load()
    if before is not None:
        if before.alive():
            raise HostsError(f"{len(before.hosts)} hosts are up already; `labkit hosts down` removes them.")
        sweep(before)
    shutil.rmtree(folder(), ignore_errors=True)
    state = HostsState(secrets.token_hex(8), os.getpid(), start_time(os.getpid()))
    folder().mkdir(mode=0o700, parents=True)
    state.save()
    try:
        write_agent()
        start_holder(state.token, owner or 0, bandwidths)
    except BaseException:
        shutil.rmtree(folder(), ignore_errors=True)
        raise
    return running().hosts


def check_system() -> None:
    """Raise HostsError unless this system has what hosts are made of."""
    if sys.platform != "linux":
        raise HostsError(f"hosts need Linux's network namespaces, which {sys.platform} lacks. {ALTERNATIVE}")
    missing = [program for program in ("ip", "tc") if not shutil.which(program, path=search_path())]
    if missing:
        raise HostsError(f"the program {missing[0]} is missing; install the package iproute2. {ALTERNATIVE}")


def search_path() -> str:
    """Return PATH with the folders of system programs, which an ordinary user's PATH may lack."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def write_agent() -> None:
    """Write the program that MPI uses in place of ssh."""
    agent = folder() / "agent"
    program = Path(__file__).with_name("namespaces.py")
    command = shlex.join([sys.executable, "-I", "-S", str(program), str(folder())])
    agent.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    agent.chmod(0o700)


def start_holder(token: str, owner: int, bandwidths: list[int]) -> None:
    """Start the process that holds the hosts; return when they are up. Raise HostsError if it fails."""
    command = [sys.executable, "-P", "-m", HOLDER, str(owner), *map(str, bandwidths)]
    environment = {
        **os.environ,
        TOKEN: token,
        launch.SEVERAL_MACHINES: "1",
        FOLDER: str(folder()),
        "PATH": search_path(),
    }
    global own_holder  # noqa: PLW0603
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
    answer = ""
    try:
        with holder.stdout as output:  # type: ignore[union-attr]
            poll = select.poll()  # `select` takes no file from number 1024 on
            poll.register(output, select.POLLIN)
            answer = output.readline().strip() if poll.poll(1000 * START_S) else "it took too long"
    finally:
        if answer != "up":
            holder.kill()
            holder.wait()
    if answer != "up":
        user, hint = ("root", "") if os.getuid() == 0 else ("this user", "Root may be allowed to. ")
        raise HostsError(
            f"this system does not let {user} create network namespaces ({answer}). {hint}{ALTERNATIVE}"
        )
    own_holder = holder


def running(n: int = 1) -> HostsState:
    """Return the hosts that are up; raise HostsError if there are none, or fewer than n."""
    state = load()
    if state is None or not state.hosts or not state.alive():
        raise HostsError("no hosts are up; `labkit hosts up` creates four.")
    if not 1 <= n <= len(state.hosts):
        raise HostsError(
            f"{n} ranks do not fit on {len(state.hosts)} hosts: each host runs one rank. "
            f"Run `labkit hosts down`, then `labkit hosts up --n {n}`."
        )
    return state


def profile(n: int) -> str:
    """Return the profile for n ranks: "hosts" if that many hosts are up on this machine, else "mpi"."""
    try:
        running(n)
    except HostsError:
        return "mpi"
    return "hosts"


def down() -> bool:
    """Take the hosts down and end every process on them; return whether there were any.

    Raise HostsError if a process does not end.
    """
    state = load()
    if state is not None:
        sweep(state)
    if own_holder is not None:
        own_holder.wait()
    return state is not None


def counters() -> dict[str, Counters]:
    """Return the counters of every host's network card, by the host's name."""
    by_rank = {}
    for host in running().hosts:
        lines = Path(f"/proc/{host.pid}/net/dev").read_text().splitlines()
        numbers = next(line.split()[1:] for line in lines if line.strip().startswith(f"{links.CARD}:"))
        by_rank[host.name] = Counters(int(numbers[0]), int(numbers[8]))
    return by_rank
