"""Linux namespaces, from the standard library alone: leave one's own, and enter another process's.

Run as a file, it replaces ssh, with which MPI starts programs on other machines:

    python namespaces.py FOLDER [OPTION …] HOST COMMAND …

runs COMMAND, words that a shell reads, on the host of that name. FOLDER describes the hosts.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import sys

# From <linux/sched.h>, <sys/mount.h> and <sys/prctl.h>.
MOUNT, UTS, USER, NET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
PR_SET_DUMPABLE = 4
# An environment variable of every process on a host, and of its children: `down` finds them by it.
TOKEN = "LABKIT_HOSTS_TOKEN"
FOLDER = "LABKIT_HOSTS"
# A path that needs quotes, but that Open MPI writes into COMMAND without them; otherwise empty.
PREFIX = "LABKIT_PREFIX"


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave(namespaces: int) -> None:
    """Move this process into new namespaces: a sum of MOUNT, UTS, USER and NET."""
    call("unshare", namespaces)


def mount(source: str, target: str, type_: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system in this process's mount namespace."""
    call("mount", source.encode(), target.encode(), type_.encode(), ctypes.c_ulong(flags), data.encode())


def enter(pid: int) -> None:
    """Move this process, which has one thread, into the namespaces of another; keep its working directory."""
    directory = os.getcwd()
    types = [name for name in ("user", "net", "uts", "mnt") if inode(pid, name) != inode(os.getpid(), name)]
    # Open all of them first: the user namespace gives the right to enter the others, and /proc may change.
    files = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in types]
    for file in files:
        call("setns", file, 0)
        os.close(file)
    os.chdir(directory)


def inode(pid: int, type_: str) -> int:
    """Return the number of a process's namespace, which all processes in it share."""
    return os.stat(f"/proc/{pid}/ns/{type_}").st_ino


def main(folder: str, *arguments: str) -> None:
    """Run a command on a host, in place of this process."""
    words = list(arguments)
    while words[0].startswith("-"):
        words.pop(0)
    name, *command = words
    with open(os.path.join(folder, "state.json")) as file:
        hosts = {host["name"]: host["pid"] for host in json.load(file)["hosts"]}
    if name not in hosts:
        sys.exit(f"there is no host {name}; the hosts are {', '.join(hosts)}")
    line = " ".join(command)
    prefix = os.environ.get(PREFIX)
    if prefix:
        line = line.replace(prefix, shlex.quote(prefix))
    enter(hosts[name])
    os.execv("/bin/sh", ["sh", "-c", line])


if __name__ == "__main__":
    main(*sys.argv[1:])
