"""Notebooks run unchanged, and pass as tests, with their ranks in a SLURM job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_fixtures import World
from tests.slurm.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
LIMIT_S = 900  # on a busy machine


@pytest.mark.parametrize("notebook", ["00_meet_the_cluster", "04_averaging_gradients"])
def test_a_notebook_passes_on_slurm(notebook: str, world: World, slurm: LocalCluster) -> None:
    done = subprocess.run(
        # The saved outputs come from ranks that share memory, so only errors and assertions count here.
        [sys.executable, "-m", "pytest", "-q", "--nbval-lax", f"notebooks/{notebook}.ipynb"],
        env=world.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    record = slurm.command("scontrol", "--oneliner", "show", "job")
    assert "JobName=allreduce-lab" in record  # the ranks were really a job
    assert not slurm.jobs()
