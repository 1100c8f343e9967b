"""What a preset has measured, beside the figures that its report prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labkit import reports
from labkit.text import counted
from labkit.train.presets import PRESETS
from labkit.train.run_record import fractions, without_first
from labkit.train.settings import Settings
from labkit.train.steps import Epoch

LABEL, NUMBER = 29, 9  # columns
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60  # in a line


# By report, what it prints: the table, the column with the figures, and what they are divided by, under the
# names of `compare`. Report A prints each of its figures in every epoch.
PRINTED: dict[str, dict[str, tuple[str, str, float]]] = {
    "A": {
        "mean gradient W, epoch {}": ("a_epochs", "grad_W_mean", 1),
        "contribution W (%), epoch {}": ("a_epochs", "contribution_W_percent", 1),
        "mean gradient b, epoch {}": ("a_epochs", "grad_b_mean", 1),
        "contribution b (%), epoch {}": ("a_epochs", "contribution_b_percent", 1),
        "loss, epoch {}": ("a_epochs", "loss", 1),
        "sync time, epoch {} (ms)": ("a_epochs", "sync_time_s", 1e-3),
    },
    "C": {
        "loss, iteration 20": ("c_ranks", "loss_20", 1),
        "loss, iteration 40": ("c_ranks", "loss_40", 1),
        "average training loss": ("c_ranks", "average_loss", 1),
        "training accuracy (%)": ("c_ranks", "training_accuracy_percent", 1),
        "test accuracy (%)": ("c_ranks", "test_correct", 100),  # of 10,000 images
        "time per iteration (s)": ("c_ranks", "time_s", 1),
        "compute (%)": ("c_shares", "compute_percent", 1),
        "exposed communication (%)": ("c_shares", "communication_percent", 1),
    },
    "D": {
        "test accuracy (%)": ("d_runs", "test_correct", 100),
        "training time (s)": ("d_runs", "time_s", 1),
    },
    "E": {
        "loss, epoch 1": ("e_runs", "loss_1", 1),
        "loss, epoch 100": ("e_runs", "loss_100", 1),
        "accuracy, epoch 1 (%)": ("e_runs", "accuracy_1_percent", 1),
        "accuracy, epoch 100 (%)": ("e_runs", "accuracy_100_percent", 1),
        "training time (s)": ("e_runs", "time_s", 1),
    },
}


def printed(preset: str) -> dict[str, list[float]]:
    """Return the figures that a preset's report prints, one for each rank (nan: not printed) or for all."""
    chosen, figures_by_name = PRESETS[preset], {}
    for name, (table, column, unit) in PRINTED.get(chosen.report, {}).items():
        columns = reports.read(table)
        if chosen.set_up == "ring" and "epoch 100" in name:
            figures_by_name[name] = reports.read("e_ring_last")[column] / unit  # of each rank
        elif chosen.report == "A":
            for epoch in np.unique(columns["epoch"]):
                figures_by_name[name.format(epoch)] = columns[column][columns["epoch"] == epoch] / unit
        else:
            set_ups = columns["set_up" if "set_up" in columns else "algorithm"]
            figures_by_name[name] = columns[column][set_ups == chosen.set_up] / unit
    return {
        name: figures.tolist() for name, figures in figures_by_name.items() if not np.isnan(figures).all()
    }


def beside(
    preset: str, settings: Settings, ranks: int, folder: Path
) -> tuple[dict[str, list[float]], list[str]]:
    """Return the figures that stand beside a run in this folder, by name, and remarks to read before them.

    They are the report's, if the run has its data set and number of ranks, or those of the plain run that
    lies beside the folder.
    """
    chosen, figures, remarks = PRESETS[preset], printed(preset), list[str]()
    if chosen.against:
        with suppress(OSError, ValueError, KeyError):
            plain = json.loads((folder.parent / chosen.against / "run.json").read_text())
            if plain["ranks"] == ranks:
                figures = {row["name"]: row["measured"] for row in plain["comparison"]}
        if not figures:
            remarks = [f"For a plain run beside it, first: labkit train --preset {chosen.against}"]
    elif settings.data != chosen.data:
        command = f"labkit data fetch {chosen.data}"
        remarks.append(f"On {settings.data}. The report's figures need its data set: {command}")
    if ranks != chosen.ranks and not chosen.against:
        command = f"mpiexec -n {chosen.ranks} labkit train --preset {preset}"
        remarks.append(
            f"On {counted(ranks, 'rank')}. The report's figures need its {chosen.ranks}: {command}"
        )
    usual = asdict(Settings.complete({}, chosen.on(settings.data)))
    figures = {} if remarks else figures
    changed = [f"{name} {value}" for name, value in asdict(settings).items() if value != usual[name]]
    if changed:
        remarks = [*remarks, f"Changed: {', '.join(changed)}"]
    return figures, remarks


def compare(
    preset: str,
    rows: Sequence[Epoch],
    iterations: np.ndarray,
    ended: Sequence[Mapping[str, Any]],
    log_every: int | None,
    *,
    figures: Mapping[str, list[float]],
) -> list[dict[str, Any]]:
    """Return what the report of a preset prints, from the measurements of all ranks, beside these figures.

    `ended` is what each rank found at the end of the run, and `iterations` the table of run_record.py. Each
    row has the "name" of a quantity, what was "measured" on each rank, and what is "printed" in the report,
    one figure for each rank or one for all.
    """
    by_rank = [[row for row in rows if row.rank == end_of_rank["rank"]] for end_of_rank in ended]
    report = PRESETS[preset].report
    by_name: dict[str, Any] = {}
    if report == "C":
        for number in range(log_every or 1, iterations.shape[1] + 1, log_every or 1):
            by_name[f"loss, iteration {number}"] = iterations["loss"][:, number - 1]
        by_name["average training loss"] = iterations["loss"].mean(axis=1)
        by_name["training accuracy (%)"] = [_accuracy(epochs_of_rank) for epochs_of_rank in by_rank]
    for at in (0, -1) if report in "ABE" else ():
        epochs = [epochs_of_rank[at] for epochs_of_rank in by_rank]
        when = f"epoch {epochs[0].epoch}"
        for name in epochs[0].contribution if report != "E" else ():
            by_name[f"mean gradient {name}, {when}"] = [epoch.gradient_mean[name] for epoch in epochs]
            parts = [100 * epoch.contribution[name] for epoch in epochs]
            by_name[f"contribution {name} (%), {when}"] = parts
        by_name[f"loss, {when}"] = [epoch.local_loss for epoch in epochs]
        if report == "E":
            by_name[f"accuracy, {when} (%)"] = [_accuracy([epoch]) for epoch in epochs]
        else:
            by_name[f"global loss, {when}"] = [epoch.global_loss for epoch in epochs]
            sync_ms = [1e3 * (epoch.wait_s + epoch.transfer_s) for epoch in epochs]
            by_name[f"sync time, {when} (ms)"] = sync_ms
    if report in "CDE":
        by_name["test accuracy (%)"] = [100 * end_of_rank["test_accuracy"] for end_of_rank in ended]
    if report == "C":
        by_name["time per iteration (s)"] = without_first(iterations)["time_s"].mean(axis=1)
        by_name |= {f"{part} (%)": 100 * of_ranks for part, of_ranks in fractions(iterations).items()}
    else:
        by_name["training time (s)"] = [end_of_rank["total_s"] for end_of_rank in ended]
    return [
        {"name": name, "measured": [*map(float, measured)], "printed": figures.get(name, [])}
        for name, measured in by_name.items()
    ]


def as_text(
    preset: str, compared: Sequence[Mapping[str, Any]], remarks: Sequence[str], losses: np.ndarray
) -> str:
    """Return the comparison as text, with a column for each rank; without figures, show the loss as a curve.

    Shape: losses (iterations,).
    """
    chosen, has_figures = PRESETS[preset], any(row["printed"] for row in compared)
    ranks = len(compared[0]["measured"])
    head = "measured on ranks 0, 1, …" if ranks > 2 else "measured"
    width = max(NUMBER * ranks, len(head)) + 1
    lines = [f"Report {chosen.report}, {chosen.about}", *remarks]
    against = (chosen.against or "report") if has_figures else ""
    lines.append(f"{'':{LABEL}}{head:{width}}{against}".rstrip())
    for row in compared:
        figures = (_numbers(row["printed"]) or "–") if has_figures else ""
        lines.append(f"{row['name']:{LABEL}}{_numbers(row['measured']):{width}}{figures}".rstrip())
    if not has_figures:
        lines += [
            "The shape of the loss, from its lowest to its highest value:",
            f"{curve(losses)}  this run",
        ]
        if chosen.set_up == "ring":
            of_ring, last = reports.read("e_ring_losses"), reports.read("e_ring_last")["loss_100"].mean()
            known = np.isfinite(of_ring["loss"])
            epochs, printed = np.append(of_ring["epoch"][known], 100), np.append(of_ring["loss"][known], last)
            lines.append(f"{curve(np.interp(np.arange(1, 101), epochs, printed))}  the report")
    return "\n".join([*lines, *([chosen.hint] if chosen.hint else [])])


def curve(values: np.ndarray) -> str:
    """Return a curve as bars: the lowest for its lowest value, the highest for its highest. Shape: (n,)."""
    at = np.linspace(0, len(values) - 1, min(MOST_BARS, len(values))).astype(int)
    heights = (values[at] - values[at].min()) / (np.ptp(values[at]) or 1)
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights.tolist())


def _accuracy(rows: Sequence[Epoch]) -> float:
    """Return a rank's training accuracy over some epochs (%); in a short one, it may have no sample."""
    return 100 * sum(row.correct for row in rows) / (sum(row.samples for row in rows) or math.nan)


def _numbers(values: Sequence[float]) -> str:
    return "".join(f"{'–' if np.isnan(value) else f'{value:.4g}':{NUMBER}}" for value in values).rstrip()
