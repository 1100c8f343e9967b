"""The process that holds the hosts, and by whose end, however it comes, they are gone.

    python -m labkit.hosts.holder OWNER RATE …

It lives in a network namespace of its own, with the switch in it, and each of its children in one more, which
is a host; so nothing is ever made in the network namespace of the machine, and the kernel takes all of it
back when these processes end. Without root's rights they live in a user namespace of their own, too. It
prints one line: `up`, or why not. It ends when the process OWNER ends, if that is not 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from labkit.hosts import links, state
from labkit.hosts.namespaces import (
    MOUNT,
    MS_BIND,
    MS_REC,
    MS_SLAVE,
    NET,
    PR_SET_DUMPABLE,
    TOKEN,
    USER,
    UTS,
    call,
    leave,
    mount,
)
from labkit.hosts.state import Host, State, born, folder
from labkit.processes import PR_SET_PDEATHSIG, die_with_parent

LOOK_S = 0.5  # how often the holder looks whether its owner lives


def seclude() -> None:
    """Move this process into a network of its own; without the right to, in a user namespace of its own."""
    user, group = os.getuid(), os.getgid()
    try:
        leave(NET | MOUNT)
    except PermissionError:
        leave(USER | NET | MOUNT)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc would hide it from its own user
    # What is mounted here stays here; what the machine mounts later is seen here, too.
    mount("none", "/", flags=MS_REC | MS_SLAVE)


def name_hosts(count: int) -> None:
    """Put the hosts' names, and this machine's, into an /etc/hosts that only they see."""
    names = [f"{links.SWITCH_ADDRESS} {socket.gethostname()}"]
    names += [f"{links.address(index)} lab{index}" for index in range(count)]
    names.append(Path("/etc/hosts").read_text())
    # No name server can be reached: one that refuses at once is better than one that is waited for.
    for path, text in (("/etc/hosts", "\n".join(names)), ("/etc/resolv.conf", "nameserver 127.0.0.1\n")):
        ours = folder() / Path(path).name
        ours.write_text(text)
        if Path(path).exists():
            mount(str(ours), path, flags=MS_BIND)


def be_host(index: int, rate: int, go: int, tell: int) -> NoReturn:
    """Be a host: a network, a name, and a view of the network's cards, for as long as this process lives."""
    try:
        leave(NET | UTS | MOUNT)
        socket.sethostname(f"lab{index}")
        mount("none", "/", flags=MS_REC | MS_SLAVE)
        mount("sysfs", "/sys", "sysfs")  # it shows the cards of the namespace that mounts it
        os.write(tell, b"apart\n")
        os.read(go, 1)
        links.plug_in(index, rate)
        os.write(tell, b"up\n")
    except OSError as error:
        os.write(tell, f"lab{index}: {error}\n".encode())
    while True:
        signal.pause()


def expect(answer: int, word: str) -> None:
    """Read a host's next line; raise if it is another."""
    said = b""
    while not said.endswith(b"\n"):
        more = os.read(answer, 1)
        if not more:
            raise OSError("a host ended while it came up")
        said += more
    if said.decode().strip() != word:
        raise OSError(said.decode().strip())


def build(rates: list[int]) -> tuple[Host, ...]:
    """Make the hosts; return them when packets can go."""
    parent = os.getppid()
    seclude()
    die_with_parent(signal.SIGKILL, parent)
    name_hosts(len(rates))
    hosts, ends = [], []
    holder = os.getpid()
    for index, rate in enumerate(rates):
        (go, let_go), (answer, tell) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL, holder)
            be_host(index, rate, go, tell)
        os.close(tell)
        hosts.append(Host(f"lab{index}", links.address(index), rate, pid))
        ends.append((let_go, answer))
    for _, answer in ends:
        expect(answer, "apart")
    links.lay_cables(hosts)
    for let_go, _ in ends:
        os.write(let_go, b"!")
    for _, answer in ends:
        expect(answer, "up")
    return tuple(hosts)


def watch(owner: int, age: str, held: State) -> None:
    """End the hosts, and what runs on them, when their owner has ended."""
    while born(owner) == age:
        time.sleep(LOOK_S)
    state.sweep(held)
    os.kill(os.getpid(), signal.SIGKILL)


def main(owner: int, rates: list[int]) -> None:
    """Hold hosts with links of these rates (bit/s) until killed, or until their owner ends."""
    age = born(owner) if owner else ""
    token = os.environ[TOKEN]
    try:
        held = State(token, os.getpid(), born(os.getpid()), build(rates))
        held.save()
    except OSError as error:
        print(error, flush=True)
        sys.exit(1)
    print("up", flush=True)
    call("prctl", PR_SET_PDEATHSIG, 0, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # whoever started this waits for nothing more
        os.dup2(null, stream)
    if owner:
        watch(owner, age, held)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(rate) for rate in sys.argv[2:]])
