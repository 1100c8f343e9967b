"""`labkit bench mine` times the parts of a student's program beside labkit's, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.exercises import collect, record


def bench(program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["-m", "labkit", "bench", "mine", str(program), "-n", "2", "--rounds", "3", "--json", *options]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    collect(tmp_path)
    return tmp_path / "my_ddp.py"


def test_each_part_stands_beside_labkits(program: Path) -> None:
    program.write_text(f"print('loaded')\n{program.read_text()}")
    done = bench(program, "--average", "tree")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    found = {(row["case"].rpartition("/")[2], row["against"]) for row in rows} - {("step", "ddp-gloo")}
    parts = {(part, "labkit") for part in ("forward", "backward", "averaging", "update", "step")}
    assert found == parts | {("averaging", "Allreduce"), ("step", "Allreduce")}
    assert all(row["case"].startswith("mine/mlp/2x16/tree/") and row["ours"] > 0 for row in rows)
    by_part = {row["case"].rpartition("/")[2]: row["ours"] for row in rows}
    assert by_part.pop("step") == pytest.approx(sum(by_part.values()))


def test_a_slow_part_is_seen_where_it_is(program: Path) -> None:
    head = "def average_by_ring(comm, gradient, weight):\n"
    slow = f"{head}    __import__('time').sleep(0.02)\n"
    program.write_text(program.read_text().replace(head, slow))
    done = bench(program)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    ratios = {row["case"].rpartition("/")[2]: row["ours"] for row in rows}
    assert ratios["averaging"] > 20 > ratios["backward"]


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("load_digits", "read_digits", (), "has no load_digits; `labkit collect` writes a program that has"),
        ("", "", ("--average", "sharded"), "expected --average to be one of mpi, root, tree"),
        ("comm.Sendrecv(", "comm.rank == 1 and 1 / 0\n        comm.Sendrecv(", (), "ZeroDivisionError"),
    ],
)
def test_a_program_that_cannot_be_timed_says_why(
    old: str, new: str, options: tuple[str, ...], said: str, program: Path
) -> None:
    program.write_text(program.read_text().replace(old, new) if old else program.read_text())
    done = bench(program, *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert ("Traceback" in done.stderr) == said.endswith("Error")
