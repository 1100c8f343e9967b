"""A full /dev/shm: the flight recorder goes elsewhere, or every rank raises the same error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiwatch import launch
from mpiwatch.processes import is_mpich

P = 3
# Mounts a /dev/shm just large enough for MPI to start (see programs/full_memory.py), and a folder too small
# for a flight recorder.
SHM_SIZE = "512m" if is_mpich(launch.mpiexec()) else "64k"
MOUNT = (
    f'mount -t tmpfs -o size={SHM_SIZE} tmpfs /dev/shm && mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
)


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """Return a folder that MOUNT makes small; skip where this system or user cannot mount."""
    if sys.platform != "linux":
        pytest.skip("only Linux has /dev/shm")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["unshare", "-m", "sh", "-c", MOUNT, str(folder), "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting a file system takes root: {tried.stderr.strip()}")
    return folder


@pytest.mark.parametrize("elsewhere", [True, False], ids=["temporary folder has room", "no folder has room"])
def test_a_full_dev_shm(
    run: Callable[..., subprocess.CompletedProcess[str]],
    programs: Path,
    tmp_path: Path,
    small_folder: Path,
    elsewhere: bool,
) -> None:
    folder = tmp_path if elsewhere else small_folder
    mount = ("unshare", "-m", "sh", "-c", MOUNT, str(small_folder))
    done = run(P, programs / "full_memory.py", folder, before=mount)
    # Open MPI prints warnings of its own.
    lines = [line[6:] for line in done.stdout.splitlines() if line.startswith("said: ")]
    assert len(lines) == P and len(set(lines)) == 1, done.stdout
    if elsewhere:
        assert lines[0] == str(folder)
    else:
        assert lines[0].startswith("rank 0: cannot create ") and "[Errno 28]" in lines[0], lines[0]
    assert not list(tmp_path.glob("mpiwatch-flight-recorder-*"))
