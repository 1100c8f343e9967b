"""The supervisor removes the files of its own cluster and of no other, and leaves no zombies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from labkit.supervisor import supervised
from tests.cluster_fixtures import wait_until


@pytest.mark.parametrize("successor", [False, True], ids=["alone", "with a successor"])
def test_files_of_a_new_cluster_of_the_same_name_are_kept(tmp_path: Path, successor: bool) -> None:
    (tmp_path / "security").mkdir()
    (tmp_path / "log").mkdir()
    files = [tmp_path / "security" / f"{name}.json" for name in ("cluster-", "ipcontroller-client")]
    environment = {**os.environ, "IPP_PROFILE_DIR": str(tmp_path), "IPP_CLUSTER_ID": ""}
    read_a_line = [sys.executable, "-c", "print(flush=True); input()"]
    job = subprocess.Popen(
        [*supervised("controller"), *read_a_line],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdin and job.stdout.readline() == b"\n"  # now the command runs
    controller = os.getppid() if successor else job.pid  # any other process that is alive
    files[0].write_text(json.dumps({"controller": {"state": {"pid": controller}}}))
    files[1].write_text("{}")
    job.communicate(b"\n", timeout=30)
    assert [file.exists() for file in files] == [successor, successor]


def test_a_log_of_engines_that_ended_before_their_killed_kernel_is_removed(tmp_path: Path) -> None:
    """As on a busy server: Jupyter kills a kernel that has not stopped its cluster within seconds."""
    (tmp_path / "log").mkdir()
    own, others = (tmp_path / "log" / f"ipengine-{name}-7-8.log" for name in ("notebook-1", "notebook-12"))
    for log in (own, others):
        log.write_text("")
    kernel = subprocess.Popen(["sleep", "60"])
    supervisor = supervised("controller")
    supervisor[-1] = str(kernel.pid)
    environment = {**os.environ, "IPP_PROFILE_DIR": str(tmp_path), "IPP_CLUSTER_ID": "notebook-1"}
    with subprocess.Popen([*supervisor, "sleep", "60"], env=environment):
        kernel.kill()
        kernel.wait()
    assert not own.exists() and others.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another process adopts orphans")
def test_an_orphan_that_ends_is_no_zombie_while_the_command_runs() -> None:
    """As engines whose kernel has ended: `connect()` in the next kernel waits until they are gone."""
    job = subprocess.Popen(
        [*supervised("child"), "sh", "-c", "sh -c 'sleep 0.1 & echo $!'; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdin
    orphan = int(job.stdout.readline())
    try:
        wait_until(lambda: not psutil.pid_exists(orphan), "the orphan is gone", 20)
        assert job.poll() is None
    finally:
        job.communicate(b"\n", timeout=30)
    assert job.returncode == 0
