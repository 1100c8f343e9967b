"""What each rank measured in each iteration, for the figures and tables of a run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit.train.experiment.run_record import write_csv
from labkit.train.steps import Step

COLUMNS = "iteration", "loss", "time_s", "compute_s", "wait_s", "communication_s"
PARTS = "compute", "wait for the last rank", "exposed communication", "rest"


def iterations(steps: Sequence[Step], ranks: int) -> np.ndarray:
    """Return the loss and the times (s) of the steps of all ranks, from `Timeline.gather`.

    The time of an iteration runs from its begin to the begin of the next one, so that the times add up to
    that of the run; the last one ends with itself. In it, a rank computes (forward and backward pass, and the
    update), waits for the last rank, and communicates where that is not hidden behind computation (exposed
    communication). The rest is what callbacks do, and the end of an epoch.

    Shape: (p, iterations, 6), with the columns of COLUMNS.
    """
    table = np.array(
        [
            (step.number, step.loss, step.done - step.begin, step.compute_s, step.wait_s, step.transfer_s)
            for step in steps
        ]
    ).reshape(-1, ranks, len(COLUMNS))
    begins = np.array([step.begin for step in steps]).reshape(-1, ranks)
    table[:-1, :, 2] = np.diff(begins, axis=0)
    return table.swapaxes(0, 1)


def save_iterations(path: Path, table: np.ndarray) -> None:
    """Write the gathered table as CSV, with the rank as the first column."""
    rows = [
        (rank, int(number), *(f"{value:.9g}" for value in values))
        for rank, own in enumerate(table)
        for number, *values in own
    ]
    write_csv(path, ("rank", *COLUMNS), rows)


def load_iterations(path: Path) -> np.ndarray:
    """Return the table that `save_iterations` wrote. Raise OSError or ValueError if there is none."""
    with path.open(newline="") as file:
        rows: Sequence[Sequence[str]] = list(csv.reader(file))[1:]
    table = np.array(rows, float)
    ranks = int(table[:, 0].max()) + 1
    return table[:, 1:].reshape(ranks, -1, len(COLUMNS))


def seconds_per_iteration(table: np.ndarray) -> np.ndarray:
    """Return each rank's mean time (s) per iteration without the first. Shapes: (p, n, 6), (p,)."""
    return np.asarray(_later(table)[:, :, 2].mean(axis=1))


def fractions(table: np.ndarray) -> np.ndarray:
    """Return the fraction of the time of each of PARTS, without the first iteration; they add up to 1.

    Shapes: table (p, n, 6); result (p, 4).
    """
    total, *parts = _later(table)[:, :, 2:].sum(axis=1).T
    return np.array([*parts, total - sum(parts)]).T / total[:, None]


def _later(table: np.ndarray) -> np.ndarray:
    """Return the iterations after the first, in which memory is allocated and connections are made."""
    return table[:, 1:] if table.shape[1] > 1 else table
