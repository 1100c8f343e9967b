"""The process that holds the hosts: when it ends, however it ends, they are gone.

    python -m labkit.hosts.holder OWNER BANDWIDTH …

It runs in its own network namespace, which contains the switch. Each of its children runs in another one and
is a host. So nothing is created in the machine's network namespace, and the kernel removes everything when
these processes end. Without root's rights they also have a user namespace of their own. The program prints
one line: `up`, or the reason why not. It ends when the process OWNER ends, unless OWNER is 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn, TextIO

from labkit.guard import Guard
from labkit.hosts import links, state
from labkit.hosts import namespaces as kernel
from labkit.hosts.namespaces import call, leave, mount
from labkit.hosts.state import Host, HostsState, folder
from mpiwatch.processes import PR_SET_PDEATHSIG, die_with_parent, start_time

OWNER_POLL_S = 0.5


def seclude() -> None:
    """Move this process into a new network namespace, and if that needs it into a new user namespace."""
    user, group = os.getuid(), os.getgid()
    try:
        leave(kernel.NET | kernel.MOUNT)
    except PermissionError:
        leave(kernel.USER | kernel.NET | kernel.MOUNT)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        call("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc would hide it from its own user
    # Mounts made here stay here; mounts that the machine makes later appear here, too.
    mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)


def name_hosts(count: int) -> None:
    """Write the names of the hosts and of this machine to an /etc/hosts that only the hosts see."""
    names = [f"{links.SWITCH_ADDRESS} {socket.gethostname()}"]
    names += [f"{links.address(index)} lab{index}" for index in range(count)]
    names.append(Path("/etc/hosts").read_text())
    # No name server can be reached. An address that refuses at once avoids waiting for one.
    for path, text in (("/etc/hosts", "\n".join(names)), ("/etc/resolv.conf", "nameserver 127.0.0.1\n")):
        ours = folder() / Path(path).name
        ours.write_text(text)
        if Path(path).exists():
            mount(str(ours), path, flags=kernel.MS_BIND)


def run_host(index: int, bandwidth: int, go: int, answer: int) -> NoReturn:
    """Be a host, with a network, a name and its own list of network cards, until this process is killed.

    Write `apart` to the pipe `answer` once the namespaces exist, wait for a byte from `go` (the cables are
    there), then write `up`; or write what failed.
    """
    try:
        leave(kernel.NET | kernel.UTS | kernel.MOUNT)
        socket.sethostname(f"lab{index}")
        mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
        mount("sysfs", "/sys", "sysfs")  # it shows the network cards of the namespace that mounts it
        os.write(answer, b"apart\n")
        os.read(go, 1)
        links.plug_in(index, bandwidth)
        os.write(answer, b"up\n")
    except OSError as error:
        os.write(answer, f"lab{index}: {error}\n".encode())
    while True:
        signal.pause()


def expect(answers: list[TextIO], word: str) -> None:
    """Read each host's next line; raise OSError if one is not the expected word."""
    for answer in answers:
        line = answer.readline().strip()
        if line != word:
            raise OSError(line or "a host ended while it was starting")


def build(bandwidths: list[int]) -> tuple[Host, ...]:
    """Create the hosts; return them when packets can reach them."""
    parent = os.getppid()
    seclude()
    die_with_parent(signal.SIGKILL, parent)
    name_hosts(len(bandwidths))
    hosts: list[Host] = []
    go, answers = list[int](), list[TextIO]()
    holder = os.getpid()
    for index, bandwidth in enumerate(bandwidths):
        (wait_for_go, send_go), (answer, send_answer) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL, holder)
            run_host(index, bandwidth, wait_for_go, send_answer)
        os.close(send_answer)
        hosts.append(Host(f"lab{index}", links.address(index), bandwidth, pid))
        go.append(send_go)
        answers.append(os.fdopen(answer))
    expect(answers, "apart")
    links.lay_cables(hosts)
    for start_pipe in go:
        os.write(start_pipe, b"!")
    expect(answers, "up")
    return tuple(hosts)


# What `end_with` does, each through a guard: an error must not leave hosts, or end them before their owner.
STEPS = "has_ended", "sweep"


def has_ended(owner: int, started: str) -> bool:
    """Return whether the owner, a process that was started then, has ended."""
    return start_time(owner) != started


def sweep(held: HostsState) -> None:
    """End every process on the hosts, and remove their folder."""
    state.sweep(held)


def end_with(owner: int, started: str, held: HostsState) -> None:
    """Wait until the owner has ended, then end the hosts and every process on them."""
    guard = Guard("the holder of the hosts")
    while not guard.do("has_ended", has_ended, owner, started):
        time.sleep(OWNER_POLL_S)
    guard.insist("sweep", sweep, held)
    os.kill(os.getpid(), signal.SIGKILL)


def main(owner: int, bandwidths: list[int]) -> None:
    """Hold hosts with links of these bandwidths (bit/s) until killed, or until their owner ends."""
    started = start_time(owner) if owner else ""
    token = os.environ[kernel.TOKEN]
    try:
        held = HostsState(token, os.getpid(), start_time(os.getpid()), build(bandwidths))
        held.save()
    except OSError as error:
        print(error, flush=True)
        sys.exit(1)
    # From now on this process outlives its parent, which may end as soon as it has read `up`.
    call("prctl", PR_SET_PDEATHSIG, 0, 0, 0, 0)
    print("up", flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the process that started this one waits for the end of these
        os.dup2(null, stream)
    if owner:
        end_with(owner, started, held)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(bandwidth) for bandwidth in sys.argv[2:]])
