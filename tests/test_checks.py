"""Every check in checks/ on 1, 2, 3, 4 and 5 ranks: one job for each number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from check_jobs import checks_in, run_checks
from tests import lab_checks
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
            known[p] = run_checks(p, CHECKS, program=lab_checks.PROGRAM)
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
    assert run_checks(8, chosen, program=lab_checks.PROGRAM) == {}
