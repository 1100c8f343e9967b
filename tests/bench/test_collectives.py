"""`labkit bench collectives` on real ranks: its output, not its times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.cli import ranks
from labkit.schedules import ALLREDUCE
from tests.conftest import thorough

Run = Callable[..., subprocess.CompletedProcess[str]]
BENCH = ("-m", "labkit", "bench", "collectives", "--seconds", "0")
DEADLINE_S = 120


@pytest.mark.parametrize("p", [thorough(1), 3])
def test_without_mpiexec_it_starts_ranks_and_prints_rows(p: int) -> None:
    command = [sys.executable, *BENCH, "--json", "--ranks", str(p), "--sizes", "4B,20B,1KiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    rows = json.loads(done.stdout)
    assert all(list(row) == ["case", "ours", "against", "theirs", "unit", "ratio"] for row in rows)
    compared = {(row["case"], row["against"]) for row in rows}
    for size in ("4B", "20B", "1KiB"):
        assert {(f"{algorithm}/{size}/p{p}", "mpi-allreduce") for algorithm in ALLREDUCE} <= compared
        assert (f"ring/{size}/p{p}", "hand-written") in compared
        assert {(f"auto/{size}/p{p}", other) for other in ("mpi-allreduce", "best")} <= compared
    for row in rows:
        assert row["ours"] > 0 and row["ratio"] == pytest.approx(row["ours"] / row["theirs"])


def test_under_mpiexec_it_uses_those_ranks(run: Run, tmp_path: Path) -> None:
    plot = tmp_path / "costs.png"
    done = run(2, *BENCH, "--refit", "--sizes", "8B,64KiB,128KiB", "--plot", plot)
    assert done.returncode == 0, done.stdout
    progress = "pass ", "auto measures"  # lines on standard error that only long runs print
    head, *lines = [line for line in done.stdout.splitlines() if not line.startswith(progress)]
    assert head.split() == ["size", "algorithm", "time", "algbw", "busbw", "×", "MPI"]
    algorithms = {line.split()[1] for line in lines if line.split()[:1] == ["8B"]}
    assert {
        "mpi-allreduce",
        "hand-written",
        "allgather",
        "shared-memory",
        "shared-memory-copied",
        "mpi-allgather",
        "auto",
        *ALLREDUCE,
    } <= algorithms
    assert [line.split()[:4] for line in lines if line.startswith("auto: ")][1][2:] == ["for", "64"]
    assert "alpha = " in done.stdout and "model/median/p2" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [plot]


def test_a_rank_that_it_started_starts_no_ranks_whatever_the_launcher_sets() -> None:
    command = [sys.executable, *BENCH, "--json", "--sizes", "4B"]
    environment = {name: value for name, value in os.environ.items() if name not in ranks.RANK_VARIABLES}
    done = subprocess.run(
        command,
        env={**environment, ranks.STARTED: "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert {row["case"].split("/")[2] for row in json.loads(done.stdout)} == {"p1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "3"), "all 2 ranks: expected 3 ranks (--ranks), got 2 from mpiexec"),
        (("--plot", "nowhere/costs.png"), "rank 0: cannot write to --plot nowhere/costs.png"),
    ],
)
def test_wrong_options_are_reported_before_anything_is_measured(
    options: tuple[str, ...], message: str, run: Run
) -> None:
    done = run(2, *BENCH, "--sizes", "8B", *options)
    assert done.returncode != 0 and message in done.stdout and "algbw" not in done.stdout
