"""The figures that `labkit train` leaves in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.files import atomic_write
from labkit.plots import losses, processes, set_ups, timeline
from labkit.train.experiment import Results
from labkit.train.experiment.iterations import PARTS, fractions, load_iterations
from labkit.train.experiment.presets import PRESETS

STEPS_DRAWN = 8  # the last steps, in timeline.png; trace.json has all that were recorded


def draw(out: Path, results: Results) -> None:
    """Draw the losses, the last steps of the timeline and, of a preset, what its report draws."""
    rows, steps, run = results.rows, results.steps, results.run
    local = [[row.local_loss for row in rows if row.rank == rank] for rank in range(run["ranks"])]
    _write(out / "loss.png", losses(local, [row.global_loss for row in rows if row.rank == 0]))
    slowed = [*([run["links"]] if "links" in run else []), *run["settings"]["bottleneck"]]
    first = max(1, steps[-1].number - STEPS_DRAWN + 1)
    _write(out / "timeline.png", timeline(steps, ", ".join(slowed), first))
    if "preset" in run:
        report = PRESETS[run["preset"]].report
        figure = _as_report_e if report == "E" else _as_report_c
        _write(out / f"report-{report.lower()}.png", figure(_runs(out, run["preset"])))


def _runs(out: Path, preset: str) -> dict[str, Path]:
    """Return the folders of this run and of the report's other runs that lie beside it, by short name."""
    report = PRESETS[preset].report
    found = {}
    for name in PRESETS:
        folder = out if name == preset else out.parent / name
        if PRESETS[name].report == report and (name == preset or _is_run_of(folder, name)):
            settings = json.loads((folder / "run.json").read_text())["settings"]
            label = name.removeprefix(f"report-{report.lower()}-")
            found[f"{label}, after stepping" if settings["average_after_step"] else label] = folder
    return found


def _is_run_of(folder: Path, preset: str) -> bool:
    try:
        run = json.loads((folder / "run.json").read_text())
        return run["preset"] == preset and (folder / "iterations.csv").exists()
    except (OSError, ValueError, KeyError):
        return False


def _as_report_c(runs: dict[str, Path]) -> Figure:
    """Return loss, time per iteration and its parts, of all set-ups; report D's runs are shown alike."""
    tables = {name: load_iterations(folder / "iterations.csv") for name, folder in runs.items()}
    return set_ups(
        {name: table[:, :, 1].mean(axis=0) for name, table in tables.items()},
        {name: table[:, :, 2].mean(axis=0) for name, table in tables.items()},
        {
            name: dict(zip(PARTS, fractions(table).mean(axis=0).tolist(), strict=True))
            for name, table in tables.items()
        },
    )


def _as_report_e(runs: dict[str, Path]) -> Figure:
    """Return accuracy and loss by epoch and process, and the drift of runs that average after stepping."""
    epochs = {name: json.loads((folder / "run.json").read_text())["epochs"] for name, folder in runs.items()}

    def curves(rows: list[dict[str, Any]], of: str) -> np.ndarray:
        ranks = sorted({row["rank"] for row in rows})
        return np.array([[row[of] for row in rows if row["rank"] == rank] for rank in ranks], float)

    return processes(
        {name: curves(rows, "local_accuracy") for name, rows in epochs.items()},
        {name: curves(rows, "local_loss") for name, rows in epochs.items()},
        {name: curves(rows, "drift")[0] for name, rows in epochs.items() if rows[0]["drift"] is not None},
    )


def _write(path: Path, figure: Figure) -> None:
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)
