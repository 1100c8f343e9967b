"""The checklist for reports: its page names the items of the code, and each record holds them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from labkit import reports
from labkit.cli import main
from labkit.train.checklist import ITEMS, missing
from labkit.train.run_record import PARTS
from tests.conftest import run_commands

PAGE = Path(__file__).parents[2] / "docs/checklist.md"
OF_SEVERAL_RUNS = ["repetitions and spread", "one setting differs"]
TINY_C = ("--batch", "8", "--samples", "16", "--iterations", "3", "--log-every", "1")
RUNS: dict[str, tuple[str, ...]] = {
    "regression": ("--model", "linear", "--epochs", "2"),
    "overlap": ("--model", "mlp", "--samples", "90", "--overlap", "--iterations", "4", "--no-check-weights"),
    "weighted": ("--model", "softmax", "--samples", "90", "--shard", "weighted", "--epochs", "2"),
    "report-c-2b": ("--preset", "report-c-2b", *TINY_C),
    "report-e-ring": ("--preset", "report-e-ring", "--epochs", "2"),
    "report-e-allreduce": ("--preset", "report-e-allreduce", "--epochs", "2", "--average-after-step"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each run, by name."""
    top = tmp_path_factory.mktemp("checklist")
    ends = run_commands(4, *(("train", *options, "--out", top / name) for name, options in RUNS.items()))
    assert all(statuses == [0] * 4 for statuses, _ in ends), ends
    return {name: top / name for name in RUNS}


def test_the_page_names_the_items_of_the_code() -> None:
    names = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == [*ITEMS, *OF_SEVERAL_RUNS]


def test_the_table_of_the_reports_has_the_items_of_the_code() -> None:
    items, *of_reports = reports.read("checklist").values()
    assert items.tolist() == [*ITEMS, *OF_SEVERAL_RUNS]
    assert {answer for answers in of_reports for answer in answers} == {"yes", "partly", "no", "–"}


def test_records_hold_all_items(folders: dict[str, Path]) -> None:
    assert {name: left_out for name, folder in folders.items() if (left_out := missing(folder))} == {}
    answer = CliRunner().invoke(main, ["checklist", str(folders["overlap"])])
    assert answer.exit_code == 0 and f"{len(ITEMS)} of {len(ITEMS)} items" in answer.output


def test_presets_print_and_draw_what_their_reports_do(folders: dict[str, Path]) -> None:
    found = {name: json.loads((folders[name] / "run.json").read_text()) for name in RUNS if "report" in name}
    for name, run in found.items():
        assert run["preset"] == name and run["settings"]["data"] == "digits"
        assert (folders[name] / f"report-{name[7]}.png").read_bytes().startswith(b"\x89PNG")
        assert all(len(row["measured"]) == 4 for row in run["comparison"])
    c = {row["name"]: row["measured"] for row in found["report-c-2b"]["comparison"]}
    assert np.sum([c[f"{part} (%)"] for part in PARTS], axis=0) == pytest.approx([100] * 4)
    assert {"loss, iteration 3", "time per iteration (s)", "test accuracy (%)"} <= c.keys()
    # The ring and the library's all-reduce give the same curves; averaging after stepping, others.
    assert all(row["drift"] is None for row in found["report-e-ring"]["epochs"])
    assert all(row["drift"] > 0 for row in found["report-e-allreduce"]["epochs"])


def test_the_speeds_that_shards_are_weighted_by_are_recorded(folders: dict[str, Path]) -> None:
    runs = {name: json.loads((folder / "run.json").read_text()) for name, folder in folders.items()}
    assert {name for name, run in runs.items() if run.get("speeds")} == {"weighted"}
    assert len(runs["weighted"]["speeds"]) == 4 and runs["weighted"]["settings"]["shard"] == "weighted"


def test_ranks_with_equal_weights_have_equal_hashes(folders: dict[str, Path]) -> None:
    def hashes(name: str, of: str) -> set[str]:
        return {row[of] for row in json.loads((folders[name] / "run.json").read_text())["ended"]}

    assert len(hashes("overlap", "parameters_hash")) == len(hashes("report-c-2b", "parameters_hash")) == 1
    assert (
        len(hashes("report-e-allreduce", "parameters_hash")) == 4
    )  # averaged after the step: they drift apart
    assert len(hashes("report-c-2b", "buffers_hash")) == 4  # left alone, as in the report


# A field of run.json, as the path to it, a column of iterations.csv, or a file; and the item that needs it.
REMOVED = {
    "hosts": "nodes by name",
    "cores": "cores per rank",
    "blas_threads": "BLAS threads",
    "versions": "versions",
    "settings/data": "data set and its size",
    "batches/samples": "data set and its size",
    "settings/shard": "sharding",
    "epochs/*/samples": "samples per rank",
    "model/name": "model",
    "settings/seed": "initialisation seed",
    "settings/lr_schedule": "optimiser and learning rate",
    "ended/*/local_batch": "global and local batch",
    "batches/global_batch": "global and local batch",
    "batches/updates_per_epoch": "updates per epoch",
    "settings/average_after_step": "what is averaged, and when",
    "settings/aggregate": "mean or sum",
    "settings/buffers": "buffers",
    "ended/*/parameters_hash": "equal weights",
    "epochs/*/global_loss": "local and global loss",
    "ended/*/test_correct": "accuracy as a count",
    "times": "start and end of each time",
    "iteration": "warm-up apart",
    "wait_s": "computation, wait, communication",
    "command": "command",
    "trace.json": "raw data",
}


def remove(at: Any, path: list[str]) -> None:
    """Remove a field, from the last entry of a list where the path has a star."""
    first, *others = path
    if not others:
        del at[first]
    else:
        remove(at[-1] if first == "*" else at[first], others)


@pytest.mark.parametrize("field", REMOVED)
def test_a_record_without_a_field_misses_its_item(
    field: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["overlap"], folder)
    if field.endswith(".json"):
        (folder / field).unlink()
    elif field in ("iteration", "wait_s"):
        with (folder / "iterations.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        kept = [name for name in rows[0] if name != field]
        with (folder / "iterations.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, kept, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    else:
        run = json.loads((folder / "run.json").read_text())
        remove(run, field.split("/"))
        (folder / "run.json").write_text(json.dumps(run))
    assert missing(folder) == [REMOVED[field]]
    answer = CliRunner().invoke(main, ["checklist", str(folder)])
    assert answer.exit_code == 1 and f"missing: {REMOVED[field]}\n" in answer.output


def test_every_item_has_a_field() -> None:
    assert set(REMOVED.values()) == set(ITEMS)


def test_threads_that_nothing_limits_are_unknown(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["overlap"], tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    run["blas_threads"][1] = dict.fromkeys(run["blas_threads"][1])
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    assert missing(tmp_path / "run") == ["BLAS threads"]


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a run's folder with run\.json"):
        missing(tmp_path)
