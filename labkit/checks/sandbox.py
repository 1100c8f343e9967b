"""Run a command in a sandbox that bubblewrap makes. Submissions run in one when an instructor grades them.

What the command sees: the system's programs and libraries, the environment without labkit, a few files that
the caller names, and FOLDER, a folder in memory. It has no network, its own process ids, System V segments
and host name, and no rights. The folder's size is limited; all its files, /tmp and /dev/shm share it. The
caller gets the folder through a `Handover`, since it exists only inside.

If root calls, bubblewrap runs twice. The first one, with root's rights, shows the files, which another user
might not be allowed to read. The second one, as a user that no account has, takes everything else away.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from labkit.checks import cgroup
from labkit.checks.limits import FOLDER_BYTES, JOB_MEMORY_BYTES, PROCESSES, hard_limits
from labkit.checks.system_calls import call_filter
from mpiwatch import launch
from mpiwatch.processes import LINUX

FOLDER = "/tmp/job"  # of the command, as the command sees it; its working directory is `work` in it
SHOWN = "/run/labkit"  # where the command sees the caller's files
INSIDE = Path(__file__).with_name("inside.py")  # labkit.checks.inside, which runs by its path
FIRST_USER = 1 << 30  # root gives each command a user id above this one: no account has it
START_S = 20.0  # for an empty command, to see whether the system allows a sandbox
SCOPE_S = 5.0  # for systemd to start an empty command

# What a system consists of. A clone or a course may lie in /opt, /usr/local or /usr/src, so those stay away.
SYSTEM = (
    *("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/bin"),
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/share/zoneinfo", "/sys/devices/system"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    "/etc/openmpi",
)
# What an MPI library, a Python and an environment consist of, in the folder where they are installed.
PARTS = "bin", "etc", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg"
OF_MPI = (
    "openmpi",
    "mpich",
    "pmix",
    "prte",
    "hwloc",
)  # folders in `share`, and in a `lib` that others use, too
SHARED = Path("/"), Path("/usr"), Path("/usr/local")  # where others install things as well
NAMESPACES = "user", "pid", "net", "ipc", "uts"
DEVICES = "null", "zero", "full", "random", "urandom"
# If memory runs out, the system ends the job first, and not the grader. bubblewrap reads the filter of system
# calls from a descriptor.
START = '{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null; exec "$@" 9<"$0"'
MOST_MEMORY_BYTES = JOB_MEMORY_BYTES + FOLDER_BYTES  # of a job, in its cgroup

in_use = False  # whether jobs run in a sandbox: a judge of submissions sets it


class Handover:
    """Gets the folder of a command in a sandbox: `theirs` is the command's standard input.

    `group` is the command's cgroup; None where systemd makes it, or where the system allows none.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._descriptor = -1
        self.group = None if scope() else cgroup.make(MOST_MEMORY_BYTES)

    @property
    def theirs(self) -> int:
        """Return the descriptor that is the command's standard input."""
        return self._theirs.fileno()

    def folder(self, deadline_s: float) -> Path:
        """Return the path by which this process sees the folder, also after the command's end.

        Raise OSError if the command does not start.
        """
        self._theirs.close()
        self._ours.settimeout(deadline_s)
        _, descriptors, _, _ = socket.recv_fds(self._ours, 16, 1)
        if not descriptors:
            raise OSError("the sandbox does not start")
        self._descriptor = descriptors[0]
        return Path(f"/proc/self/fd/{self._descriptor}")

    def start_command(self) -> None:
        """Let the command begin: its files are in the folder."""
        self._ours.send(b"1")

    def close(self) -> None:
        """Give the folder back, after the command's end; `folder`'s path is no longer valid."""
        self._ours.close()
        self._theirs.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self.group is not None:
            cgroup.remove(self.group)
            self.group = None


@cache
def refusal() -> str:
    """Return why this system does not allow a sandbox; an empty text if it does."""
    if not LINUX:
        return f"it needs Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return "the program bwrap is missing: install bubblewrap"
    handover = Handover()
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-sandbox-") as folder:
            process = subprocess.Popen(
                command(["true"], Path(folder), group=handover.group),
                stdin=handover.theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                handover.folder(START_S)
                handover.start_command()
            except OSError:
                process.kill()
            errors = process.communicate(timeout=START_S)[1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        handover.close()
    if process.returncode == 0:
        return ""
    lines = errors.strip().splitlines()
    return lines[-1] if lines else "bwrap does not start"


def variables() -> dict[str, str]:
    """Return environment variables of a command in a sandbox."""
    folders = [str(Path(sys.executable).parent)]
    mpiexec = shutil.which(launch.mpiexec())
    if mpiexec:
        folders.append(str(Path(mpiexec).parent))
    return {
        "PATH": ":".join([*folders, "/usr/local/bin", "/usr/bin", "/bin"]),
        "TMPDIR": "/tmp",
        # MPICH's ranks would share memory by System V segments, which the filter of system calls refuses.
        "UCX_TLS": "posix,self",
    }


def command(
    words: Sequence[str],
    scratch: Path,
    shown: Mapping[str, Path] | None = None,
    *,
    group: Path | None,
) -> list[str]:
    """Return the command line that runs a command in a sandbox; its standard input is a Handover's `theirs`.

    `scratch` is a folder for files that bubblewrap reads. `shown` maps names in SHOWN to files and folders
    that the command may read. `group` is the Handover's.
    """
    limited = [*scope(), *cgroup.joining(group)]
    scratch = scratch.resolve()
    is_root = os.getuid() == 0
    user = FIRST_USER + os.getpid() if is_root else os.getuid()
    inside = [sys.executable, "-I", "-S", f"{SHOWN}/{INSIDE.name}", FOLDER, json.dumps(hard_limits()), *words]
    files = {f"{SHOWN}/{INSIDE.name}": INSIDE, **_accounts(user, scratch)}
    files |= {f"{SHOWN}/{name}": path.resolve() for name, path in (shown or {}).items()}
    view = _view(files)
    program = call_filter()
    filter_file = scratch / "filter"
    filter_file.write_bytes(program)
    filter_words = ["--seccomp", "9"] if program else []
    shell = ["sh", "-c", START, str(filter_file)]
    apart = [*("--unshare-" + name for name in NAMESPACES), "--unshare-cgroup-try", "--disable-userns"]
    apart += [
        "--hostname",
        "localhost",
        "--new-session",
        "--die-with-parent",
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        *filter_words,
    ]
    if not is_root:
        return [*limited, *shell, "bwrap", *view, *apart, "--remount-ro", "/", *inside]
    first = [
        "bwrap",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--cap-add",
        "CAP_SETUID",
        "--cap-add",
        "CAP_SETGID",
    ]
    # The second one needs a /proc that it may write to, in order to close user namespaces; it covers it.
    first += [*view, "--bind", "/proc", "/proc", "--remount-ro", "/"]
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*limited, *shell, *first, *drop, "bwrap", "--dev-bind", "/", "/", *apart, *inside]


@cache
def scope() -> tuple[str, ...]:
    """Return the first words of a command that systemd holds to the limits of a job; none where it cannot.

    It makes a cgroup: of its memory, the kernel also counts what belongs to no process.
    """
    if shutil.which("systemd-run") is None:
        return ()
    user = os.getuid()
    words = ["systemd-run", "--scope", "--quiet", "--collect", "--no-ask-password"]
    if user != 0:
        words = ["env", f"XDG_RUNTIME_DIR=/run/user/{user}", *words, "--user"]
    most = {"MemoryMax": MOST_MEMORY_BYTES, "MemorySwapMax": 0, "TasksMax": 2 * PROCESSES}
    for name, value in most.items():
        words += ["-p", f"{name}={value}"]
    words.append("--")
    try:
        done = subprocess.run(
            [*words, "echo", "held"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SCOPE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(words) if done.stdout == "held\n" else ()


def _accounts(user: int, scratch: Path) -> dict[str, Path]:
    """Write the files of /etc that tell names; return them by their paths in the sandbox."""
    texts = {
        "passwd": f"student:x:{user}:{user}::{FOLDER}:/bin/sh\n",
        "group": f"student:x:{user}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    files = {}
    for name, text in texts.items():
        files[f"/etc/{name}"] = scratch / name
        files[f"/etc/{name}"].write_text(text)
        files[f"/etc/{name}"].chmod(0o644)
    return files


def _view(files: Mapping[str, Path]) -> list[str]:
    """Return bubblewrap's options for the file system: folders in memory, and what can only be read."""
    options = ["--perms", "0755", "--tmpfs", "/dev"]
    for name in DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        options += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    options += ["--symlink", "/tmp/shm", "/dev/shm", "--remount-ro", "/dev"]
    options += [
        "--perms",
        "1777",
        "--size",
        str(FOLDER_BYTES),
        "--tmpfs",
        "/tmp",
        "--perms",
        "1777",
        "--dir",
        "/tmp/shm",
    ]
    places = {str(path): path for path in visible()}
    places.update(files)
    folders = {"/proc", "/run", "/sys/class/net"}  # UCX complains if the last one is missing
    for place in places:
        folders.update(map(str, Path(place).parents))
    for folder in sorted(folders - {"/"} - places.keys()):
        if not _is_below(folder, [place for place, path in places.items() if path.is_dir()]):
            options += ["--perms", "0755", "--dir", folder]
    real = [place for place, path in places.items() if not path.is_symlink()]
    for place, path in sorted(places.items()):
        # On many systems /bin is a link to usr/bin.
        is_link = path.is_symlink() and str(path.resolve()) in real
        if is_link or (path.is_symlink() and _is_below(str(path.resolve()), real)):
            options += ["--symlink", os.readlink(path), place]
        else:
            options += ["--ro-bind", str(path), place]
    for folder in hidden(list(visible())):
        options += ["--perms", "0755", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    return options


@cache
def visible() -> tuple[Path, ...]:
    """Return the files and folders of the system and the environment, which a command sees."""
    places = [Path(path) for path in SYSTEM]
    mpiexec = shutil.which(launch.mpiexec())
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]]
    if mpiexec:
        prefixes += [Path(mpiexec).parents[1], Path(mpiexec).resolve().parents[1]]
    for prefix in prefixes:
        places += _parts_of(prefix)
    places += [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    if site.ENABLE_USER_SITE:
        places.append(Path(site.getusersitepackages()))
    existing = [place for place in dict.fromkeys(places) if os.path.exists(place)]
    real = [str(place) for place in existing if not place.is_symlink()]
    return tuple(place for place in existing if not _is_below(str(place), real))


def _parts_of(prefix: Path) -> list[Path]:
    """Return what belongs to an environment or an MPI library that is installed in a folder."""
    shares = [prefix / "share" / name for name in OF_MPI]
    if prefix not in SHARED:
        return [*(prefix / name for name in PARTS), *shares]
    libraries = [*prefix.glob("lib/lib*.so*"), *prefix.glob("lib64/lib*.so*"), *prefix.glob("lib/python3*")]
    return [prefix / "bin", *libraries, *(prefix / "lib" / name for name in OF_MPI), *shares]


def hidden(places: Sequence[Path]) -> list[str]:
    """Return folders below these that hold references or other people's work.

    These are labkit, its clone, and the course, which is the working directory.
    """
    package = Path(__file__).resolve().parents[1]
    folders = {package, Path.cwd()}
    if (package.parent / ".git").exists():
        folders.add(package.parent)
    for place in places:
        folders.add(place / package.name)  # a user's own site-packages
        for packages in ("site-packages", "dist-packages"):
            folders.update(place.glob(f"{packages}/{package.name}"))
            folders.update(place.glob(f"python3*/{packages}/{package.name}"))
    within = [str(place) for place in places]
    covered = [str(folder) for folder in folders if folder.is_dir() and _is_below(str(folder), within)]
    # A folder that holds something visible cannot be covered: it is none of a system's or an environment's.
    return sorted(folder for folder in covered if not any(_is_below(place, [folder]) for place in within))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    """Tell whether a path is in one of these folders."""
    return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
