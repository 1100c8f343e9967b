"""Every check in checks/ on 1, 2, 3, 4 and 5 ranks: one job for each number of ranks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from check_jobs import checks_in, run_checks
from jobs import thorough

CHECKS = checks_in(sorted(Path(__file__).parent.glob("checks/*.py")))


def name_of(check: str) -> str:
    """Return "requests:check_…"."""
    path, name = check.rsplit(":", 1)
    return f"{Path(path).stem}:{name}"


@cache
def faults(p: int) -> dict[str, str]:
    """Run all checks on p ranks, once; return what went wrong, by check."""
    return run_checks(p, CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("p", [1, thorough(2), 3, thorough(4), thorough(5)])
def test_check(p: int, check: str) -> None:
    if check in faults(p):
        pytest.fail(f"{name_of(check)} failed on {p} ranks:\n{faults(p)[check]}", pytrace=False)
