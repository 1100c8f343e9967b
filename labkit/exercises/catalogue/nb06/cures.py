"""The exercises of notebook 06 about cures and what they gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises import wraps
from labkit.exercises.exercise import Case, Exercise
from mpiwatch.wording import counted

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI

# mypy: disable-error-code="no-untyped-def"

Results = Callable[[Case], Sequence[Any]]


def _instead(mistake: Callable[..., Any]) -> Results:
    """Return what a mistake makes of the arguments of a case without a communicator."""
    return lambda case: [mistake(*case.arguments[0])]


def time_to_loss(times, losses, target):
    """Return the first time at which the loss is at most `target`; inf if it never is.

    Shapes: times, losses (n,), n ≥ 1, in the order of time; result: one number.
    """
    reached = np.flatnonzero(losses <= target)
    return times[reached[0]] if len(reached) else np.inf


def _first_time(times: np.ndarray, losses: np.ndarray, target: float) -> float:
    return min(
        (t for t, loss in zip(times.tolist(), losses.tolist(), strict=True) if loss <= target), default=np.inf
    )


def _loss_cases() -> Sequence[Case]:
    times = np.array([0.5, 1.0, 2.0, 3.5, 4.0])
    cases = {
        "a falling loss": ([2.0, 1.5, 0.9, 0.6, 0.5], 1.0),
        "a loss that equals the target": ([2.0, 1.5, 1.0, 0.9, 0.8], 1.0),
        "a loss that rises again": ([2.0, 0.9, 1.2, 1.1, 0.8], 1.0),
        "a target that is never reached": ([2.0, 1.8, 1.7, 1.6, 1.5], 1.0),
        "a loss that is no number at the end": ([2.0, 0.9, 3.0, np.inf, np.nan], 1.0),
        "one measurement, below the target": ([0.1, 0.1, 0.1, 0.1, 0.1], 1.0),
    }
    return [Case(label, ((times, np.array(losses), target),)) for label, (losses, target) in cases.items()]


TIME_TO_LOSS = Exercise(
    reference=time_to_loss,
    title="The time to a loss",
    difficulty=1,
    minutes=5,
    cases=_loss_cases,
    expected=_instead(_first_time),
    suspects={
        "this is the number of the measurement; return its time": _instead(
            lambda times, losses, target: int(np.argmax(losses <= target))
        ),
        "the first time is returned where the target is never reached: argmax of an array without True is "
        "0": _instead(lambda times, losses, target: times[np.argmax(losses <= target)]),
        "the last time is returned where the target is never reached; return np.inf": _instead(
            lambda times, losses, target: (
                _first_time(times, losses, target) if np.any(losses <= target) else times[-1]
            )
        ),
        "a loss that equals the target has reached it: compare with <=": _instead(
            lambda times, losses, target: _first_time(times, losses, np.nextafter(target, 0))
        ),
        "this is the time of the lowest loss, not the first time at the target": _instead(
            lambda times, losses, target: times[np.nanargmin(losses)]
        ),
        "this is the last time at which the loss is above the target; the loss may rise again": _instead(
            lambda times, losses, target: times[np.flatnonzero(losses > target)[-1] + 1]
        ),
    },
    hints=(
        "losses <= target is an array of True and False. np.flatnonzero gives the positions of True.",
        "Return times[…] at the first of these positions, and np.inf if there is none.",
    ),
)


def sizes_by_speed(n, speeds):
    """Return each rank's number of samples, in proportion to its speed. Shapes: speeds (p,); result (p,)."""
    exact = n * np.asarray(speeds) / np.sum(speeds)
    sizes = exact.astype(int)  # rounded down
    rest = n - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    return sizes


def _sizes(n: int, speeds: Sequence[float]) -> np.ndarray:
    exact = [n * Fraction(speed) / sum(map(Fraction, speeds)) for speed in speeds]
    sizes = [int(value) for value in exact]
    order = sorted(range(len(speeds)), key=lambda rank: (sizes[rank] - exact[rank], rank))
    for rank in order[: n - sum(sizes)]:
        sizes[rank] += 1
    return np.array(sizes)


def _speed_cases() -> Sequence[Case]:
    cases = (12, [1, 1, 2]), (7, [1, 1, 2]), (10, [1, 1, 1, 1]), (10, [3.0]), (101, [4, 4, 4, 1.5])
    more = (9, [0.25, 8, 8, 8]), (1438, [400.0, 390.0, 410.0, 65.0])
    return [Case(f"{n} samples, speeds {speeds}", ((n, np.array(speeds)),)) for n, speeds in (*cases, *more)]


def _floor(n: int, speeds: np.ndarray) -> np.ndarray:
    return np.array([int(n * Fraction(v) / sum(map(Fraction, speeds.tolist()))) for v in speeds.tolist()])


def _rest_to(rank_of: Callable[[np.ndarray], int]) -> Results:
    def sizes(n: int, speeds: np.ndarray) -> np.ndarray:
        found = _floor(n, speeds)
        found[rank_of(speeds)] += n - found.sum()
        return found

    return _instead(sizes)


SIZES_BY_SPEED = Exercise(
    reference=sizes_by_speed,
    title="Shards by speed",
    difficulty=2,
    minutes=10,
    cases=_speed_cases,
    expected=_instead(lambda n, speeds: _sizes(n, speeds.tolist())),
    suspects={
        "the sizes are rounded down, so the samples that are left over are on no rank": _instead(_floor),
        "each size is rounded for itself, so the sum is not n": _instead(
            lambda n, speeds: np.round(n * speeds / speeds.sum()).astype(int)
        ),
        "all samples that are left over go to rank 0; they belong to the largest remainders": _rest_to(
            lambda speeds: 0
        ),
        "all samples that are left over go to the last rank; they belong to the largest remainders": _rest_to(
            lambda speeds: len(speeds) - 1
        ),
        "all samples that are left over go to the fastest rank; they belong to the largest "
        "remainders": _rest_to(lambda speeds: int(speeds.argmax())),
        "the slowest rank gets most: these are speeds, in samples per second, not times": _instead(
            lambda n, speeds: _sizes(n, (1 / speeds).tolist())
        ),
        "the speeds are not used: equal shards": _instead(lambda n, speeds: _sizes(n, [1] * len(speeds))),
        "sizes are whole numbers: round them so that the sum stays n": _instead(
            lambda n, speeds: n * speeds / speeds.sum()
        ),
    },
    hints=(
        "A rank's exact part is n · speed / sum of the speeds. Round all parts down. How many are left over?",
        "Give one more each to the ranks whose exact part was cut most: the largest remainders.",
        "np.argsort(sizes - exact, kind='stable')[:rest] are these ranks; lower ranks come first in a tie.",
    ),
)


def local_sgd_epoch(comm, gradient, params, batches, lr, every):  # noqa: PLR0917
    """Step with each of this rank's batches; average the parameters after `every` steps and at the end.

    Leave the result in `params` (n,). gradient(params, x, y) returns this rank's gradient (n,); batches is
    a list of (x, y), equally long on all ranks.
    """
    for step, (x, y) in enumerate(batches, start=1):
        params -= lr * gradient(params, x, y)
        if step % every == 0 or step == len(batches):
            comm.Allreduce(MPI.IN_PLACE, params)
            params /= comm.size


def _epoch_cases() -> Sequence[Case]:
    cases = []
    for p, steps, every in ((2, 2, 2), (3, 3, 1), (1, 3, 2), (2, 5, 2), (4, 7, 3), (3, 2, 5)):
        for dtype in (np.float64, np.float32):
            rng = np.random.default_rng(p)
            params = rng.normal(size=4).astype(dtype)
            batches = [
                [
                    (rng.normal(size=(3, 4)).astype(dtype), rng.normal(size=3).astype(dtype))
                    for _ in range(steps)
                ]
                for _ in range(p)
            ]
            label = f"{counted(p, 'rank')}, {steps} steps, every {every}, {dtype.__name__}"
            arguments = tuple((wraps.gradient, params, batches[r], 0.1, every) for r in range(p))
            cases.append(Case(label, arguments))
    return cases


def _epoch(
    is_average: Callable[[int, int, int], bool] = lambda step, every, steps: (
        step % every == 0 or step == steps
    ),
    factor: Callable[[int], float] = lambda p: 1 / p,
    what: str = "parameters",
    sign: float = -1.0,
) -> Results:
    """Return the parameters of all ranks after an epoch, computed in one process, with a mistake."""

    def results(case: Case) -> Sequence[Any]:
        gradient, start, first, lr, every = case.arguments[0]
        models = [start.astype(np.float64) for _ in case.arguments]
        for step in range(1, len(first) + 1):
            steps_of = [
                gradient(w, *given[2][step - 1]) for w, given in zip(models, case.arguments, strict=True)
            ]
            now = is_average(step, every, len(first))
            if what == "gradients" and now:
                steps_of = [factor(case.ranks) * np.sum(steps_of, axis=0)] * case.ranks
            models = [w + sign * lr * g for w, g in zip(models, steps_of, strict=True)]
            if what == "parameters" and now:
                models = [factor(case.ranks) * np.sum(models, axis=0)] * case.ranks
        return [w.astype(start.dtype) for w in models]

    return results


LOCAL_SGD_EPOCH = Exercise(
    reference=local_sgd_epoch,
    title="Local SGD",
    difficulty=3,
    minutes=20,
    cases=_epoch_cases,
    expected=_epoch(),
    suspects={
        "the parameters are never averaged: each rank has a model of its own": _epoch(lambda *_: False),
        "the parameters are averaged in every step: nothing is saved": _epoch(lambda *_: True),
        "the average at the end of the epoch is missing where `every` does not divide the number of "
        "steps": _epoch(lambda step, every, steps: step % every == 0),
        "the parameters are averaged only at the end of the epoch; `every` is not used": _epoch(
            lambda step, every, steps: step == steps
        ),
        "the parameters are averaged one step too early: counted from 0, the averages come after steps "
        "0, every, 2 every, …": _epoch(lambda step, every, steps: (step - 1) % every == 0 or step == steps),
        "the sum of the ranks' parameters is not divided by the number of ranks": _epoch(
            factor=lambda p: 1.0
        ),
        "the gradients are averaged, not the parameters; between averages the models drift apart, and an "
        "average of gradients does not bring them back together": _epoch(what="gradients"),
        "the step goes uphill: subtract the gradient": _epoch(sign=1.0),
    },
    hints=(
        "In each step every rank updates its own parameters, without any message.",
        "After step number `every`, 2 · `every`, … and after the last step, average the parameters.",
        "comm.Allreduce(MPI.IN_PLACE, params) sums them over the ranks; then divide in place.",
    ),
    on_ranks=True,
    result_in=1,
    prelude="import numpy as np\nfrom mpi4py import MPI",
)

EXERCISES = [TIME_TO_LOSS, SIZES_BY_SPEED, LOCAL_SGD_EPOCH]
