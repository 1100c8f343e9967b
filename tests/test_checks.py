"""Every check in checks/ on 1, 2, 3, 4 and 5 ranks: one job for each number of ranks."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = [
    f"{file.stem}:{node.name}"
    for file in sorted(HERE.glob("*/checks/*.py"))
    for node in ast.parse(file.read_text()).body  # not imported: that would make pytest an MPI process
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="session")
def job(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], tuple[set[str], str]]:
    """Run the checks on p ranks, once; return the names of those that passed, and all that the ranks said."""
    done: dict[int, tuple[set[str], str]] = {}

    def once(p: int) -> tuple[set[str], str]:
        if p not in done:
            report = tmp_path_factory.mktemp("checks") / f"{p}.txt"
            report.touch()
            said = run(p, HERE / "run_checks.py", report)
            done[p] = set(report.read_text().split()), f"exit status {said.returncode}\n{said.stdout}"
        return done[p]

    return once


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_check(p: int, check: str, job: Callable[[int], tuple[set[str], str]]) -> None:
    passed, said = job(p)
    if check not in passed:
        failed = f"{check.split(':')[1]} failed on rank" in said
        pytest.fail(
            f"on {p} ranks {check} {'failed' if failed else 'was not reached'}:\n{said}", pytrace=False
        )


def test_every_way_to_average_on_eight_ranks(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    name = "check_every_way_leaves_what_one_rank_makes_of_all_gradients"
    done = run(8, HERE / "run_checks.py", tmp_path / "report.txt", name)
    assert (tmp_path / "report.txt").read_text().split() == [f"averaging:{name}"], done.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) > 10
