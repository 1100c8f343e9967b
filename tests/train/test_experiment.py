"""Whole runs of `labkit train`: what they print and leave, presets, and what goes wrong."""

from __future__ import annotations

import json
import math
import os
import pty
import shlex
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from labkit.cli.train import draw
from labkit.data import SOURCES
from labkit.nn import lenet5, mlp
from labkit.train import load_run
from labkit.train.comparison import as_text, beside, compare
from labkit.train.presets import PRESETS
from labkit.train.run_record import PARTS, load_iterations, save_measurements, save_record
from labkit.train.settings import RECIPES, Settings
from labkit.train.steps import Epoch, Step
from mpiwatch import launch
from tests.conftest import PROGRAMS, run, run_commands

Ends = list[tuple[list[int], str]]

SMALL = ("train", "--model", "mlp", "--samples", "90", "--batch", "30", "--momentum", "0.5", "--seed", "3")


def record(out: Path) -> dict:
    return json.loads((out / "run.json").read_text())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on three ranks: its folder, and rank 0's messages."""
    out = tmp_path_factory.mktemp("small") / "run"
    [(statuses, said)] = run_commands(
        3, (*SMALL, "--iterations", "7", "--checkpoint-every", "4", "--out", out)
    )
    assert statuses == [0, 0, 0], said
    return out, said


def test_a_run_leaves_its_model_and_the_command_that_repeats_it(
    job: tuple[Path, str], tmp_path: Path
) -> None:
    out, _ = job
    model = load_run(out)
    assert model.name == "mlp" and np.abs(model.params - mlp().params).max() > 0.01
    command = shlex.split(record(out)["command"])
    assert command[:4] == ["mpiexec", "-n", "3", "labkit"] and command[-1] == str(out)
    [(statuses, said)] = run_commands(3, [*command[4:-1], tmp_path / "again"])
    assert statuses == [0, 0, 0], said
    assert load_run(tmp_path / "again").params.tobytes() == model.params.tobytes()


def test_what_a_run_records(job: tuple[Path, str]) -> None:
    out, _ = job
    table = load_iterations(out / "iterations.csv")
    assert table["iteration"].tolist() == [[1, 2, 3, 4, 5, 6, 7]] * 3
    assert table["rank"].tolist() == [[0] * 7, [1] * 7, [2] * 7]
    assert (table["time_s"] >= sum(table[column] for column in PARTS.values()) - 1e-6).all()
    found = record(out)
    assert found["settings"]["momentum"] == 0.5 and found["settings"]["epochs"] is None
    # The third epoch is cut after one of its three steps: ten samples of each rank.
    assert [row["samples"] for row in found["ended"]] == [70, 70, 70]
    assert {row["epoch"] for row in found["epochs"]} == {1, 2, 3}
    assert all(0 <= row["local_accuracy"] <= 1 for row in found["epochs"])
    accuracies = {row["test_accuracy"] for row in found["ended"]}
    assert len(accuracies) == 1 and 0 < accuracies.pop() < 1
    # Four parameters are too many for a line: the whole gradient only.
    assert all(row["contribution"].keys() == {"all"} for row in found["epochs"])
    assert all(row["gradient_norm"]["all"] > 0 for row in found["epochs"])


def test_iterations_are_read_by_the_names_of_their_columns(job: tuple[Path, str], tmp_path: Path) -> None:
    table = load_iterations(job[0] / "iterations.csv")
    rows = [line.split(",") for line in (job[0] / "iterations.csv").read_text().splitlines()]
    other = tmp_path / "iterations.csv"
    other.write_text("".join(f"{','.join(reversed(row))},{number}\n" for number, row in enumerate(rows)))
    assert (load_iterations(other) == table).all()
    other.write_text("".join(f"{','.join(row[:-1])}\n" for row in rows))
    with pytest.raises(ValueError, match=r"expected the columns .*, and communication_s is missing"):
        load_iterations(other)


def test_json_holds_no_infinity(tmp_path: Path) -> None:
    save_record(tmp_path, mlp(), [], {"loss": math.inf, "rows": [{"a": math.nan}, -math.inf], "n": 1})

    def no_constant(word: str) -> None:
        raise AssertionError(word)

    found = json.loads((tmp_path / "run.json").read_text(), parse_constant=no_constant)
    assert {"loss": None, "rows": [{"a": None}, None], "n": 1}.items() <= found.items()


def test_a_folder_without_a_run_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no complete run: there is no .*run\.json"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="describes no model"):
        load_run(tmp_path)


def test_settings_come_from_the_options_then_the_preset_then_the_model() -> None:
    complete = Settings.complete
    assert complete({}).model == "linear" and complete({}).shard == "contiguous"
    assert complete({"batch": 10}).shard == "strided"
    preset = {"model": "lenet5", "lr": 0.3, "epochs": 7}
    settings = complete({"epochs": 2}, preset)
    assert (settings.epochs, settings.lr) == (2, 0.3)
    assert settings.momentum == RECIPES["lenet5"].momentum
    adamw = complete({"optimizer": "adamw", "weight_decay": 0.0}, preset)  # whose rate is for SGD
    assert (adamw.lr, adamw.momentum, adamw.weight_decay, adamw.epochs) == (1e-3, 0.0, 0.0, 7)
    stored = asdict(complete({"optimizer": "adamw", "lr": 0.02}))
    assert complete({"optimizer": "adamw"}, stored).lr == 0.02 == complete({}, stored).lr
    assert "--momentum is a setting of" in str(complete({"optimizer": "adamw", "momentum": 0.5}).fault())
    assert complete({"iterations": 5}).epochs is None
    for model, recipe in RECIPES.items():
        assert all(complete({"model": model, "data": name}).fault() is None for name in recipe.datasets)
    assert complete({"model": "softmax", "augment": True}).fault()
    for name, each in PRESETS.items():
        for data in {each.data, "digits" if each.data in SOURCES else each.data}:
            assert complete({}, each.on(data)).fault() is None, name


def test_errors_are_said_once_and_end_every_rank(job: tuple, tmp_path: Path) -> None:
    out = tmp_path / "out"
    damaged, empty, in_the_way = tmp_path / "damaged", tmp_path / "empty", tmp_path / "file"
    for folder in damaged, empty:
        folder.mkdir()
    in_the_way.touch()
    data = (job[0] / "checkpoint.npz").read_bytes()
    (damaged / "checkpoint.npz").write_bytes(data[: len(data) // 2])
    train = ("train", "--out", out)
    cases = (
        (("train", "--out", in_the_way), "expected a folder or nothing"),
        (("train", "--out", in_the_way / "below"), "expected a folder"),
        ((*train, "--lr", "nan"), "'--lr': expected a finite number x with x>0, got 'nan'"),
        (("train", "--modle", "mlp"), "No such option"),
        (("trian",), "No such command 'trian'"),
        (("train",), "Missing option '--out'"),
        ((*train, "--model", "linear", "--data", "digits"), "does not fit the data set"),
        # The set is not in the cache, and there is nothing to fetch it from: it is not even tried.
        ((*train, "--model", "lenet5", "--data", "cifar10"), "does not fit the data set"),
        ((*train, "--bottleneck", "9:jitter=1ms"), "expected bottlenecks on ranks 0 … 2"),
        ((*train, "--bottleneck", "1:slow=3"), "expected RANK:KIND=AMOUNT"),
        ((*train, "--link", "fast"), "expected a bandwidth"),
        ((*train, "--link", "1gbit", "--algorithm", "shared-memory"), "no link to emulate"),
        ((*train, "--algorithm", "ring", "--aggregate", "median"), "cannot compute the median"),
        ((*train, "--compress", "top-k=2"), "expected the compression none, float16, top-k or top-k="),
        (
            (*train, "--compress", "float16", "--algorithm", "shared-memory"),
            "got weighted by 'shared-memory'",
        ),
        (("train", "--resume", damaged), "damaged"),
        (("train", "--resume", empty), "checkpoint.npz, found no such file"),
        (("train", "--resume", job[0], "--model", "softmax"), "cannot resume: expected a checkpoint"),
    )
    for (statuses, said), (command, words) in zip(
        run_commands(3, *(command for command, _ in cases)), cases, strict=True
    ):
        assert statuses == [2, 2, 2], (command, said)
        assert said.count("Error: ") + said.count("labkit train: ") == 1, said
        assert words in said and "Traceback" not in said, said
    assert not out.exists()
    done = run(3, "-m", "labkit", *SMALL, "--lr", "1e9", "--momentum", "0.9", "--out", out)
    assert done.returncode == 2 and done.stdout.count("labkit train: ") == 1, done.stdout  # of the job, too
    assert "lower learning rate" in done.stdout and "Traceback" not in done.stdout, done.stdout
    assert not [path for path in out.glob("*") if path.suffix in (".npz", ".json", ".csv")]


def test_a_full_disk_keeps_what_cannot_be_made_again(tmp_path: Path) -> None:
    done = run(2, PROGRAMS / "full_disk.py", *SMALL, "--epochs", "12", "--out", tmp_path)
    assert done.returncode == 2, done.stdout
    assert done.stdout.count("labkit train: ") == 1 and "Traceback" not in done.stdout
    assert f"cannot write to --out {tmp_path}: File too large (trace.json)" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"model.npz", "run.json", "iterations.csv"}
    assert load_run(tmp_path).name == "mlp" and len(record(tmp_path)["epochs"]) == 24


@pytest.mark.parametrize("name", PRESETS)
def test_the_reports_figures_stand_beside_those_of_its_own_data_and_ranks_only(
    name: str, tmp_path: Path
) -> None:
    preset = PRESETS[name]
    of_data = {data: Settings.complete({}, preset.on(data)) for data in (preset.data, "digits")}
    if preset.against:  # report B has no figures: a run of report A takes their place
        plain = {"ranks": 4, "comparison": [{"name": "loss, epoch 1", "measured": [0.25] * 4}]}
        assert beside(name, of_data[preset.data], 4, tmp_path / "run")[0] == {}
        tmp_path.joinpath(preset.against).mkdir()
        tmp_path.joinpath(preset.against, "run.json").write_text(json.dumps(plain))
        assert beside(name, of_data[preset.data], 3, tmp_path / "run")[0] == {}
    figures, remarks = beside(name, of_data[preset.data], preset.ranks, tmp_path / "run")
    assert figures and not remarks
    measured = [1234.5678] * preset.ranks
    rows = [{"name": row, "measured": measured, "printed": values} for row, values in figures.items()]
    text = as_text(name, rows, remarks, np.arange(3.0))
    assert f"Report {preset.report}" in text and (preset.against or "report") in text.splitlines()[1]
    assert all(f"{values[0]:.4g}" in text for values in figures.values() if not math.isnan(values[0]))
    alone = as_text(name, [{**row, "printed": []} for row in rows], remarks, np.arange(3.0))
    assert "▁▅█  this run" in alone and ("the report" in alone) == (name == "report-e-ring")
    assert max(map(len, [*text.splitlines(), *alone.splitlines()])) <= 101
    if not preset.against:
        command = f"mpiexec -n {preset.ranks} labkit train --preset {name}"
        figures, [remark] = beside(name, of_data[preset.data], 7, tmp_path / "run")
        assert figures == {} and remark.startswith("On 7 ranks.") and command in remark
        figures, [remark, *changed] = beside(name, of_data["digits"], preset.ranks, tmp_path / "run")
        assert figures == {} and f"labkit data fetch {preset.data}" in remark and not changed


def test_a_rank_without_samples_in_a_short_epoch_has_no_accuracy() -> None:
    epoch, ended = Epoch(1, 0, math.nan, 1.0, 0.0, 0.0), {"rank": 0, "test_accuracy": 0.5, "total_s": 1.0}
    rows = compare("report-e-allreduce", [epoch], np.zeros((1, 1)), [ended], None, figures={})
    found = {row["name"]: row["measured"] for row in rows}
    assert np.isnan(found["accuracy, epoch 1 (%)"]).all() and found["test accuracy (%)"] == [50]


def test_report_e_is_drawn_if_a_rank_has_no_samples_in_an_epoch(tmp_path: Path) -> None:
    rows = [Epoch(1, 0, 2.0, 2.0), Epoch(1, 1, math.nan, 2.0)]
    steps = [Step(1, 1, rank, 0.0, 0.1, 0.2, 0.3, 0.4) for rank in range(2)]
    settings = {"average_after_step": False, "bottleneck": []}
    run = {"preset": "report-e-ring", "ranks": 2, "settings": settings}
    save_measurements(tmp_path, lenet5(), rows, steps, run)
    draw(tmp_path, rows, steps, run)
    assert (tmp_path / "report-e.png").exists()


def test_the_progress_bar_is_on_a_terminal_only_and_fits_it(job: tuple[Path, str], tmp_path: Path) -> None:
    """Rank 0's standard error is a pipe to mpiexec: what counts is where mpiexec's leads."""
    command = [launch.mpiexec(), "-n", "2", sys.executable, "-m", "labkit", *SMALL, "--epochs", "50"]
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 78))
    # A file, not a pipe: while the test reads the terminal, a full pipe would stop mpiexec.
    with (
        open(tmp_path / "printed", "w") as stdout,
        subprocess.Popen(
            [*command, "--out", tmp_path / "a"],
            env={**os.environ, **launch.settings()},
            stdout=stdout,
            stderr=side,
        ) as shown,
    ):
        os.close(side)
        seen = b""
        with suppress(OSError):  # the end of a terminal is an error
            while part := os.read(terminal, 4096):
                seen += part
    os.close(terminal)
    assert shown.returncode == 0 and b"images/s" in seen and b"loss" in seen and b"/150" in seen
    assert max(len(bar.strip()) for bar in seen.decode().split("\r")) in (77, 78)
    for text in (tmp_path / "printed").read_text(), job[1]:  # the job's standard error was a pipe
        assert "images/s" not in text and "\r" not in text
