"""Whether the record in a run's folder holds what a reader needs to judge the run (docs/checklist.md)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from labkit.files import read_input
from labkit.train.columns import PARTS

RAW = "run.json", "model.npz", "iterations.csv", "trace.json"
BY_RANK = "hosts", "cores", "blas_threads", "ended"  # lists in run.json with an entry for each rank
NOT_OF_REGRESSIONS = "ended/*/test_correct"  # None there
# Raised where a record lacks a value, or has a value of another type.
ABSENT = KeyError, TypeError, ValueError, AttributeError, IndexError


class Record(NamedTuple):
    """The files of a run: run.json, the rows of iterations.csv, and the folder's file names."""

    run: Mapping[str, Any]
    iterations: list[dict[str, str]]
    files: frozenset[str]

    def holds(self, path: str) -> bool:
        """Return whether run.json has a value at a path; a star stands for every entry of a list."""
        values: list[Any] = [self.run]
        for name in path.split("/"):
            values = [entry for value in values for entry in (value if name == "*" else [value[name]])]
        expected = self.run["ranks"] if path.startswith(BY_RANK) else len(values)
        known = path == NOT_OF_REGRESSIONS or all(value not in (None, "", [], {}) for value in values)
        return known and len(values) == expected > 0


def _has_every_iteration(record: Record) -> bool:
    numbers: dict[str, list[int]] = {}
    for row in record.iterations:
        numbers.setdefault(row["rank"], []).append(int(row["iteration"]))
    without_gaps = (
        numbers_of_rank == list(range(numbers_of_rank[0], numbers_of_rank[0] + len(numbers_of_rank)))
        for numbers_of_rank in numbers.values()
    )
    return len(numbers) == record.run["ranks"] and all(without_gaps)


def _parts_fit(record: Record) -> bool:
    """Return whether the parts of each iteration's time are known and not longer than the whole."""
    parts = [sum(float(row[name]) for name in PARTS.values()) for row in record.iterations]
    wholes = [float(row["time_s"]) for row in record.iterations]
    fit = (part <= whole + 1e-6 for part, whole in zip(parts, wholes, strict=True))
    return bool(parts) and math.isfinite(sum(wholes)) and all(fit)


# Each item's name, as docs/checklist.md has it, and what a record needs to hold it: paths in run.json, or a
# function that tells.
ITEMS: dict[str, tuple[str, ...] | Callable[[Record], bool]] = {
    "nodes by name": ("hosts/*",),
    "cores per rank": ("cores/*",),
    "BLAS threads": ("blas_threads/*",),
    "versions": ("versions/mpi_library", "versions/numpy"),
    "data set and its size": ("settings/data", "batches/samples"),
    "sharding": ("settings/shard",),
    "samples per rank": ("epochs/*/samples",),
    "model": ("model/name", "model/shape"),
    "initialisation seed": ("settings/seed",),
    "optimiser and learning rate": (
        "optimizer",
        "settings/lr",
        "settings/lr_schedule",
        "settings/momentum",
        "settings/weight_decay",
    ),
    "global and local batch": ("batches/global_batch", "ended/*/local_batch"),
    "updates per epoch": ("batches/updates_per_epoch",),
    "what is averaged, and when": ("settings/algorithm", "settings/average_after_step"),
    "mean or sum": ("settings/aggregate",),
    "buffers": ("settings/buffers",),
    "equal weights": ("ended/*/parameters_hash", "ended/*/buffers_hash"),
    "local and global loss": ("epochs/*/local_loss", "epochs/*/global_loss"),
    "accuracy as a count": (NOT_OF_REGRESSIONS, "ended/*/test_samples"),
    "start and end of each time": ("times",),
    "warm-up apart": _has_every_iteration,
    "computation, wait, communication": _parts_fit,
    "command": ("command",),
    "raw data": lambda record: record.files.issuperset(RAW),
}


def missing(directory: str | Path) -> list[str]:
    """Return the items of the checklist that the record in a run's folder does not hold.

    Raise ValueError if the folder has no run.json that can be read.
    """
    directory = Path(directory)
    try:
        run = json.loads(read_input(directory / "run.json").decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"expected a run's folder with run.json, got {directory}: {error}") from None
    rows: list[dict[str, str]] = []
    with suppress(OSError):
        text = read_input(directory / "iterations.csv").decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    record = Record(run, rows, frozenset(path.name for path in directory.iterdir()))
    left_out = []
    for name, needed in ITEMS.items():
        held = False
        with suppress(*ABSENT):
            held = needed(record) if callable(needed) else all(map(record.holds, needed))
        left_out += [] if held else [name]
    return left_out
