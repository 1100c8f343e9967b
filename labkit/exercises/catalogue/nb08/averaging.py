"""Gradient accumulation: the gradient of a large batch from micro-batches, with one all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.exercises.wraps import at_most
from mpiwatch.wording import counted


def accumulate(comm, micro_batches, total):  # type: ignore[no-untyped-def]
    """Leave the mean gradient over the samples of all ranks in `total` (n,).

    `micro_batches` yields pairs: the mean gradient over a micro-batch (n,), and its number of samples.
    """
    total[...] = 0
    samples = 0
    for gradient, count in micro_batches:
        total += count * gradient
        samples += count
    comm.Allreduce(total.copy(), total)
    total /= comm.allreduce(samples)


def _cases() -> Sequence[Case]:
    cases = []
    for of_ranks, dtype in (
        (((4,),), np.float64),
        (((4, 4), (4, 4)), np.float32),
        (((4, 4, 2),), np.float64),
        (((4, 1), (4, 4)), np.float64),
        (((4, 2), (3,), (4, 4, 1)), np.float32),
        (((4, 4), (4, 4), (4, 3), ()), np.float64),
    ):
        rng, arguments = np.random.default_rng(len(of_ranks)), []
        for counts in of_ranks:
            pairs = [(rng.normal(1, 2, size=6).astype(dtype), count) for count in counts]
            arguments.append((pairs, np.full(6, 7, dtype)))  # the 7s are to be overwritten
        each = "; ".join("+".join(map(str, counts)) or "0" for counts in of_ranks)
        cases.append(
            Case(
                f"micro-batches of {each} samples on {counted(len(of_ranks), 'rank')}",
                tuple(arguments),
            )
        )
    return cases


def _sums(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each rank's weighted sum (p, n), its samples (p, 1) and its number of micro-batches (p, 1)."""
    sums = [sum((g.astype(np.float64) * k for g, k in pairs), np.zeros(6)) for pairs, _ in case.arguments]
    samples = [[sum(k for _, k in pairs)] for pairs, _ in case.arguments]
    return np.array(sums), np.array(samples), np.array([[len(pairs)] for pairs, _ in case.arguments])


def _plain(case: Case) -> np.ndarray:
    """Return each rank's sum of the micro-batches' mean gradients, not weighted."""
    return np.array(
        [sum((g.astype(np.float64) for g, _ in pairs), np.zeros(6)) for pairs, _ in case.arguments]
    )


def _total(how: Callable[[Case], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return what `how` makes of a case, (n,) or (p, n), as the result of every rank."""

    def result(case: Case) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            made = np.broadcast_to(how(case), (case.ranks, 6))
        return [row.astype(case.arguments[0][1].dtype) for row in made]

    return result


def _mean(case: Case) -> np.ndarray:
    sums, samples, _ = _sums(case)
    return sums.sum(axis=0) / samples.sum()


def _without_last(case: Case) -> np.ndarray:
    kept = [[pair for pair in pairs if pair[1] == 4] for pairs, _ in case.arguments]
    total = sum((g.astype(np.float64) * k for pairs in kept for g, k in pairs), np.zeros(6))
    return total / sum(k for pairs in kept for _, k in pairs)


EXERCISES = [
    Exercise(
        reference=accumulate,
        title="Gradient accumulation",
        difficulty=3,
        minutes=15,
        cases=_cases,
        expected=_total(_mean),
        suspects={
            "`total` is unchanged: add to the array in place": lambda case: [t for _, t in case.arguments],
            "what was in `total` before is counted, too: set it to 0 first": _total(
                lambda case: _mean(case) + 7 * case.ranks / _sums(case)[1].sum()
            ),
            "each micro-batch counts equally: weight its gradient by its number of samples": _total(
                lambda case: _plain(case).sum(axis=0) / _sums(case)[2].sum()
            ),
            "the micro-batches' gradients are added, not averaged: the step grows with their number": _total(
                lambda case: _plain(case).sum(axis=0)
            ),
            "the sum is not divided by the number of samples": _total(
                lambda case: _sums(case)[0].sum(axis=0)
            ),
            "each rank counts equally: divide by the samples of all ranks, after the all-reduce": _total(
                lambda case: np.nan_to_num(_sums(case)[0] / _sums(case)[1]).mean(axis=0)
            ),
            "the sum over the ranks is divided by this rank's samples: divide by those of all ranks": _total(
                lambda case: _sums(case)[0].sum(axis=0) / _sums(case)[1]
            ),
            "this is the mean over this rank's samples: the ranks have to exchange their sums": _total(
                lambda case: np.nan_to_num(_sums(case)[0] / _sums(case)[1])
            ),
            "smaller micro-batches are left out: the last one counts, too": _total(_without_last),
        },
        on_ranks=True,
        wrap=at_most(1, 24, "the gradient is sent for the second time: once is enough, after the loop"),
        result_in=1,
        hints=(
            "A mean of means is right only if each is weighted by its number of samples.",
            "Loop: total += count * gradient, and count samples. After the loop, one Allreduce of `total`.",
            "A rank without micro-batches calls Allreduce, too, with 0. Divide by comm.allreduce(samples).",
        ),
        prelude="import numpy as np\nfrom mpi4py import MPI",
    ),
]
