"""A malformed input of the command line or of a file: a message, exit status 2, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.cli.malformed import LONG, NOTEBOOK, RESUME, RUN, Case, one, senseless
from tests.conftest import run_python, thorough

CASES, PARTS = 500, 20
TOGETHER_S = 800  # for all calls of a test, on a busy machine
ROOT = Path(__file__).parents[2]
# The inputs that an audit found to end in a traceback, or to be accepted.
KNOWN = [
    Case(("hosts", "up", "--n", LONG)),
    Case(("hosts", "up", "--n", "²")),
    Case(("hosts", "up", "--slow", "²=1gbit")),
    Case(("hosts", "up", "--slow", f"{'9' * 5000}=1gbit")),
    Case(("hosts", "up", "--bandwidth", f"{LONG}gbit")),
    Case(("hosts", "status"), (2,), {"LABKIT_HOSTS": "hosts"}, {"hosts/state.json": b"[]"}),
    Case(("hosts", "up"), (2,), {"LABKIT_HOSTS": "hosts"}, {"hosts/thesis.tex": b"written for a year"}),
    Case(("run", "file"), (2,), {"SLURM_NTASKS": "x"}),
    Case(("run", "--json", "", "file")),
    Case(("run", "--json", "/nonexistent/x", "file")),
    Case(("run", "--deadline", "nan", "file")),
    Case(("bench", "collectives", "--sizes", LONG)),
    Case(("bench", "collectives", "--sizes", f"{LONG}MiB")),
    Case(("bench", "collectives", "--seconds", "nan")),
    Case(("checklist", "run"), (2,), {}, {"run/run.json": b'{"a":' * 100_000}),
    Case(("release", "x" * 300)),
    Case(("train", "--out", "")),
    Case(("lab", "--folder", "")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a notebook, an empty folder and a file."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "empty").mkdir()
    (folder / "file").write_text("1\n")
    (folder / "notebook.ipynb").write_text(json.dumps(NOTEBOOK))
    training = ("train", "--out", "run", *RUN, "--epochs", "1")
    run_python("-m", "labkit", *training, cwd=folder)
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def faults(cases: list[Case], source: Path, place: Path) -> str:
    """Run the commands, each in a copy of the folder; return what is wrong with how they ended."""
    lines, before = [], []
    for number, case in enumerate(cases):
        folder = place / str(number)
        shutil.copytree(source, folder)
        for name, content in case.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        before.append(contents(folder))
        variables = {"LABKIT_HOSTS": str(folder / "no-hosts"), **case.variables}
        lines.append(json.dumps([str(folder), case.arguments, variables]))
    done = run_python("-m", "tests.cli.malformed", cwd=ROOT, input="\n".join(lines), timeout=TOGETHER_S)
    codes = [int(code) for code in done.stdout.split()]
    assert len(codes) == len(cases), done.stderr
    found = []
    for number, (case, code) in enumerate(zip(cases, codes, strict=True)):
        output = Path(f"{place / str(number)}.output").read_text(errors="replace")
        wrong = [
            "a traceback" * ("Traceback" in output),
            f"exit status {code}" * (code not in case.codes),
            "no message" * (not output),
            "files changed" * (code != 0 and contents(place / str(number)) != before[number]),
        ]
        if any(wrong):
            found.append(f"{case}: {', '.join(filter(None, wrong))}\n{output[-1500:]}")
    return "\n\n".join(found)


def test_inputs_that_once_ended_in_a_traceback(folder: Path, tmp_path: Path) -> None:
    assert faults(KNOWN, folder, tmp_path) == ""


@pytest.mark.parametrize("part", [-1, *map(thorough, range(PARTS))])
def test_malformed_inputs(part: int, folder: Path, tmp_path: Path) -> None:
    """The first part is a handful; the others are 500 together."""
    run = {name: (folder / "run" / name).read_text() for name in ("run.json", "iterations.csv")}
    checkpoint = (folder / "run/checkpoint.npz").read_bytes()
    random = Random(part)
    cases = [one(random, run, checkpoint) for _ in range(CASES // PARTS if part >= 0 else 8)]
    assert faults(cases, folder, tmp_path) == ""


CHECKPOINTS = 120


@pytest.mark.parametrize("count", [4, thorough(CHECKPOINTS)])
def test_checkpoints_that_are_whole_and_make_no_sense(count: int, folder: Path, tmp_path: Path) -> None:
    checkpoint = (folder / "run/checkpoint.npz").read_bytes()
    random = Random(1)
    cases = [
        Case(RESUME, (0, 2), {}, {"run/checkpoint.npz": senseless(random, checkpoint)}) for _ in range(count)
    ]
    assert faults(cases, folder, tmp_path) == ""
