"""What a preset has measured, beside the figures that its report prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from labkit import reports
from labkit.train.presets import PRESETS
from labkit.train.run_record import PARTS, fractions, seconds_per_iteration
from labkit.train.steps import Epoch

LABEL, NUMBER = 30, 8  # columns
IMAGES_PER_PERCENT = 10_000 / 100  # the test sets of CIFAR-10 and of MNIST have 10,000 images


class Row(NamedTuple):
    """One quantity: what each rank measured, and the report's figures, one for each rank or one for all."""

    name: str
    measured: list[float]
    printed: list[float]


# By report, what it prints: the table and the column with the figures, under the names of `compare`.
PRINTED = {
    "C": {
        "loss, iteration 20": ("c_ranks", "loss_20"),
        "loss, iteration 40": ("c_ranks", "loss_40"),
        "training accuracy (%)": ("c_ranks", "training_accuracy_percent"),
        "test accuracy (%)": ("c_ranks", "test_correct"),
        "time per iteration (s)": ("c_ranks", "time_s"),
        "compute (%)": ("c_shares", "compute_percent"),
        "exposed communication (%)": ("c_shares", "communication_percent"),
    },
    "D": {"test accuracy (%)": ("d_runs", "test_correct"), "training time (s)": ("d_runs", "time_s")},
    "E": {
        "loss, epoch 1": ("e_runs", "loss_1"),
        "loss, epoch 100": ("e_runs", "loss_100"),
        "accuracy, epoch 1 (%)": ("e_runs", "accuracy_1_percent"),
        "accuracy, epoch 100 (%)": ("e_runs", "accuracy_100_percent"),
        "training time (s)": ("e_runs", "time_s"),
    },
}


def printed(preset: str) -> dict[str, list[float]]:
    """Return the figures that a preset's report prints: one for each rank or one for all."""
    report = PRESETS[preset].report
    set_up, found = preset.removeprefix(f"report-{report.lower()}-"), {}
    for name, (table, column) in PRINTED[report].items():
        if set_up == "ring" and "epoch 100" in name:
            figures = reports.read("e_ring_last")[column]  # of each rank
        else:
            columns = reports.read(table)
            set_ups = columns["set_up" if report == "C" else "algorithm"]
            figures = columns[column][set_ups == set_up]
        if not np.isnan(figures).any():
            found[name] = (figures / IMAGES_PER_PERCENT if column == "test_correct" else figures).tolist()
    return found


def compare(
    preset: str,
    rows: Sequence[Epoch],
    iterations: np.ndarray,
    ended: Sequence[Mapping[str, Any]],
    log_every: int | None,
) -> list[Row]:
    """Return what the report of a preset prints, from the measurements of all ranks.

    `ended` is what each rank found at the end of the run. Shape: iterations (p, n, 6), see run_record.py.
    """
    by_rank = [[row for row in rows if row.rank == one["rank"]] for one in ended]
    report = PRESETS[preset].report
    found: dict[str, Any] = {}
    if report == "C":
        for number in range(log_every or 1, iterations.shape[1] + 1, log_every or 1):
            found[f"loss, iteration {number}"] = iterations[:, number - 1, 1]
        found["training accuracy (%)"] = [_accuracy(own) for own in by_rank]
    if report == "E":
        for epoch in 0, -1:
            number = rows[epoch].epoch
            found[f"loss, epoch {number}"] = [own[epoch].local_loss for own in by_rank]
            found[f"accuracy, epoch {number} (%)"] = [_accuracy(own[epoch:][:1]) for own in by_rank]
    found["test accuracy (%)"] = [100 * one["test_accuracy"] for one in ended]
    if report == "C":
        found["time per iteration (s)"] = seconds_per_iteration(iterations)
        for part, of_ranks in zip(PARTS, 100 * fractions(iterations).T, strict=True):
            found[f"{part} (%)"] = of_ranks
    else:
        found["training time (s)"] = [one["total_s"] for one in ended]
    figures = printed(preset)
    return [
        Row(name, [float(value) for value in measured], figures.get(name, []))
        for name, measured in found.items()
    ]


def as_text(preset: str, data: str, compared: Sequence[Row]) -> str:
    """Return the comparison as text, with a column for each rank; `data` is the data set that was used."""
    chosen = PRESETS[preset]
    ranks = len(compared[0].measured)
    head = "measured on ranks 0, 1, …" if ranks > 2 else "measured"
    width = max(NUMBER * ranks, len(head)) + 2
    lines = [f"Report {chosen.report}, {chosen.about}"]
    if data != chosen.cached:
        lines.append(f"On {data}; the report's data set, {chosen.cached}: labkit data fetch {chosen.cached}")
    lines.append(f"{'':{LABEL}}{head:{width}}report")
    lines += [
        f"{row.name:{LABEL}}{_numbers(row.measured):{width}}{_numbers(row.printed) or '–'}"
        for row in compared
    ]
    return "\n".join([*lines, *([chosen.hint] if chosen.hint else [])])


def _accuracy(rows: Sequence[Epoch]) -> float:
    """Return a rank's training accuracy over some epochs (%)."""
    return (
        100 * sum(row.samples * (row.local_accuracy or 0) for row in rows) / sum(row.samples for row in rows)
    )


def _numbers(values: Sequence[float]) -> str:
    return "".join(f"{value:<{NUMBER}.4g}" for value in values).rstrip()
