"""The doctor's checks of the machine; its trials end at their deadline."""

from __future__ import annotations

import mmap
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit.doctor import examine, trials
from labkit.doctor.trials import Trial, start_probe
from mpiwatch import launch, processes
from mpiwatch.processes import alive, cores
from tests.cluster_fixtures import wait_until
from tests.doctor.helpers import CLEAN, LINUX, MPIEXEC

NEEDS_ROOT = pytest.mark.skipif(
    not LINUX or subprocess.run(["unshare", "-mu", "true"], check=False, capture_output=True).returncode != 0,
    reason="mounting a file system and changing the host name need Linux and root",
)


@pytest.mark.skipif(cores() < 2, reason="on one core BLAS uses one thread")
def test_many_blas_threads_are_a_note_if_the_user_asked_for_them() -> None:
    lab = start_probe("threads", {**CLEAN, **launch.ONE_THREAD})
    user = start_probe("threads", {**CLEAN, "OMP_NUM_THREADS": "64"})
    outcomes = lab.finish(), user.finish()
    found = examine.blas_threads(*outcomes, {"OMP_NUM_THREADS": "64"}, cores(), cores())
    assert (found.status, found.fix) == ("note", "export OMP_NUM_THREADS=1")
    assert "ranks of your own program" in found.found and "OMP_NUM_THREADS=64" in found.found
    assert examine.blas_threads(*outcomes, {}, cores(), cores()).status == "ok"  # the usual default


@NEEDS_ROOT
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
        "import sys; from labkit.doctor.examine import shared_memory\n"
        "found = shared_memory(4, sys.argv[1]); print(found.status, found.fix)"
    )
    script = 'mount -t tmpfs -o size="$1" tmpfs "$3" && truncate -s 0 "$3/full" && '
    script += '{ [ "$2" = 0 ] || fallocate -l "$2" "$3/full"; } && exec "$4" -c "$5" "$3"'
    arguments = [size, filled, str(tmp_path), sys.executable, program]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(status) and fix in done.stdout


@NEEDS_ROOT
def test_a_host_name_without_an_address_is_a_note() -> None:
    script = 'hostname labkit-no-such-host.invalid && exec "$0" -m labkit.doctor.trials host'
    outcome = Trial(["unshare", "-u", "sh", "-c", script, sys.executable], CLEAN).finish()
    assert examine.host_name(outcome).status == "note"
    assert examine.host_name(start_probe("host", CLEAN).finish()).status == "ok"


def test_missing_settings_are_a_fault(tmp_path: Path) -> None:
    found = examine.settings(str(tmp_path))
    assert found.status == "fault"
    assert Path(shlex.split(found.fix)[-1], "labkit", "__init__.py").samefile(labkit.__file__)
    assert examine.settings().status == "ok"


@pytest.mark.skipif(not LINUX, reason="there is no /dev/shm here")
def test_only_segments_that_no_process_uses_are_forgotten(tmp_path: Path) -> None:
    for name in ("mpich_shm_used", "mpich_shm_forgotten"):
        (tmp_path / name).write_bytes(bytes(8192))
    with open(tmp_path / "mpich_shm_used", "r+b") as file, mmap.mmap(file.fileno(), 8192):
        forgotten = processes.forgotten_segments(str(tmp_path))
    assert forgotten == [str(tmp_path / "mpich_shm_forgotten")]
    found = examine.segments(forgotten)
    assert found.status == "note" and "1 segment " in found.found and forgotten[0] in found.fix
    assert examine.segments([]).status == "ok"


def test_a_hanging_trial_ends_at_its_deadline_with_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os, time; open(f'{tmp_path}/{{os.getpid()}}', 'w'); time.sleep(600)"
    environment = {**CLEAN, **launch.OPEN_MPI}
    trial = Trial([str(MPIEXEC), "-n", "2", sys.executable, "-c", program], environment)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks run")
    monkeypatch.setattr(trials, "DEADLINE_S", 0.1)
    outcome = trial.finish()
    assert outcome.status is None and outcome.describe().startswith("did not end within 0.1 s")
    wait_until(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()), "both ranks ended")
