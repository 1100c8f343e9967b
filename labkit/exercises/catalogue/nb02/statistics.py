"""Batch norm on several ranks: the statistics of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises import wraps
from labkit.exercises.exercise import Case, Exercise

CHANNEL = (0, 2, 3)  # the axes that share a channel


def global_statistics(comm, x):  # type: ignore[no-untyped-def]
    """Return (mean, var) of each channel over all ranks. Shapes: x (N, C, H, W); result (C,), (C,)."""
    channels = x.shape[1]
    parts = np.empty(1 + 2 * channels)  # how many entries, their sum, the sum of their squares
    parts[0] = x.size / channels
    parts[1 : 1 + channels] = x.sum(axis=(0, 2, 3), dtype=np.float64)
    parts[1 + channels :] = np.square(x, dtype=np.float64).sum(axis=(0, 2, 3))
    total = np.empty_like(parts)
    comm.Allreduce(parts, total)
    mean = total[1 : 1 + channels] / total[0]
    return mean, total[1 + channels :] / total[0] - mean**2


def _statistics_cases() -> Sequence[Case]:
    cases = []
    for samples, offset, dtype in (
        ((2,), 0, np.float64),
        ((1, 3), 0, np.float64),
        ((2, 2), 0, np.float32),
        ((3, 1, 2), 0, np.float32),
        ((2, 0, 3, 1), 0, np.float64),
        ((4, 1, 2, 3), 300, np.float32),
    ):
        rng, x = np.random.default_rng(len(samples)), []
        for rank, n in enumerate(samples):
            x.append((rng.normal(2 * rank, 1 + rank, size=(n, 3, 2, 4)) + offset).astype(dtype))
        label = f"{' + '.join(map(str, samples))} samples, {dtype.__name__}"
        label += f", values near {offset}" * (offset > 0)
        cases.append(Case(label, tuple((each,) for each in x)))
    return cases


def _of_ranks(how: Callable[[list[np.ndarray]], Any]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of global_statistics: `how` makes the (mean, var) of all ranks' local batches."""

    def suspect(case: Case) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return [how([x for (x,) in case.arguments])] * case.ranks

    return suspect


def _over_all(x: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    whole = np.concatenate(x).astype(np.float64)
    return whole.mean(axis=CHANNEL), whole.var(axis=CHANNEL)


def _per_rank(x: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each rank's means, variances and weight: (p, C), (p, C), (p, 1)."""
    whole = [each.astype(np.float64) for each in x if len(each)]
    weights = np.array([[len(each)] for each in whole]) / sum(map(len, whole))
    means, variances = (np.array([f(each, axis=CHANNEL) for each in whole]) for f in (np.mean, np.var))
    return means, variances, weights


def _mean_of_variances(x: list[np.ndarray]) -> Any:
    _, variances, weights = _per_rank(x)
    return _over_all(x)[0], (weights * variances).sum(axis=0)


def _mean_of_means(x: list[np.ndarray]) -> Any:
    means, variances, _ = _per_rank(x)
    return means.mean(axis=0), (variances + means**2).mean(axis=0) - means.mean(axis=0) ** 2


def _mean_of_both(x: list[np.ndarray]) -> Any:
    means, variances, _ = _per_rank(x)
    return means.mean(axis=0), variances.mean(axis=0)


def _own(case: Case) -> Sequence[Any]:
    return [_over_all([x]) if len(x) else None for (x,) in case.arguments]


def _unbiased(x: list[np.ndarray]) -> Any:
    whole = np.concatenate(x).astype(np.float64)
    return whole.mean(axis=CHANNEL), whole.var(axis=CHANNEL, ddof=1)


EXERCISES = [
    Exercise(
        reference=global_statistics,
        title="Statistics of the global batch",
        difficulty=3,
        minutes=15,
        cases=_statistics_cases,
        expected=_of_ranks(_over_all),
        suspects={
            "each rank has the statistics of its own local batch: the ranks have to exchange something": _own,
            "var is the mean of the ranks' variances: it misses how far their means are apart": _of_ranks(
                _mean_of_variances
            ),
            "each rank counts equally: weight each by its number of samples": _of_ranks(_mean_of_means),
            "both are plain means over the ranks; var also misses the distance of the means": _of_ranks(
                _mean_of_both
            ),
            "the variance is divided by M - 1: here it is divided by M": _of_ranks(_unbiased),
        },
        on_ranks=True,
        wrap=wraps.all_of(
            wraps.at_most(
                1, 1, "this is collective number {calls}: put count, sums and squares into one array"
            ),
            wraps.at_most(0, 90, "{nbytes} bytes in one message: send sums, not the local batch"),
        ),
        hints=(
            "What do you need to know of each local batch, so that adding it up over the ranks is enough?",
            "The count, and each channel's sum and sum of squares: 1 + 2 C numbers in one float64 array.",
            "var = (sum of squares) / M - mean².",
        ),
        tolerance=1e-6,
        prelude="import numpy as np\nfrom mpi4py import MPI",
    ),
]
