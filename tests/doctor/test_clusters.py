"""The doctor's checks of ipyparallel's settings, and of what clusters leave behind."""

from __future__ import annotations

import json
import mmap
import shlex
import subprocess
from pathlib import Path

import pytest

import labkit
from labkit.doctor import clusters
from mpiwatch import leftovers
from tests.cluster_fixtures import Start, World, wait_until
from tests.doctor.helpers import LINUX


def test_missing_settings_are_a_fault(tmp_path: Path) -> None:
    found = clusters.settings(str(tmp_path))
    assert found.status == "fault"
    assert Path(shlex.split(found.fix)[-1], "labkit", "__init__.py").samefile(labkit.__file__)
    assert clusters.settings().status == "ok"


def test_files_of_a_killed_cluster_are_found_and_the_command_removes_them(
    world: World, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    wait_until(lambda: len(world.cluster_files()) == 3, "the controller's connection files")
    profiles = list(world.folder.glob("profile_*"))
    assert clusters.stale_files(profiles).status == "ok"
    world.kill()
    leftovers.remove(world.files.left())
    # The kernel closes a dead process's sockets a little later: until then a port seems to be in use.
    wait_until(lambda: clusters.stale_files(profiles).found.startswith("3 files"), "3 stale files found", 20)
    found = clusters.stale_files(profiles)
    assert found.status == "note"
    subprocess.run(found.fix, shell=True, check=True)
    assert world.cluster_files() == [] and clusters.stale_files(profiles).status == "ok"


def test_a_cluster_on_another_machine_is_skipped(tmp_path: Path) -> None:
    security = tmp_path / "security"
    security.mkdir()
    state = {"controller": {"state": {"pid": 2**22 - 1}}, "cluster": {}}
    (security / "cluster-.json").write_text(json.dumps(state))
    connection = {"location": "another-host", "interface": "tcp://*", "registration": 9}
    (security / "ipcontroller-client.json").write_text(json.dumps(connection))
    assert clusters.stale_files([tmp_path]).status == "ok"
    batch = {"controller": {"state": {"job_id": 7}}, "cluster": {}}
    (security / "cluster-batch.json").write_text(json.dumps(batch))
    assert clusters.stale_files([tmp_path]).status == "ok"
    # The same files are stale if the controller was on this machine.
    (security / "ipcontroller-client.json").write_text(json.dumps({"location": "localhost"}))
    assert clusters.stale_files([tmp_path]).found.startswith("1 file ")


@pytest.mark.skipif(not LINUX, reason="there is no /dev/shm here")
def test_only_segments_that_no_process_uses_are_forgotten(tmp_path: Path) -> None:
    for name in ("mpich_shm_used", "mpich_shm_forgotten"):
        (tmp_path / name).write_bytes(bytes(8192))
    with open(tmp_path / "mpich_shm_used", "r+b") as file, mmap.mmap(file.fileno(), 8192):
        forgotten = leftovers.forgotten_segments(str(tmp_path))
    assert forgotten == [str(tmp_path / "mpich_shm_forgotten")]
    found = clusters.segments(forgotten)
    assert found.status == "note" and "1 segment " in found.found and forgotten[0] in found.fix
    assert clusters.segments([]).status == "ok"
