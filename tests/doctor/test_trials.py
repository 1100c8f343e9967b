"""Trials end at their deadline, with all that they have started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from labkit.doctor import trials
from labkit.doctor.trials import Trial
from mpiwatch import env
from mpiwatch.processes import alive
from tests.cluster_fixtures import wait_until
from tests.doctor.helpers import CLEAN, MPIEXEC


def test_a_hanging_trial_ends_at_its_deadline_with_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os, time; open(f'{tmp_path}/{{os.getpid()}}', 'w'); time.sleep(600)"
    environment = {**CLEAN, **env.OPEN_MPI}
    trial = Trial([str(MPIEXEC), "-n", "2", sys.executable, "-c", program], environment)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks run")
    monkeypatch.setattr(trials, "DEADLINE_S", 0.1)
    outcome = trial.finish()
    assert outcome.status is None and outcome.describe().startswith("did not end within 0.1 s")
    wait_until(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()), "both ranks ended")
