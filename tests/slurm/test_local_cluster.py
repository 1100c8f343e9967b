"""The SLURM of the tests leaves nothing behind, even if its owner is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpiwatch.processes import alive
from tests.cluster_fixtures import wait_until
from tests.slurm import local_cluster

ROOT = Path(__file__).parents[2]


def test_the_whole_slurm_ends_with_a_killed_owner() -> None:
    if why := local_cluster.missing():
        pytest.skip(f"SLURM cannot run here: {why}")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.local_cluster", "up", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        text = "".join(iter(owner.stdout.readline, "Ctrl-C ends it.\n"))
        found = re.search(r"SLURM_CONF=(\S+)/slurm.conf", text)
        assert found and "n1, n2" in text
        folder = Path(found[1])
        daemons = [int(file.read_text()) for file in [*folder.glob("run/*.pid"), folder / "munge" / "pid"]]
        assert len(daemons) == 4 and all(map(alive, daemons))
        owner.kill()
        owner.wait()
    wait_until(lambda: not any(map(alive, daemons)), "the daemons have ended", 60)
    wait_until(lambda: not folder.exists(), "the folder is removed", 60)
