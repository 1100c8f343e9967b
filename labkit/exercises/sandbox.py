"""Run a command so that it cannot reach this machine. Submissions run in it when an instructor grades them.

    python sandbox.py SETTINGS COMMAND …

SETTINGS is JSON: `folder`, which the command may write to; `read_only`, other files and folders that it sees;
`hidden`, folders among them that are to be empty. The command gets Linux namespaces of its own:

- a file system of those folders, with a small /tmp and /dev/shm in memory;
- a network without any card but its loopback;
- process ids: all processes end with the first;
- if root starts it, a user; otherwise a user namespace, in which it has no rights.

Of labkit and mpiwatch, a job in a sandbox sees copies of the modules that it imports, and no others: the rest
holds the references, and functions that do an exercise by themselves.
"""

from __future__ import annotations

import ast
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # run by path with -I -S, Python does not know where labkit is
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from labkit.hosts.namespaces import (
    MOUNT,
    MS_BIND,
    MS_REC,
    NET,
    PR_SET_DUMPABLE,
    USER,
    UTS,
    call,
    leave,
    mount,
)
from mpiwatch import launch
from mpiwatch.processes import LINUX, PR_SET_PDEATHSIG

# From <linux/sched.h>, <sys/mount.h>, <linux/mount.h>, <sys/prctl.h> and <linux/sockios.h>.
IPC, PID = 0x08000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_PRIVATE, MNT_DETACH = 2, 4, 8, 0x40000, 2
MOUNT_SETATTR = 442  # a system call; the C library may lack it
AT_FDCWD, AT_RECURSIVE, RDONLY, NOSUID = -100, 0x8000, 1, 2
PR_SET_NO_NEW_PRIVS = 38
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

ROOT = ".root"  # a folder in `folder`, on which the command's file system is mounted
INSIDE = 1000  # the user's id in a user namespace
FIRST_OWN = 1 << 30  # root gives each command a user id above this one: no account has it
MEMORY_FILES = {"tmp": "64m", "dev/shm": "256m"}
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/sys")
OF_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "openmpi")  # of /etc
DEVICES = ("null", "zero", "full", "random", "urandom")
START_S = 20.0

SOURCES = Path(__file__).resolve().parents[2]
TOPS = "labkit", "mpiwatch"
ALL = "*"

in_use = False  # whether `command` makes a sandbox: a judge of submissions sets it


def copy_modules(roots: Sequence[str], prelude: str, folder: Path) -> None:
    """Copy these modules, and all of labkit and mpiwatch that they and the prelude import, to a folder.

    Of a package, what no other module imports from it stays behind.
    """
    names: dict[str, set[str]] = {}  # of each module, which of its names others import
    left = [(root, ALL) for root in roots] + list(_imports(ast.parse(prelude)))
    while left:
        module, name = left.pop()
        path = _file_of(module)
        if path is None or name in names.get(module, ()):
            continue
        is_new = module not in names
        names.setdefault(module, set()).add(name)
        if "." in module:
            left.append((module.rpartition(".")[0], ""))
        if path.name == "__init__.py":
            left += [(f"{module}.{name}", ALL)] * (name not in ("", ALL))
            left += _imports(_reduced(path, names[module]))
        elif is_new:
            left += _imports(ast.parse(path.read_bytes()))
    for module, wanted in names.items():
        path = _file_of(module)
        assert path is not None
        target = folder / path.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "__init__.py":
            target.write_text(ast.unparse(_reduced(path, wanted)))
        else:
            shutil.copy2(path, target)


def _file_of(module: str) -> Path | None:
    """Return the file of a module of labkit or mpiwatch; None if there is no such module."""
    place = SOURCES.joinpath(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    return found[0] if found and module.split(".", maxsplit=1)[0] in TOPS else None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the modules of ours that are imported, with the names that are imported from them."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in TOPS:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, ALL) for alias in node.names if alias.name.split(".")[0] in TOPS)


def _reduced(path: Path, wanted: set[str]) -> ast.Module:
    """Return the lines of a package that import the names wanted of it; all lines if those do not suffice."""
    tree = ast.parse(path.read_bytes())
    package = ".".join(path.parent.relative_to(SOURCES).parts)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    named = {alias.asname or alias.name for node in imports for alias in node.names}
    if any(_file_of(f"{package}.{name}") is None for name in wanted - named - {"", ALL}):
        return tree
    for node in imports:
        node.names = [alias for alias in node.names if (alias.asname or alias.name) in wanted]
    tree.body = [node for node in imports if node.names]
    return tree


@cache
def refusal() -> str:
    """Return why this system does not allow a sandbox; an empty text if it does."""
    if not LINUX:
        return f"it needs Linux's namespaces, which {sys.platform} lacks"
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-sandbox-") as folder:
            words = _command(["true"], Path(folder), [], [])
            done = subprocess.run(words, capture_output=True, text=True, timeout=START_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it does not start"])[-1]


def command(words: Sequence[str], folder: Path, read_only: Sequence[Path] = ()) -> list[str]:
    """Return the command line that runs a command in a sandbox, if one is in use."""
    if not in_use:
        return list(words)
    package = Path(__file__).resolve().parents[1]
    needed = [Path(sys.prefix), Path(sys.base_prefix), *read_only]
    if package.parent.name in ("site-packages", "dist-packages"):
        needed.append(package.parent)
    seen = [*needed, Path(sysconfig.get_path("stdlib"))]
    if mpiexec := shutil.which(launch.mpiexec()):
        seen += [Path(mpiexec).parents[1], Path(mpiexec).resolve().parents[1]]
    private = {Path.home().resolve(), *Path.home().resolve().parents, *package.parents} - set(needed)
    seen = [each for each in dict.fromkeys(seen) if each not in private and each.exists()]
    inside = {*seen, *map(Path, SYSTEM)}
    shown = [each for each in seen if not inside & {*each.parents} and each not in map(Path, SYSTEM)]
    # An installation for development has its notebooks and examples beside other packages.
    named = {package, *(Path(each).resolve() / package.name for each in sys.path if each)}
    hidden = [each for each in named if each.is_dir() and inside & {*each.parents}]
    return _command(words, folder, shown, hidden)


def _command(words: Sequence[str], folder: Path, shown: Sequence[Path], hidden: Sequence[Path]) -> list[str]:
    settings: dict[str, Any] = {"folder": str(folder.resolve())}
    settings |= {"read_only": list(map(str, shown)), "hidden": list(map(str, hidden))}
    return [sys.executable, "-I", "-S", __file__, json.dumps(settings), *words]


def main(settings: dict[str, Any], words: list[str]) -> int:
    """Run the command; return its exit status."""
    user, group = os.getuid(), os.getgid()
    own = FIRST_OWN + os.getpid() if user == 0 else None
    others = MOUNT | PID | NET | IPC | UTS
    try:
        leave(others)
    except PermissionError:
        own = None
        leave(USER | others)
        maps = {"uid_map": f"{INSIDE} {user} 1", "gid_map": f"{INSIDE} {group} 1"}
        for name, text in {"setgroups": "deny", **maps}.items():
            Path(f"/proc/self/{name}").write_text(text)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc would hide it from its own user
    os.makedirs(os.path.join(settings["folder"], ROOT), exist_ok=True)
    if own is not None:
        for at, folders, files in os.walk(settings["folder"]):
            for name in (".", *folders, *files):
                os.chown(os.path.join(at, name), own, own, follow_symlinks=False)
    first = os.fork()
    if first == 0:
        be_first_process(settings, words, own)
    return status_of(os.waitpid(first, 0)[1])


def be_first_process(settings: dict[str, Any], words: list[str], own: int | None) -> NoReturn:
    """Be process 1 of the new process ids: all others end with it, and it ends with the command."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        socket.sethostname("localhost")  # launchers look their own name up
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        directory = os.getcwd()
        change_root(settings, INSIDE if own is None else own)
        with suppress(OSError):
            os.chdir(directory)
        pid = os.fork()
        if pid == 0:
            if own is not None:
                os.setgroups([])
                os.setresgid(own, own, own)
                os.setresuid(own, own, own)
            call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            os.execvp(words[0], words)
    except OSError as error:
        print(f"no sandbox: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    while True:
        ended, status = os.wait()  # orphans, too
        if ended == pid:
            os._exit(status_of(status))


def change_root(settings: dict[str, Any], user: int) -> None:
    """Let this process see a file system that holds what the command needs, and nothing else."""
    folder, hidden = settings["folder"], settings["hidden"]
    root = os.path.join(folder, ROOT)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755")
    for name, size in MEMORY_FILES.items():
        os.makedirs(f"{root}/{name}")
        mount("tmpfs", f"{root}/{name}", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}")
    for path in SYSTEM:
        if os.path.islink(path):  # /bin is /usr/bin on many systems
            os.symlink(os.readlink(path), f"{root}{path}")
    links = {path for path in SYSTEM if os.path.islink(path)}
    devices = [f"/dev/{name}" for name in DEVICES]
    for path in [*SYSTEM, *(f"/etc/{name}" for name in OF_ETC), *devices, *settings["read_only"]]:
        if path not in links and os.path.exists(path):
            show(path, root)
    for path in hidden:
        mount("tmpfs", f"{root}{path}", "tmpfs", MS_NOSUID)
    show(folder, root, MS_BIND)  # without what is mounted in it: that is `root`
    accounts = {"passwd": f"student:x:{user}:{user}::/:/bin/sh", "group": f"student:x:{user}:"}
    names = {"hosts": "127.0.0.1 localhost\n::1 localhost", "nsswitch.conf": "passwd: files\nhosts: files"}
    for name, text in {**accounts, **names}.items():
        Path(f"{root}/etc/{name}").write_text(f"{text}\n")
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/proc")
    set_read_only(root, True)
    for path in [*(f"{root}/{name}" for name in MEMORY_FILES), f"{root}{folder}"]:
        set_read_only(path, False)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def show(path: str, root: str, flags: int = MS_BIND | MS_REC) -> None:
    """Let a file or a folder be seen at the same place below `root`."""
    if os.path.isdir(path):
        os.makedirs(f"{root}{path}", exist_ok=True)
    else:
        os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
        Path(f"{root}{path}").touch()
    mount(path, f"{root}{path}", flags=flags)


def set_read_only(path: str, on: bool) -> None:
    """Let what is mounted at a path be read only, with all below it, or let it be written to again."""
    attributes = struct.pack("4Q", *((RDONLY | NOSUID, 0) if on else (0, RDONLY)), 0, 0)
    size = ctypes.c_size_t(len(attributes))
    flags = ctypes.c_uint(AT_RECURSIVE if on else 0)
    number, relative_to = ctypes.c_long(MOUNT_SETATTR), ctypes.c_int(AT_FDCWD)
    call("syscall", number, relative_to, path.encode(), flags, attributes, size)


def status_of(status: int) -> int:
    """Return a process's exit status as a shell gives it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
