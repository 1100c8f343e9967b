"""Whether the record in a run's folder holds what a reader needs to judge the run (docs/checklist.md)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

OPTIMISER = "lr", "lr_schedule", "momentum", "weight_decay"
PARTS = "compute_s", "wait_s", "communication_s"
RAW = "run.json", "model.npz", "sync_times.csv", "trace.json"


class Record(NamedTuple):
    """The files of a run: run.json, the rows of iterations.csv, and the folder's file names."""

    run: Mapping[str, Any]
    iterations: list[dict[str, str]]
    files: frozenset[str]

    def by_rank(self, *names: str) -> bool:
        """Return whether run.json has a list of these names with a known entry for each rank."""
        return all(len(self.run[name]) == self.run["ranks"] and all(self.run[name]) for name in names)

    def settings(self, *names: str) -> bool:
        """Return whether run.json has a value for each of these settings."""
        return all(self.run["settings"][name] is not None for name in names)

    def ended(self, *names: str) -> bool:
        """Return whether each rank has noted these at the end; None is the accuracy of a regression."""
        rows = self.run["ended"]
        return len(rows) == self.run["ranks"] and all(name in row for row in rows for name in names)

    def epochs(self, *names: str) -> bool:
        """Return whether each rank has noted these in every epoch."""
        return bool(self.run["epochs"]) and all(name in row for row in self.run["epochs"] for name in names)


def _has_threads(record: Record) -> bool:
    return record.by_rank("blas_threads") and all(any(own.values()) for own in record.run["blas_threads"])


def _has_every_iteration(record: Record) -> bool:
    numbers: dict[str, list[int]] = {}
    for row in record.iterations:
        numbers.setdefault(row["rank"], []).append(int(row["iteration"]))
    without_gaps = (own == list(range(own[0], own[0] + len(own))) for own in numbers.values())
    return len(numbers) == record.run["ranks"] and all(without_gaps)


def _parts_fit(record: Record) -> bool:
    """Return whether the parts of each iteration's time are known and not longer than the whole."""
    parts = [sum(float(row[name]) for name in PARTS) for row in record.iterations]
    wholes = [float(row["time_s"]) for row in record.iterations]
    fit = (part <= whole + 1e-6 for part, whole in zip(parts, wholes, strict=True))
    return bool(parts) and math.isfinite(sum(wholes)) and all(fit)


# Each item's name, as docs/checklist.md has it, and whether a record holds it.
ITEMS: dict[str, Callable[[Record], bool]] = {
    "nodes by name": lambda record: record.by_rank("hosts"),
    "cores per rank": lambda record: record.by_rank("cores"),
    "BLAS threads": _has_threads,
    "versions": lambda record: bool(
        record.run["versions"]["mpi_library"] and record.run["versions"]["numpy"]
    ),
    "data set and its size": lambda record: record.settings("data") and record.run["batches"]["samples"] > 0,
    "sharding": lambda record: record.settings("shard"),
    "samples per rank": lambda record: record.epochs("samples"),
    "model": lambda record: bool(record.run["model"]["name"] and record.run["model"]["shape"]),
    "initialisation seed": lambda record: record.settings("seed"),
    "optimiser and learning rate": lambda record: record.settings(*OPTIMISER),  # always SGD
    "global and local batch": lambda record: (
        record.run["batches"]["global_batch"] > 0 and record.ended("local_batch")
    ),
    "updates per epoch": lambda record: record.run["batches"]["updates_per_epoch"] > 0,
    "what is averaged, and when": lambda record: record.settings("algorithm", "average_after_step"),
    "mean or sum": lambda record: record.settings("aggregate"),
    "buffers": lambda record: record.settings("buffers"),
    "equal weights": lambda record: record.ended("parameters_hash", "buffers_hash"),
    "local and global loss": lambda record: record.epochs("local_loss", "global_loss"),
    "accuracy as a count": lambda record: record.ended("test_correct", "test_samples"),
    "start and end of each time": lambda record: bool(record.run["times"]),
    "warm-up apart": _has_every_iteration,
    "computation, wait, communication": _parts_fit,
    "command": lambda record: bool(record.run["command"]),
    "raw data": lambda record: record.files.issuperset(RAW),
}


def missing(directory: str | Path) -> list[str]:
    """Return the items of the checklist that the record in a run's folder does not hold.

    Raise ValueError if the folder has no run.json that can be read.
    """
    directory = Path(directory)
    try:
        run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"expected a run's folder with run.json, got {directory}: {error}") from None
    rows: list[dict[str, str]] = []
    with suppress(OSError), (directory / "iterations.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    record = Record(run, rows, frozenset(path.name for path in directory.iterdir()))
    return [name for name, is_held in ITEMS.items() if not _holds(record, is_held)]


def _holds(record: Record, is_held: Callable[[Record], bool]) -> bool:
    try:
        return is_held(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # absent, or of another kind
        return False
