"""Watched communicators on real ranks: they give the results of mpi4py's own and report what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import thorough

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("n", [40, thorough(200)])
def test_each_fault_in_n_random_programs_is_reported_and_nothing_else(
    run: Run, programs: Path, n: int
) -> None:
    done = run(4, programs / "random_collectives.py", 0, n)
    assert done.stdout.strip() == f"{n} of {n} faults reported"


@pytest.mark.parametrize("p", [1, 3, thorough(4)])
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path, p: int) -> None:
    assert run(p, programs / "watched_calls.py").stdout.strip() == "all calls compared"


def test_a_rank_whose_program_has_ended_is_named_and_not_killed(run: Run, programs: Path) -> None:
    done = run(3, programs / "rank_ends_early.py")
    assert "rank 1 finished collective #1 (Barrier, rank_ends_early.py line 11) but never joined #2: " in (
        done.stdout
    )
    assert "#2: it has ended its program\n" in done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("p", [thorough(2), 3])
def test_ranks_exit_after_a_hang_that_left_a_message(run: Run, programs: Path, p: int) -> None:
    """MPICH aborts in MPI_Finalize if a large message was never received."""
    done = run(p, programs / "message_left_at_exit.py")
    assert done.stdout.strip() == str([True] + [False] * (p - 1))
    assert done.returncode == 0


def test_a_wait_for_a_request_that_cannot_complete_is_reported(run: Run, programs: Path) -> None:
    done = run(3, programs / "waiting_for_requests.py")
    # MPICH prints lines about what the hangs have left.
    said = [line for line in done.stdout.splitlines() if not line.startswith("MPICH: ")]
    assert sorted(said) == [f"rank {rank} done" for rank in range(3)]
