"""Predicting the time of a training step on many ranks."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.exercise import Case, Exercise
from labkit.schedules import CostModel, cost, ring_allreduce


def predicted_step(ranks, compute_s, nbytes, cost, scaling):
    """Return the time (s) of a step on `ranks` ranks: computation, then a ring all-reduce of the gradient.

    `compute_s` is the computation time on one rank, `nbytes` the size of the gradient. `cost` has alpha (s
    per message), beta (s per byte sent) and gamma (s per byte reduced). `scaling` is "strong" (the ranks
    share the computation evenly) or "weak" (each rank computes as long as one rank alone).
    """
    chunk = nbytes / ranks
    averaging = 2 * (ranks - 1) * (cost.alpha + chunk * cost.beta) + (ranks - 1) * chunk * cost.gamma
    if scaling == "strong":
        return compute_s / ranks + averaging
    return compute_s + averaging


def _cases() -> Sequence[Case]:
    cases = []
    for ranks, compute_s, nbytes, alpha, beta, gamma in (
        (1, 2.0, 64, 0.5, 0.25, 0.125),
        (2, 1.0, 64, 0.5, 0.0, 0.0),
        (4, 1.0, 64, 0.0, 0.25, 0.0),
        (4, 1.0, 64, 0.0, 0.0, 0.125),
        (4, 1.0, 64, 0.5, 0.25, 0.125),
        (256, 3.0, 1 << 20, 2e-5, 1e-9, 3e-10),
    ):
        for scaling in ("strong", "weak"):
            label = (
                f"{ranks} ranks, {nbytes} bytes, alpha {alpha:g}, beta {beta:g}, gamma {gamma:g}, {scaling}"
            )
            cases.append(Case(label, ((ranks, compute_s, nbytes, CostModel(alpha, beta, gamma), scaling),)))
    return cases


def _step(case: Case, averaging: Callable[[int, int, CostModel], float] | None = None) -> float:
    ((ranks, compute_s, nbytes, model, scaling),) = case.arguments
    seconds = cost(ring_allreduce(ranks), nbytes, model) if averaging is None else 0.0
    if averaging is not None:
        seconds = averaging(ranks, nbytes, model)
    return float(compute_s / (ranks if scaling == "strong" else 1) + seconds)


def _ring(p: int, n: float, c: CostModel, rounds: int, chunk: float) -> float:
    return rounds * (c.alpha + chunk * c.beta) + (p - 1) * chunk * c.gamma


def _averaging(function: Callable[[int, int, CostModel], float]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [_step(case, function)]


def _computation(change: Callable[[int, float, str], float]) -> Callable[[Case], Sequence[Any]]:
    def result(case: Case) -> Sequence[Any]:
        ((ranks, compute_s, nbytes, model, scaling),) = case.arguments
        return [change(ranks, compute_s, scaling) + cost(ring_allreduce(ranks), nbytes, model)]

    return result


EXERCISES = [
    Exercise(
        reference=predicted_step,
        title="Predict the time of a step",
        difficulty=3,
        minutes=15,
        cases=_cases,
        expected=lambda case: [_step(case)],
        tolerance=1e-6,
        suspects={
            "the computation is not shared: in strong scaling each rank does 1/p of it": _computation(
                lambda p, s, scaling: s
            ),
            "in weak scaling each rank computes as long as one rank alone": _computation(
                lambda p, s, scaling: s / p
            ),
            "strong and weak scaling are exchanged": _computation(
                lambda p, s, scaling: s / (p if scaling == "weak" else 1)
            ),
            "a ring all-reduce has 2 (p - 1) rounds: reduce-scatter and all-gather": _averaging(
                lambda p, n, c: _ring(p, n, c, p - 1, n / p)
            ),
            "each message carries a chunk of n / p bytes, not the whole gradient": _averaging(
                lambda p, n, c: _ring(p, n, c, 2 * (p - 1), n)
            ),
            "each of the 2 (p - 1) messages has a latency, not only the first": _averaging(
                lambda p, n, c: (p > 1) * c.alpha + _ring(p, n, c, 2 * (p - 1), n / p) - 2 * (p - 1) * c.alpha
            ),
            "there are p - 1 rounds in each half of a ring, not p": _averaging(
                lambda p, n, c: 2 * p * (c.alpha + n / p * c.beta) + p * n / p * c.gamma
            ),
            "only the reduce-scatter adds: gamma counts p - 1 chunks": _averaging(
                lambda p, n, c: _ring(p, n, c, 2 * (p - 1), n / p) + (p - 1) * n / p * c.gamma
            ),
            "the reduction cost gamma is missing": _averaging(
                lambda p, n, c: 2 * (p - 1) * (c.alpha + n / p * c.beta)
            ),
        },
        hints=(
            "Count for one rank: how many messages and bytes does it send, how many bytes does it add?",
            "2 (p - 1) messages of n / p bytes each. Only those of the reduce-scatter, p - 1, are reduced.",
        ),
    ),
]
