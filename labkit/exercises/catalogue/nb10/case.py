"""The exercises of notebook 10 about a report that nobody has read."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.reports.generated.faults import figures
from labkit.reports.generated.remarks import remark

# mypy: disable-error-code="no-untyped-def"


def referee(figures):
    """Return (kind, rank): the fault in a generated report; rank is None if it is not on one rank.

    figures: as `reports.unseen(seed).figures`. kind: one of `reports.KINDS`.
    """
    f, samples = figures, figures["samples"]
    weights = samples / samples.sum()
    checksum = f["checksum"][:, -1]
    equal = (checksum[:, None] == checksum).sum(axis=1)  # how many ranks print this rank's checksum
    moved = np.r_[0, f["start"][1:] != f["stop"][:-1]]
    counts = f["accuracy_percent"] / 100 * samples[:, None]
    broken = np.abs(counts - np.rint(counts)).max(axis=1) > 1e-6
    total = f["total_s"].sum(axis=1)  # equal on all ranks of a synchronous job
    per_sample = f["compute_s"].sum(axis=1) / samples
    step = -f["learning_rate"] * (weights @ f["bias_gradient"])
    first, other = f["updates_per_epoch"]

    kind, rank = "none", None
    if equal.min() < len(samples):
        kind, rank = "left out", int(equal.argmin())
    elif moved.any():
        kind, rank = "shards", int(moved.argmax())
    elif broken.any():
        kind, rank = "count", int(broken.argmax())
    elif total.min() < 0.98 * total.max():
        kind, rank = "clock", int(total.argmin())
    elif per_sample.max() > 1.3 * per_sample.min():
        kind, rank = "straggler", int(per_sample.argmax())
    elif not np.allclose(f["bias_change"], step, rtol=1e-3, atol=1e-6):
        kind = "sum"
    elif not np.allclose(f["global_loss"], weights @ f["local_loss"], rtol=1e-6):
        kind = "unweighted"
    elif first != other:
        kind = "settings"
    return kind, rank


SEEDS = range(40)  # each kind of fault is among them


@cache
def _figures(seed: int) -> dict[str, Any]:
    return figures(seed)


def _label(seed: int, p: int) -> str:
    return f"report {seed} ({p} ranks)"


def _seed(case: Case) -> int:
    return int(case.label.split()[1])


def _referee_cases() -> Sequence[Case]:
    cases = [
        Case(_label(seed, _figures(seed)["ranks"]), ((copy.deepcopy(_figures(seed)),),)) for seed in SEEDS
    ]
    return sorted(cases, key=lambda case: (case.arguments[0][0]["ranks"], _seed(case)))


def _missed(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    return remark(_seed(case), outcomes[0].result)


REFEREE = Exercise(
    reference=referee,
    title="Find the fault in any report",
    difficulty=5,
    minutes=40,
    cases=_referee_cases,
    expected=None,
    suspects={},
    look=_missed,
    hints=(
        "Write one check for each kind: what must hold in every correct job, and which figures show it? "
        "Each report breaks only one of these rules.",
        "Checksums, shards and counts are exact. Times are not: compare sums over all epochs, and allow a "
        "few per cent.",
        "Shards are unequal. Divide computation by the samples before you compare ranks, and weight each "
        "mean over ranks with samples / samples.sum().",
        "In a synchronous job, all ranks take the same time per epoch. The bias changes by -learning_rate "
        "times the weighted mean gradient.",
    ),
)

EXERCISES = [REFEREE]
