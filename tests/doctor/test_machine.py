"""The doctor's checks of the machine and of what clusters leave behind; its trials end at their deadline."""

from __future__ import annotations

import json
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
from tests.cluster_fixtures import Start, World, wait_until
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


def test_a_long_tmpdir_is_a_note_on_macos(tmp_path: Path) -> None:
    long = tmp_path / ("x" * examine.LONGEST_TMPDIR)
    long.mkdir()
    assert examine.temporary_folder({"TMPDIR": str(long)}, "linux").status == "ok"
    found = examine.temporary_folder({"TMPDIR": str(long)}, "darwin")
    assert (found.status, found.fix) == ("note", "export TMPDIR=/tmp")


def test_missing_settings_are_a_fault(tmp_path: Path) -> None:
    found = examine.settings(str(tmp_path))
    assert found.status == "fault"
    assert Path(shlex.split(found.fix)[-1], "labkit", "__init__.py").samefile(labkit.__file__)
    assert examine.settings().status == "ok"


def test_files_of_a_killed_cluster_are_found_and_the_command_removes_them(
    world: World, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    wait_until(lambda: len(world.cluster_files()) == 3, "the controller's connection files")
    profiles = list(world.folder.glob("profile_*"))
    assert examine.stale_files(profiles).status == "ok"
    world.kill()
    processes.remove(world.files.left())
    # The kernel closes a dead process's sockets a little later: until then a port seems to be in use.
    wait_until(lambda: examine.stale_files(profiles).found.startswith("3 files"), "3 stale files found")
    found = examine.stale_files(profiles)
    assert found.status == "note"
    subprocess.run(found.fix, shell=True, check=True)
    assert world.cluster_files() == [] and examine.stale_files(profiles).status == "ok"


def test_a_cluster_on_another_machine_is_skipped(tmp_path: Path) -> None:
    security = tmp_path / "security"
    security.mkdir()
    state = {"controller": {"state": {"pid": 2**22 - 1}}, "cluster": {}}
    (security / "cluster-.json").write_text(json.dumps(state))
    connection = {"location": "another-host", "interface": "tcp://*", "registration": 9}
    (security / "ipcontroller-client.json").write_text(json.dumps(connection))
    assert examine.stale_files([tmp_path]).status == "ok"
    batch = {"controller": {"state": {"job_id": 7}}, "cluster": {}}
    (security / "cluster-batch.json").write_text(json.dumps(batch))
    assert examine.stale_files([tmp_path]).status == "ok"
    # The same files are stale if the controller was on this examine.
    (security / "ipcontroller-client.json").write_text(json.dumps({"location": "localhost"}))
    assert examine.stale_files([tmp_path]).found.startswith("1 file ")


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
