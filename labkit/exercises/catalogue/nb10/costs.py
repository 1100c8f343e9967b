"""The exercise of notebook 10 about report D: the cost of two averaging algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit import schedules
from labkit.exercises.exercise import Case, Exercise
from labkit.schedules import CostModel

# mypy: disable-error-code="no-untyped-def"


def averaging_seconds(nbytes, p, calls, model):
    """Return (all_reduce, all_gather): the seconds for averaging a gradient around a ring, by cost model.

    nbytes: the bytes of the gradient, cut into `calls` equal arrays; each array is averaged in a call of its
    own. model: (alpha, beta, gamma), in s/message, s/byte sent and s/byte added. After the all-gather,
    every rank adds up the p gradients by itself.
    """
    alpha, beta, gamma = model
    chunk = nbytes / p
    all_reduce = 2 * (p - 1) * (calls * alpha + chunk * beta) + (p - 1) * chunk * gamma
    all_gather = (p - 1) * (calls * alpha + nbytes * beta + nbytes * gamma)
    return all_reduce, all_gather


def _seconds(case: Case) -> Sequence[Any]:
    nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
    array = nbytes // calls
    reduced = schedules.cost(schedules.ring_allreduce(p), array, CostModel(alpha, beta, gamma))
    gathered = schedules.cost(schedules.ring_allgather(p), p * array, CostModel(alpha, beta))
    return [(calls * reduced, calls * (gathered + (p - 1) * array * gamma))]


def _cases() -> Sequence[Case]:
    rows = (
        (2, 1, 1e-3, 0.0, 0.0),
        (2, 5, 1e-3, 0.0, 0.0),
        (4, 1, 0.0, 1e-8, 0.0),
        (4, 3, 0.0, 0.0, 1e-9),
        (2, 8, 2e-4, 8e-9, 3e-10),
        (7, 8, 5e-5, 1e-9, 1e-10),
        (1, 2, 1e-4, 1e-8, 1e-9),
    )
    return [
        Case(
            f"{p} rank{'s' * (p > 1)}, {calls} call{'s' * (calls > 1)}, "
            f"α = {alpha:g}, β = {beta:g}, γ = {gamma:g}",
            ((4 * 840 * 100, p, calls, (alpha, beta, gamma)),),
        )
        for p, calls, alpha, beta, gamma in rows
    ]


def _of(reduce: Sequence[float] = (2, 2, 1), gather: Sequence[float] = (1, 1, 1)) -> Callable[[Case], Any]:
    """Return the two times if messages, bytes sent and bytes added have these factors."""

    def results(case: Case) -> Sequence[Any]:
        nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
        terms = calls * alpha, nbytes * beta, nbytes * gamma
        share = 1, 1 / p, 1 / p
        all_reduce = sum((p - 1) * f * s * t for f, s, t in zip(reduce, share, terms, strict=True))
        return [(all_reduce, sum((p - 1) * f * t for f, t in zip(gather, terms, strict=True)))]

    return results


def _changed(change: Callable[..., Sequence[Any]]) -> Callable[[Case], Sequence[Any]]:
    """Return the right times of changed arguments."""
    return lambda case: _of()(case._replace(arguments=(tuple(change(*case.arguments[0])),)))


def _no_chunks(case: Case) -> Sequence[Any]:
    nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
    steps = p - 1
    all_reduce = 2 * steps * (calls * alpha + nbytes * beta) + steps * nbytes * gamma
    return [(all_reduce, _of()(case)[0][1])]


def _chunk_added(case: Case) -> Sequence[Any]:
    nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
    all_reduce, _ = _of()(case)[0]
    return [(all_reduce, (p - 1) * (calls * alpha + nbytes * beta + nbytes / p * gamma))]


def _p_gathered(case: Case) -> Sequence[Any]:
    nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
    return [(_of()(case)[0][0], p * (calls * alpha + nbytes * beta) + (p - 1) * nbytes * gamma)]


AVERAGING_SECONDS = Exercise(
    reference=averaging_seconds,
    title="The cost of two averaging algorithms",
    difficulty=3,
    minutes=15,
    cases=_cases,
    expected=_seconds,
    suspects={
        "the all-reduce goes around the ring once here; it goes around twice, to add and to copy": _of(
            reduce=(1, 1, 1)
        ),
        "the latency counts once here; every call sends its own messages": _changed(
            lambda n, p, calls, model: (n, p, 1, model)
        ),
        "every call sends the whole gradient here; each sends its own part of it": _changed(
            lambda n, p, calls, model: (n * calls, p, calls, model)
        ),
        "the messages of the all-reduce hold the whole gradient here; a rank sends one chunk of it, "
        "nbytes / p, at a time": _no_chunks,
        "nothing is added after the all-gather here; it only collects the gradients": _of(gather=(1, 1, 0)),
        "after the all-gather a rank adds one chunk here; it has to add whole gradients": _chunk_added,
        "the all-gather sends p gradients here; a rank's own need not be received": _p_gathered,
        "the all-reduce adds on both ways around the ring here; the second only copies": _of(
            reduce=(2, 2, 2)
        ),
        "the times are swapped; return the all-reduce first": lambda case: [tuple(reversed(_of()(case)[0]))],
    },
    hints=(
        "All-reduce: p - 1 messages to add the chunks up, p - 1 to copy them. A chunk has nbytes / p bytes.",
        "All-gather: p - 1 messages, each a whole gradient. Then p - 1 gradients are added to the first.",
        "With c calls each message is cut into c messages: c times the latency, the same bytes.",
    ),
    prelude="",
)

EXERCISES = [AVERAGING_SECONDS]
