"""What a preset has measured, beside the figures that its report prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from labkit.train.experiment.iterations import PARTS, fractions, seconds_per_iteration
from labkit.train.experiment.presets import PRESETS
from labkit.train.steps import Epoch

LABEL, NUMBER = 30, 8  # columns


class Row(NamedTuple):
    """One quantity: what each rank measured, and the report's figures, one for each rank or one for all."""

    name: str
    measured: list[float]
    printed: list[float]


def compare(
    preset: str,
    rows: Sequence[Epoch],
    iterations: np.ndarray,
    ended: Sequence[Mapping[str, Any]],
    log_every: int | None,
) -> list[Row]:
    """Return what the report of a preset prints, from the measurements of all ranks.

    `ended` is what each rank found at the end of the run. Shape: iterations (p, n, 6), see `iterations`.
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
    printed = {name: np.atleast_1d(value).tolist() for name, value in PRESETS[preset].printed.items()}
    return [
        Row(name, [float(value) for value in measured], printed.get(name, []))
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
