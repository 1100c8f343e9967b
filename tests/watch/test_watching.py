"""The watching communicator on real ranks: it is MPI's own where nothing is wrong, and reports what is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_every_fault_in_200_random_programs_is_reported_and_none_without(run: Run, programs: Path) -> None:
    done = run(4, programs / "random_collectives.py", 0, 200)
    assert done.stdout.strip() == "200 of 200 faults reported"


@pytest.mark.parametrize("p", [1, 3, 4])
def test_every_call_is_mpis_own(run: Run, programs: Path, p: int) -> None:
    assert run(p, programs / "watched_calls.py").stdout.strip() == "all calls compared"


def test_a_rank_whose_program_has_ended_is_named_and_not_killed(run: Run, programs: Path) -> None:
    done = run(3, programs / "rank_ends_early.py")
    assert "rank 1 finished collective #1 (Barrier, rank_ends_early.py line 11) but never joined #2: " in (
        done.stdout
    )
    assert "#2: it has ended its program\n" in done.stdout
    assert done.returncode == 0, done.stdout
