"""Runs that are killed and resumed, in jobs of their own; programs/kill_and_resume.py tries many more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_run_killed_twice_gets_the_weights_of_one_without_a_break(
    run: Run, programs: Path, tmp_path: Path
) -> None:
    """Rank 1 is killed between two steps, then rank 0 while it writes a checkpoint."""
    settings = {
        "algorithm": "ring",
        "momentum": 0.9,
        "decay": 1e-3,
        "accumulate": 2,
        "buffers": "average",
        "shard": "shuffled",
        "average_after_step": False,
        "every": 2,
    }
    for kill in ([1, 11, "after_average"], [0, 17, "writing"], None):
        done = run(2, programs / "kill_and_resume.py", tmp_path, json.dumps({**settings, "kill": kill}))
        assert (done.returncode == 0) == (kill is None), done.stdout
        assert "checkpoint.npz" in {path.name for path in tmp_path.iterdir()}
    assert "the same after resuming" in done.stdout
