"""Linux namespaces, from the standard library alone: leave those one is in, enter another process's.

Run as a file it stands in for ssh, which is how MPI starts programs on other machines:

    python namespaces.py FOLDER [OPTION …] HOST COMMAND …

runs COMMAND, in words that a shell reads, on the host of that name of the hosts that FOLDER describes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

# From <linux/sched.h>, <sys/mount.h> and <sys/prctl.h>.
MOUNT, UTS, USER, NET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
PR_SET_DUMPABLE = 4
# Carried by every process on a host, and by what it starts: `down` knows them by it.
TOKEN = "LABKIT_HOSTS_TOKEN"
FOLDER = "LABKIT_HOSTS"


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave(kinds: int) -> None:
    """Move this process into new namespaces of these kinds."""
    call("unshare", kinds)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount a file system, in this process's mount namespace."""
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def enter(pid: int) -> None:
    """Move this process, which has one thread, into the namespaces of another; its directory stays."""
    here = os.getcwd()
    kinds = [kind for kind in ("user", "net", "uts", "mnt") if inode(pid, kind) != inode(os.getpid(), kind)]
    # All are opened first: the user namespace gives the right to enter the others, and /proc may change.
    files = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for file in files:
        call("setns", file, 0)
        os.close(file)
    os.chdir(here)


def inode(pid: int, kind: str) -> int:
    """Return the number of a process's namespace, the same for all processes in it."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def main(folder: str, *arguments: str) -> None:
    """Run a command on a host; see above."""
    words = list(arguments)
    while words[0].startswith("-"):
        words.pop(0)
    name, *command = words
    with open(os.path.join(folder, "state.json")) as file:
        hosts = {host["name"]: host["pid"] for host in json.load(file)["hosts"]}
    if name not in hosts:
        sys.exit(f"there is no host {name}; there are {', '.join(hosts)}")
    enter(hosts[name])
    os.execv("/bin/sh", ["sh", "-c", " ".join(command)])


if __name__ == "__main__":
    main(*sys.argv[1:])
