"""What each rank measured in each iteration, for the figures and tables of a run."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

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
    samples in this rank's largest local batch, and `total_s` the time since this object was made. A resumed
    run goes on with what was recorded before the break; the break itself counts nowhere.
    """

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._begin = math.nan  # of the last iteration; unknown after a break
        self._made, self._before_s = perf_counter(), 0.0
        self.local_batch = 0

    @property
    def total_s(self) -> float:
        return self._before_s + perf_counter() - self._made

    def after_step(self, it: Iteration) -> None:
        if not math.isnan(self._begin):
            self._rows[-1][2] = it.begin - self._begin
        if len(self._rows) < MOST:
            compute = it.ready - it.begin + it.done - it.end
            parts = [compute, it.start - it.ready, it.end - it.start]
            self._rows.append([it.number, it.loss, it.done - it.begin, *parts])
        self._begin = it.begin
        self.local_batch = max(self.local_batch, it.local_batch)

    def state(self) -> dict[str, np.ndarray]:
        return {"rows": self._table(), "others": np.array([self.local_batch, self.total_s])}

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        self._rows = state["rows"].tolist()
        self.local_batch, self._before_s = int(state["others"][0]), float(state["others"][1])

    def gather(self, comm: MPI.Intracomm) -> np.ndarray:
        """Return a table of all ranks on rank 0, an empty one elsewhere. Collective.

        Shape: (p, iterations, 6), with the columns of COLUMNS.
        """
        own = self._table()
        return np.array(comm.gather(own) or np.empty((0, *own.shape)))

    def _table(self) -> np.ndarray:
        return np.array(self._rows, float).reshape(-1, len(COLUMNS))


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
