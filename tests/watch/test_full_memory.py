"""Ranks that meet where there is no room to: a board elsewhere, or a reason on every rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit import env

P = 3
# For these ranks alone: /dev/shm with the least room in which MPI starts, and a folder with next to none.
LEAST = "512m" if env.is_mpich(env.mpiexec()) else "64k"  # see full_memory.py
OWN = f'mount -t tmpfs -o size={LEAST} tmpfs /dev/shm && mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder for OWN to mount on; skips where this system lets nobody, or not this user, mount."""
    if sys.platform != "linux":
        pytest.skip("there is no /dev/shm here")
    folder = tmp_path / "small"
    folder.mkdir()
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", OWN, str(folder), "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"mounting a file system takes root: {tried.stderr.strip()}")
    return folder


@pytest.mark.parametrize("room", [True, False], ids=["room elsewhere", "no room at all"])
def test_a_full_dev_shm(
    run: Callable[..., subprocess.CompletedProcess[str]],
    programs: Path,
    tmp_path: Path,
    small: Path,
    room: bool,
) -> None:
    folder = tmp_path if room else small
    done = run(P, programs / "full_memory.py", folder, before=("unshare", "-m", "sh", "-c", OWN, str(small)))
    # Open MPI complains before.
    lines = [line[6:] for line in done.stdout.splitlines() if line.startswith("said: ")]
    assert len(lines) == P and len(set(lines)) == 1, done.stdout
    if room:
        assert lines[0] == str(folder)
    else:
        assert lines[0].startswith("rank 0: no room for ") and "[Errno 28]" in lines[0], lines[0]
    assert not list(tmp_path.glob("labkit-flight-recorder-*"))
