"""What each rank measured in each iteration, for the figures and tables of a run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from labkit.train.callbacks import Callback, Iteration
from labkit.train.experiment.run_record import write_csv

COLUMNS = "iteration", "loss", "time_s", "compute_s", "wait_s", "communication_s"
PARTS = "compute", "wait for the last rank", "exposed communication", "rest"
MOST = 100_000  # iterations that are kept, of each rank


class Iterations(Callback):
    """Record the loss and the times of a run's iterations: give it to `train`, then `gather` it.

    The time (s) of an iteration runs from its begin to the begin of the next one, so that the times add up to
    that of the run; the last one ends with itself. In it, a rank computes (forward and backward pass, and the
    update), waits for the last rank, and communicates where that is not hidden behind computation (exposed
    communication). The rest is what callbacks do, and the end of an epoch. `local_batch` is the number of
    samples in this rank's largest local batch.
    """

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._begin = 0.0
        self.local_batch = 0

    def after_step(self, it: Iteration) -> None:
        if self._rows:
            self._rows[-1][2] = it.begin - self._begin
        if len(self._rows) < MOST:
            compute = it.ready - it.begin + it.done - it.end
            parts = [compute, it.start - it.ready, it.end - it.start]
            self._rows.append([it.number, it.loss, it.done - it.begin, *parts])
        self._begin = it.begin
        self.local_batch = max(self.local_batch, it.local_batch)

    def gather(self, comm: MPI.Intracomm) -> np.ndarray:
        """Return a table of all ranks on rank 0, an empty one elsewhere. Collective.

        Shape: (p, iterations, 6), with the columns of COLUMNS.
        """
        own = np.array(self._rows).reshape(-1, len(COLUMNS))
        return np.array(comm.gather(own) or np.empty((0, *own.shape)))


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
