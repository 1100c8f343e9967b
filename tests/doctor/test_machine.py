"""The doctor's checks of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.doctor import machine
from labkit.doctor.trials import Trial, start_probe
from mpiwatch import env
from mpiwatch.processes import cores
from tests.doctor.helpers import CLEAN, LINUX

needs_root = pytest.mark.skipif(
    not LINUX or subprocess.run(["unshare", "-mu", "true"], check=False, capture_output=True).returncode != 0,
    reason="mounting a file system and changing the host name need Linux and root",
)


@pytest.mark.skipif(cores() < 2, reason="on one core BLAS uses one thread")
def test_many_blas_threads_are_a_note_if_the_user_asked_for_them() -> None:
    lab = start_probe("threads", {**CLEAN, **env.ONE_THREAD})
    user = start_probe("threads", {**CLEAN, "OMP_NUM_THREADS": "64"})
    outcomes = lab.finish(), user.finish()
    found = machine.blas_threads(*outcomes, {"OMP_NUM_THREADS": "64"}, cores(), cores())
    assert (found.status, found.fix) == ("note", "export OMP_NUM_THREADS=1")
    assert "ranks of your own program" in found.found and "OMP_NUM_THREADS=64" in found.found
    assert machine.blas_threads(*outcomes, {}, cores(), cores()).status == "ok"  # the usual default


@needs_root
@pytest.mark.parametrize(
    ("size", "filled", "status", "fix"),
    [
        ("2m", "0", "fault", "1g"),
        ("64m", "0", "note", "1g"),  # the default of a container
        ("512m", "0", "ok", ""),
        ("512m", "500m", "fault", "ls -lS"),
    ],
)
def test_too_little_shared_memory(tmp_path: Path, size: str, filled: str, status: str, fix: str) -> None:
    program = (
        "import sys; from labkit.doctor.machine import shared_memory\n"
        "found = shared_memory(4, sys.argv[1]); print(found.status, found.fix)"
    )
    script = 'mount -t tmpfs -o size="$1" tmpfs "$3" && truncate -s 0 "$3/full" && '
    script += '{ [ "$2" = 0 ] || fallocate -l "$2" "$3/full"; } && exec "$4" -c "$5" "$3"'
    arguments = [size, filled, str(tmp_path), sys.executable, program]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(status) and fix in done.stdout


@needs_root
def test_a_host_name_without_an_address_is_a_note() -> None:
    script = 'hostname labkit-no-such-host.invalid && exec "$0" -m labkit.doctor.probe host'
    outcome = Trial(["unshare", "-u", "sh", "-c", script, sys.executable], CLEAN).finish()
    assert machine.host_name(outcome).status == "note"
    assert machine.host_name(start_probe("host", CLEAN).finish()).status == "ok"


def test_a_long_tmpdir_is_a_note_on_macos(tmp_path: Path) -> None:
    long = tmp_path / ("x" * machine.LONGEST_TMPDIR)
    long.mkdir()
    assert machine.temporary_folder({"TMPDIR": str(long)}, "linux").status == "ok"
    found = machine.temporary_folder({"TMPDIR": str(long)}, "darwin")
    assert (found.status, found.fix) == ("note", "export TMPDIR=/tmp")
