"""Every check in checks/ on 1, 2, 3, 4 and 5 ranks: one job for each number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.check_jobs import checks_in, run_checks
from tests.conftest import thorough

HERE = Path(__file__).parent
CHECKS = checks_in(sorted(HERE.glob("*/checks/*.py")))
Faults = Callable[[int], dict[str, str]]


def name_of(check: str) -> str:
    """Return "running:check_…"."""
    path, name = check.rsplit(":", 1)
    return f"{Path(path).stem}:{name}"


@pytest.fixture(scope="session")
def faults() -> Faults:
    """Run all checks on p ranks, once; return what went wrong, by check."""
    known: dict[int, dict[str, str]] = {}

    def of(p: int) -> dict[str, str]:
        if p not in known:
            known[p] = run_checks(p, CHECKS)
        return known[p]

    return of


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("p", [1, thorough(2), 3, thorough(4), thorough(5)])
def test_check(p: int, check: str, faults: Faults) -> None:
    if check in faults(p):
        pytest.fail(f"{name_of(check)} failed on {p} ranks:\n{faults(p)[check]}", pytrace=False)


@pytest.mark.thorough
def test_every_algorithm_on_eight_ranks() -> None:
    name = "check_every_algorithm_gives_the_result_of_one_rank_with_all_gradients"
    chosen = [check for check in CHECKS if check.endswith(f":{name}")]
    assert len(chosen) == 1
    assert run_checks(8, chosen) == {}


@pytest.mark.parametrize("p", [thorough(3), thorough(5)])
def test_a_hundred_sharded_steps_are_plain_ones(p: int) -> None:
    chosen = [f"{HERE / 'train/checks/sharding.py'}:a_hundred_steps_of_every_model"]
    assert run_checks(p, chosen, deadline_s=900) == {}


def test_there_are_checks() -> None:
    assert len(CHECKS) > 10


FAILING = """
import os
import numpy as np

def check_one_rank_fails_before_a_collective(comm):
    doubled = 2 * comm.rank
    assert doubled != 2
    comm.Barrier()

def check_one_rank_fails_on_its_own(comm):
    values = np.arange(3) + 10
    assert comm.rank != 2 or values.sum() == 34

def check_that_ends_its_process(comm):
    comm.Barrier()
    if comm.rank == 0:
        print("the last words of rank 0", flush=True)
        os._exit(3)
    comm.Barrier()

def check_that_passes(comm):
    assert comm.allreduce(1) == comm.size
"""


@pytest.mark.thorough
def test_a_failing_check_shows_its_values_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "unimportable.py").write_text("import no_such_module\ndef check_nothing(comm): pass\n")
    stuck, alone, ended, fine = checks_in([tmp_path / "failing.py"])
    [unimportable] = checks_in([tmp_path / "unimportable.py"])
    faults = run_checks(3, [stuck, alone, unimportable, ended, fine], deadline_s=3)
    assert set(faults) == {stuck, alone, ended, unimportable}

    assert "rank 1 of 3 failed:" in faults[stuck] and "assert 2 != 2" in faults[stuck], faults[stuck]
    for rank in (0, 2):
        assert f"rank {rank} of 3 did not leave the check" in faults[stuck], faults[stuck]
    assert "in check_one_rank_fails_before_a_collective" in faults[stuck], faults[stuck]  # their stacks
    assert "rank 0 of 3 passed\nrank 1 of 3 passed\nrank 2 of 3 failed:" in faults[alone], faults[alone]
    assert "array([10, 11, 12])" in faults[alone], faults[alone]
    assert "the last words of rank 0" in faults[ended], faults[ended]
    assert "No module named 'no_such_module'" in faults[unimportable], faults[unimportable]
