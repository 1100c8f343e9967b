"""The checklist for reports: its page names the items of the code, and each record holds them."""

from __future__ import annotations

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
from labkit.train.presets import PRESETS
from labkit.train.run_record import PARTS
from tests.conftest import run_commands, thorough

PAGE = Path(__file__).parents[2] / "docs/checklist.md"
OF_SEVERAL_RUNS = ["repetitions and spread", "one setting differs"]
SHORTENED = {
    "A": (),
    "B": (),
    "C": ("--batch", "8", "--samples", "16", "--iterations", "3", "--log-every", "1"),
    "D": ("--samples", "64", "--epochs", "1"),
    "E": ("--epochs", "2"),
}
RUNS: dict[str, tuple[str, ...]] = {
    "regression": ("--model", "linear", "--epochs", "2"),
    "overlap": ("--model", "mlp", "--samples", "90", "--overlap", "--iterations", "4", "--no-check-weights"),
    "weighted": ("--model", "softmax", "--samples", "90", "--shard", "weighted", "--epochs", "2"),
    "after-step": ("--preset", "report-e-allreduce", "--epochs", "2", "--average-after-step"),
    **{name: ("--preset", name, *SHORTENED[preset.report]) for name, preset in PRESETS.items()},
}
# These spend most of their time on VGG-11. `report-c-2b`, which runs always, does the same.
LONG = ("report-c-1", "report-c-2a", "report-c-3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each run, by name."""
    top = tmp_path_factory.mktemp("checklist")
    return run_all(top, [name for name in RUNS if name not in LONG])


def run_all(top: Path, names: list[str]) -> dict[str, Path]:
    ends = run_commands(4, *(("train", *RUNS[name], "--out", top / name) for name in names))
    assert all(statuses == [0] * 4 for statuses, _ in ends), ends
    return {name: top / name for name in names}


@pytest.mark.parametrize("name", [thorough(name) for name in LONG])
def test_the_other_presets_run(name: str, tmp_path: Path) -> None:
    run = json.loads((run_all(tmp_path, [name])[name] / "run.json").read_text())
    assert "loss, iteration 3" in rows_of(run) and not any(row["printed"] for row in run["comparison"])


def test_the_page_and_the_table_of_the_reports_have_the_items_of_the_code() -> None:
    names = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    items, *of_reports = reports.read("checklist").values()
    assert names == items.tolist() == [*ITEMS, *OF_SEVERAL_RUNS]
    assert {answer for answers in of_reports for answer in answers} == {"yes", "partly", "no", "–"}


def test_records_hold_all_items(folders: dict[str, Path]) -> None:
    assert {name: left_out for name, folder in folders.items() if (left_out := missing(folder))} == {}
    answer = CliRunner().invoke(main, ["checklist", str(folders["overlap"])])
    assert answer.exit_code == 0 and f"{len(ITEMS)} of {len(ITEMS)} items" in answer.output


def test_presets_print_and_draw_what_their_reports_do(folders: dict[str, Path]) -> None:
    found = {
        name: json.loads((folders[name] / "run.json").read_text()) for name in PRESETS if name not in LONG
    }
    for name, run in found.items():
        generated = PRESETS[name].data == "report-a"
        assert run["preset"] == name and run["settings"]["data"] == ("report-a" if generated else "digits")
        assert (folders[name] / f"report-{name[7]}.png").read_bytes().startswith(b"\x89PNG")
        assert all(len(row["measured"]) == 4 for row in run["comparison"])
        assert any(row["printed"] for row in run["comparison"]) == generated
    c = rows_of(found["report-c-2b"])
    assert np.sum([c[f"{part} (%)"] for part in (*PARTS, "rest")], axis=0) == pytest.approx([100] * 4)
    assert {"loss, iteration 3", "time per iteration (s)", "test accuracy (%)"} <= c.keys()
    losses = [c[f"loss, iteration {number}"] for number in (1, 2, 3)]
    assert c["average training loss"] == pytest.approx(np.mean(losses, axis=0))
    # All algorithms give the same curves; averaging after stepping, others.
    e = {name: run["epochs"] for name, run in found.items() if PRESETS[name].report == "E"}
    assert all(row["drift"] is None for rows in e.values() for row in rows)
    by_epoch = [[row["global_loss"] for row in rows] for rows in e.values()]
    np.testing.assert_allclose(by_epoch, by_epoch[:1] * len(by_epoch), rtol=1e-5)
    after_step = json.loads((folders["after-step"] / "run.json").read_text())["epochs"]
    assert all(row["drift"] > 0 for row in after_step)


def test_report_as_ranks_contribute_as_in_the_report_and_report_bs_balance_changes_no_weights(
    folders: dict[str, Path],
) -> None:
    runs = {name: json.loads((folder / "run.json").read_text()) for name, folder in folders.items()}
    a, balanced, tuned = (rows_of(runs[f"report-{name}"]) for name in ("a", "b-balanced", "b-tuned"))
    for parameter in "W", "b":
        name = f"contribution {parameter} (%), epoch 1"
        assert max(a[name]) == a[name][2] > 100 and max(balanced[name]) < 40
    assert a["loss, epoch 10"][0] > a["loss, epoch 1"][0]
    assert a["global loss, epoch 10"][0] < a["global loss, epoch 1"][0]
    assert balanced["global loss, epoch 10"] == pytest.approx(a["global loss, epoch 10"])
    assert tuned["global loss, epoch 10"][0] < a["global loss, epoch 10"][0]


def rows_of(run: dict[str, Any]) -> dict[str, list[float]]:
    """Return what a preset's ranks measured, by name."""
    return {row["name"]: row["measured"] for row in run["comparison"]}


def test_ranks_with_equal_weights_have_equal_hashes_and_speeds_that_weight_shards_are_recorded(
    folders: dict[str, Path],
) -> None:
    runs = {name: json.loads((folder / "run.json").read_text()) for name, folder in folders.items()}

    def hashes(name: str, of: str) -> set[str]:
        return {row[of] for row in runs[name]["ended"]}

    assert len(hashes("overlap", "parameters_hash")) == len(hashes("report-c-2b", "parameters_hash")) == 1
    assert len(hashes("after-step", "parameters_hash")) == 4  # they drift apart
    assert len(hashes("report-c-2b", "buffers_hash")) == 4  # left alone, as in the report
    assert {name: len(run["speeds"]) for name, run in runs.items() if "speeds" in run} == {"weighted": 4}


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


def test_a_record_without_a_field_misses_its_item(folders: dict[str, Path], tmp_path: Path) -> None:
    for number, (field, item) in enumerate(REMOVED.items()):
        folder = tmp_path / str(number)
        shutil.copytree(folders["overlap"], folder)
        run, table = json.loads((folder / "run.json").read_text()), folder / "iterations.csv"
        if field.endswith(".json"):
            (folder / field).unlink()
        elif field in ("iteration", "wait_s"):
            table.write_text(table.read_text().replace(field, "another", 1))
        elif field == "blas_threads":  # nothing limits them
            run[field][1] = {}
        else:
            remove(run, field.split("/"))
        (folder / "run.json").write_text(json.dumps(run))
        assert missing(folder) == [item], field
    answer = CliRunner().invoke(main, ["checklist", str(folder)])
    assert answer.exit_code == 1 and f"missing: {item}\n" in answer.output


def test_every_item_has_a_field() -> None:
    assert set(REMOVED.values()) == set(ITEMS)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a run's folder with run\.json"):
        missing(tmp_path)
