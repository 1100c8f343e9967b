"""`labkit bench mine` times the parts of a student's program beside labkit's, in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from labkit.exercises import collect, program, record
from tests.conftest import run_python


def bench(program: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = "-n", "2", "--rounds", "3", "--json", *options
    return run_python("-m", "labkit", "bench", "mine", program, *words, code=code)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program without a function of the student's."""
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    collect(tmp_path)
    return tmp_path / "my_ddp.py"


@pytest.fixture
def complete(first: Path) -> Path:
    """Return the program with all functions."""
    for name, exercise in program.places().items():
        record.note(name, True, exercise.text)
    collect(first.parent)
    return first


def test_the_first_program_stands_beside_labkits(first: Path) -> None:
    cases = {row["case"].rpartition("/")[0] for row in json.loads(bench(first).stdout)}
    assert cases == {"mine/softmax/2x16/mpi"}


def test_each_part_stands_beside_labkits(complete: Path) -> None:
    complete.write_text(f"print('loaded')\n{complete.read_text()}")
    rows = json.loads(bench(complete, "--average", "tree").stdout)
    found = {(row["case"].rpartition("/")[2], row["against"]) for row in rows} - {("step", "ddp-gloo")}
    parts = {(part, "labkit") for part in ("gradient", "averaging", "update", "step")}
    assert found == parts | {("averaging", "Allreduce"), ("step", "Allreduce")}
    assert all(row["case"].startswith("mine/mlp/2x16/tree/") and row["ours"] > 0 for row in rows)
    by_part = {row["case"].rpartition("/")[2]: row["ours"] for row in rows}
    assert by_part.pop("step") == pytest.approx(sum(by_part.values()))


def test_a_slow_part_is_seen_where_it_is(complete: Path) -> None:
    head = "def ring_sum(comm, array):\n"
    slow = f"{head}    __import__('time').sleep(0.1)\n"
    complete.write_text(complete.read_text().replace(head, slow))
    rows = json.loads(bench(complete).stdout)
    took = {row["case"].rpartition("/")[2]: row["ours"] for row in rows}
    assert took["averaging"] > 100 and took["averaging"] > took["gradient"]


def text_of(program: Path, *options: str) -> str:
    """Return the last line that the command prints as text."""
    words = "-n", "2", "--rounds", "3", *options
    done = run_python("-m", "labkit", "bench", "mine", program, *words)
    return done.stdout.strip().splitlines()[-1]


def test_the_part_that_costs_most_is_named_with_its_share_and_beside_others(complete: Path) -> None:
    text = complete.read_text()
    slow = "    __import__('time').sleep(0.05)\n"
    complete.write_text(text.replace("def ring_sum(comm, array):\n", f"def ring_sum(comm, array):\n{slow}"))
    said = text_of(complete)
    assert re.fullmatch(
        r"Your averaging \(ring\) takes \d+ % of a step \(\d+\.\d\d of \d+\.\d\d ms\): "
        r"[\d.]+ times labkit's, [\d.]+ times MPI's Allreduce\.",
        said,
    )
    share = re.search(r"takes (\d+) %", said)
    assert share and int(share[1]) > 50


def test_the_layers_of_a_network_are_parts(complete: Path) -> None:
    head = "        return conv_forward("
    complete.write_text(complete.read_text().replace(head, f"        __import__('time').sleep(0.05)\n{head}"))
    options = "--model", "lenet5", "--average", "mpi"
    assert re.match(
        r"Your convolution takes \d+ % of a step .*: [\d.]+ times labkit's\.", text_of(complete, *options)
    )
    rows = json.loads(bench(complete, *options).stdout)
    kinds = {row["case"].rpartition("/gradient/")[2]: row for row in rows if "/gradient/" in row["case"]}
    assert set(kinds) == {"convolution", "dense layers", "pooling", "activations"}
    assert kinds["convolution"]["ours"] > 150  # three convolutions


def test_what_stands_in_is_not_called_the_students(first: Path) -> None:
    assert text_of(first).startswith("The program’s ")


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("load_digits", "read_digits", (), "has no load_digits; `labkit collect` writes a program that has"),
        ("", "", ("--average", "sharded"), "expected --average to be one of mpi, root, tree"),
        ("", "", ("--model", "vgg"), "expected --model to be one of mlp, lenet5, cnn, got 'vgg'"),
        ("comm.Sendrecv(", "comm.rank == 1 and 1 / 0\n        comm.Sendrecv(", (), "ZeroDivisionError"),
    ],
)
def test_a_program_that_cannot_be_timed_says_why(
    old: str, new: str, options: tuple[str, ...], said: str, complete: Path
) -> None:
    complete.write_text(complete.read_text().replace(old, new) if old else complete.read_text())
    is_error = said.endswith("Error")
    done = bench(complete, *options, code=1 if is_error else 2)
    assert said in done.stderr
    assert ('File "' in done.stderr) == is_error
