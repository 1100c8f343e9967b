"""Runs of `labkit train` that are killed at any moment and resumed, and runs that need not be resumed."""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from labkit.files import UNFINISHED
from labkit.train.run_record import load_iterations
from tests.conftest import kill_tree, run_commands, started, thorough

TRAIN = ("-m", "labkit", "train")
STEPS = 12  # three in an epoch
OPTIONS = (
    "--model", "mlp", "--samples", "90", "--batch", "30", "--shard", "shuffled", "--iterations", str(STEPS),
    "--no-contributions", "--log-every", "1",
)  # fmt: skip
PLAIN = "--momentum", "0.5"
SHARDED = "--optimizer", "adamw", "--shard-state", "parameters", "--algorithm", "ring", "--bucket-mb", "0.004"
RESULTS = "model.npz", "run.json", "iterations.csv", "trace.json", "loss.png", "timeline.png"


def results(folder: Path) -> Any:
    """Return what a run has computed, without times."""
    run = json.loads((folder / "run.json").read_text())
    with (folder / "iterations.csv").open(newline="") as file:
        iterations = [(row["rank"], row["iteration"], row["loss"]) for row in csv.DictReader(file)]
    epochs = [[row[name] for name in row if not name.endswith("_s")] for row in run["epochs"]]
    ended = [[row[name] for name in row if name != "total_s"] for row in run["ended"]]
    return (folder / "model.npz").read_bytes(), iterations, epochs, ended


def files(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return all that a folder holds, and when each file was written."""
    found = {path.name: path for path in folder.iterdir()}
    return {
        name: (each.stat().st_mtime_ns, each.stat().st_ino, each.read_bytes()) for name, each in found.items()
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of an unbroken run on so many ranks; its last checkpoint is of its last step."""

    @cache
    def on(p: int, *kind: str) -> Path:
        out = tmp_path_factory.mktemp(f"unbroken-{p}") / "run"
        command = ("train", *OPTIONS, *kind, "--checkpoint-every", "4", "--out", out)
        [(statuses, said)] = run_commands(p, command)
        assert statuses == [0] * p, said
        return out

    return on


def wait_for(moment: str, job: subprocess.Popen[str], folder: Path) -> None:
    """Wait until a job has printed a line or a file is there; `*` stands for any characters in its name.

    To look for a file takes a core, so it begins after the last step that comes before the file.
    """
    if moment.startswith("iteration"):
        for line in job.stdout or ():
            if f"{moment}:" in line:
                return
    else:
        wait_for("iteration 1" if "checkpoint" in moment else f"iteration {STEPS}", job, folder)
        while job.poll() is None and not any(folder.glob(moment)):
            pass  # not even a short sleep: the next file is a millisecond away


def moment_of(kill: int, chance: random.Random) -> str:
    """Return when to kill a run: at a step, when a result is there or being written, or a checkpoint is."""
    return (
        f"iteration {chance.randint(1, STEPS)}",
        chance.choice(RESULTS),
        f"iteration {STEPS}",
        f".{chance.choice((*RESULTS, 'checkpoint.npz'))}*{UNFINISHED}",
    )[kill % 4]


@pytest.mark.parametrize("kills", [range(4), *(thorough([kill]) for kill in range(4, 50))])
def test_a_run_killed_at_any_moment_is_resumed_to_the_same_results(
    kills: Sequence[int], unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """Kill all processes, or let SIGTERM end mpiexec; every second run again when it is resumed. Finish it.

    Resuming the first one once more finds nothing to do.
    """
    commands: list[tuple[str | Path, ...]] = []
    for kill in kills:
        chance, out = random.Random(kill), tmp_path / str(kill)
        p = 3 if kill < 4 else chance.choice([1, 2, 3, 4, 5])
        kind = SHARDED if kill // 2 % 2 else PLAIN
        every = str(chance.choice([1, 2, 3, 4, 5, 6]))
        options = (*OPTIONS, *kind, "--bottleneck", "0:jitter=60ms", "--checkpoint-every", every)
        out.mkdir()

        def where(out: Path = out, options: tuple[str, ...] = options) -> tuple[str | Path, ...]:
            return ("--resume", out) if (out / "checkpoint.npz").exists() else (*options, "--out", out)

        moments = [moment_of(kill, chance)]
        if kill % 2 == 0:
            moments.append(f"iteration {STEPS}")
        for moment in moments:
            with started(p, *TRAIN, *where()) as job:
                wait_for(moment, job, out)
                with suppress(psutil.NoSuchProcess):  # the job may have ended before the moment came
                    if kill % 3 == 1:
                        for mpiexec in psutil.Process(job.pid).children()[:1]:
                            mpiexec.terminate()
                    else:
                        kill_tree(job)
                job.communicate(timeout=60)
        commands.append(("train", *where()))
    commands.append(("train", "--resume", tmp_path / str(kills[0])))
    ends = run_commands(p, *commands)
    assert [statuses for statuses, _ in ends] == [[0] * p] * len(ends), ends
    for kill in kills:
        kind = SHARDED if kill // 2 % 2 else PLAIN
        assert results(tmp_path / str(kill)) == results(unbroken(p, *kind)), kill
        # A kill may leave the empty file of the lock, which the next run takes over.
        assert files(tmp_path / str(kill)).keys() - {".lock"} == {*RESULTS, "checkpoint.npz"}, kill


@pytest.fixture(scope="module")
def finished(unbroken: Callable[..., Path]) -> Path:
    """A finished run on three ranks."""
    return unbroken(3, *PLAIN)


def test_results_that_are_lost_are_made_again_from_the_checkpoint(finished: Path, tmp_path: Path) -> None:
    """Nothing is left to train. Times, too, are those of the run; another run.json does not count."""
    lost, other = tmp_path / "lost", tmp_path / "other"
    for folder in lost, other:
        shutil.copytree(finished, folder)
    for name in RESULTS:
        (lost / name).unlink()
    run = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**run, "started": "yesterday"}))
    before = files(finished)
    ends = run_commands(3, *(("train", "--resume", folder) for folder in (lost, other, finished)))
    assert ends.pop()[0] == [0, 0, 0] and files(finished) == before
    for (statuses, said), folder in zip(ends, (lost, other), strict=True):
        assert statuses == [0, 0, 0] and "The results are in" in said, said
        assert results(folder) == results(finished)
    tables = [load_iterations(each / "iterations.csv") for each in (finished, lost)]
    for name in "loss", "compute_s", "wait_s":
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=0, atol=1e-6)
    events = [json.loads((each / "trace.json").read_text())["traceEvents"] for each in (finished, lost)]
    assert len(events[0]) == len(events[1])
    found, first = (json.loads((each / "run.json").read_text()) for each in (lost, finished))
    assert found["started"] == first["started"]
    assert found["ended"][0]["total_s"] >= tables[0]["time_s"][0].sum()  # the time of the steps, taken before


def test_what_a_complete_training_cannot_become_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "model.npz").unlink()
    before = files(tmp_path / "run")
    resume = ("train", "--resume", tmp_path / "run")
    ends = run_commands(3, (*resume, "--lr", "0.3"), (*resume, "--epochs", "2")) + run_commands(2, resume)
    complete = "the training is complete; expected its 3 ranks and its settings, got "
    few = "expected a run of at least 12 steps, which are done already, got 6"
    words = f"{complete}3 ranks, lr 0.3", few, f"{complete}2 ranks"
    for (statuses, said), expected in zip(ends, words, strict=True):
        assert set(statuses) == {2} and f"labkit train: cannot resume: {expected}\n" in said, said
        assert files(tmp_path / "run") == before


def test_a_second_run_in_the_same_folder_is_refused(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "model.npz").unlink()
    long = ("--bottleneck", "0:pause=1000s@2")
    with started(3, *TRAIN, *OPTIONS, *PLAIN, *long, "--out", out) as job:
        wait_for("iteration 1", job, out)
        before = files(out)
        for statuses, said in run_commands(
            2, ("train", *OPTIONS, *PLAIN, "--out", out), ("train", "--resume", out)
        ):
            assert statuses == [2, 2] and said.count("labkit train: ") == 1, said
            assert f"cannot write to --out {out}: in use by process " in said, said
        assert files(out) == before
        kill_tree(job)
    [(statuses, said)] = run_commands(3, ("train", "--resume", out))
    assert statuses == [0, 0, 0], said
    assert results(out) == results(finished)
