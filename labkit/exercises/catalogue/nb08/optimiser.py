"""The update of the weights: momentum and weight decay, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome


def momentum_step(params, velocity, grads, lr, momentum, weight_decay):  # type: ignore[no-untyped-def]
    """Change `velocity` and `params` in place; leave `grads` as it is. Shapes: all three (n,)."""
    velocity *= momentum
    velocity += grads + weight_decay * params
    params -= lr * velocity


def warm_up_cosine(step, peak, warm_up, steps):  # type: ignore[no-untyped-def]
    """Return the learning rate of update number `step`, counted from 0, of a run of `steps` updates."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / (steps - warm_up)
    return peak * (1 + math.cos(math.pi * progress)) / 2


# ---------------------------------------------------------------- momentum and weight decay


def _step_cases() -> Sequence[Case]:
    cases = []
    for n, momentum, decay in (2, 0.0, 0.0), (3, 0.9, 0.0), (3, 0.0, 0.1), (5, 0.9, 0.1), (70, 0.5, 0.01):
        for dtype in np.float64, np.float32:
            params, velocity, grads = np.random.default_rng(n).normal(size=(3, n)).astype(dtype)
            label = f"{n} parameters, momentum {momentum}, weight decay {decay}, {dtype.__name__}"
            cases.append(Case(label, ((params, velocity, grads, 0.5, momentum, decay),)))
    return cases


def _velocity(params, velocity, grads, lr, momentum, decay):  # type: ignore[no-untyped-def]
    """Return the right velocity after the step, in the dtype of the parameters."""
    after = momentum * velocity.astype(np.float64) + grads + decay * params.astype(np.float64)
    return after.astype(params.dtype)


def _step(how: Callable[..., np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return the parameters after the step params - lr · how(params, velocity, grads, momentum, decay)."""

    def result(case: Case) -> Sequence[Any]:
        params, velocity, grads, lr, momentum, decay = case.arguments[0]
        wide = (each.astype(np.float64) for each in (params, velocity, grads))
        return [(params - lr * how(*wide, momentum, decay)).astype(params.dtype)]

    return result


def _look_at_velocity(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    params, velocity, grads, lr, momentum, decay = case.arguments[0]
    got, expected = outcomes[0].arguments[1], _velocity(*case.arguments[0])
    wrong = {
        "velocity is unchanged: write to the array, velocity[...] = … or velocity *= …": velocity,
        "velocity lacks the weight decay: it is added to the gradient, before the momentum": (
            momentum * velocity + grads
        ),
        "velocity holds the learning rate: it belongs into the update of params": lr * expected,
        "velocity is the gradient alone: the momentum is lost": grads + decay * params,
    }
    if np.allclose(got, expected, rtol=1e-5, atol=1e-6):
        return None
    for finding, values in wrong.items():
        if np.allclose(got, values, rtol=1e-5, atol=1e-6):
            return f"params is right, {finding} ({case.label})"
    return f"params is right, velocity[0] is {got[0]:.4f}, expected {expected[0]:.4f} ({case.label})"


# ---------------------------------------------------------------- the learning rate


def _rate_cases() -> Sequence[Case]:
    cases = []
    for step, warm_up, steps in (
        *((0, 0, 10), (0, 1, 10), (9, 0, 10), (5, 0, 10)),
        *((0, 4, 12), (1, 4, 12), (3, 4, 12), (4, 4, 12), (8, 4, 12), (11, 4, 12), (99, 20, 100)),
    ):
        label = f"step {step} of {steps}, warm-up of {warm_up} steps, peak 0.4"
        cases.append(Case(label, ((step, 0.4, warm_up, steps),)))
    return cases


def _rate(step: int, peak: float, warm_up: int, steps: int) -> float:
    """Return the rate by half-angle: (1 + cos 2a) / 2 = cos² a."""
    if step < warm_up:
        return peak - peak * (warm_up - 1 - step) / warm_up
    return float(peak * math.cos(math.pi / 2 * (step - warm_up) / (steps - warm_up)) ** 2)


def _rates(how: Callable[[int, float, int, int], float]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [how(*case.arguments[0])]


def _cosine(peak: float, progress: float) -> float:
    return peak * (1 + math.cos(math.pi * progress)) / 2


def _warmed(step: int, peak: float, warm_up: int, then: float, start: int = 1) -> float:
    """Return the rate of a warm-up that starts at peak · start / warm_up; `then` after it."""
    return peak * (step + start) / warm_up if step < warm_up else then


EXERCISES = [
    Exercise(
        reference=momentum_step,
        title="SGD with momentum and weight decay",
        difficulty=2,
        minutes=10,
        cases=_step_cases,
        expected=_step(lambda w, v, g, momentum, decay: momentum * v + g + decay * w),
        suspects={
            "params is unchanged: write to the array, params -= …, and do not make a new one": _step(
                lambda w, v, g, momentum, decay: 0 * w
            ),
            "the step uses the old velocity: update velocity first": _step(
                lambda w, v, g, momentum, decay: v
            ),
            "the step uses the gradient, not the velocity": _step(
                lambda w, v, g, momentum, decay: g + decay * w
            ),
            "the velocity is not multiplied by the momentum": _step(
                lambda w, v, g, momentum, decay: v + g + decay * w
            ),
            "the new gradient is multiplied by 1 - momentum: SGD adds all of it": _step(
                lambda w, v, g, momentum, decay: momentum * v + (1 - momentum) * (g + decay * w)
            ),
            "this is Nesterov's momentum, which looks one step ahead": _step(
                lambda w, v, g, momentum, decay: momentum * (momentum * v + g + decay * w) + g + decay * w
            ),
            "the weight decay is missing": _step(lambda w, v, g, momentum, decay: momentum * v + g),
            "the weight decay has the wrong sign: it makes the weights grow": _step(
                lambda w, v, g, momentum, decay: momentum * v + g - decay * w
            ),
            "the step goes uphill: subtract lr · velocity": _step(
                lambda w, v, g, momentum, decay: -(momentum * v + g + decay * w)
            ),
        },
        look=_look_at_velocity,
        result_in=0,
        may_change=(1,),
        hints=(
            "Three lines: velocity times momentum; plus gradient and decay; a step against it.",
            "The decay is a part of the gradient: grads + weight_decay * params.",
            "velocity *= …, velocity += …, params -= … change the arrays; velocity = … would only rename.",
        ),
    ),
    Exercise(
        reference=warm_up_cosine,
        title="Warm-up and cosine",
        difficulty=2,
        minutes=10,
        cases=_rate_cases,
        expected=_rates(_rate),
        suspects={
            "the first step of the warm-up has the rate 0 and changes nothing: it is peak / warm_up": _rates(
                lambda step, peak, warm_up, steps: (
                    _warmed(step, peak, warm_up, _rate(step, peak, 0, steps), start=0)
                    if step < warm_up
                    else _rate(step, peak, warm_up, steps)
                )
            ),
            "after the warm-up the rate stays at its peak: let it fall along the cosine": _rates(
                lambda step, peak, warm_up, steps: _warmed(step, peak, warm_up, peak)
            ),
            "the cosine starts at step 0: count from the end of the warm-up, or the rate jumps there": _rates(
                lambda step, peak, warm_up, steps: _warmed(step, peak, warm_up, _cosine(peak, step / steps))
            ),
            "there is no warm-up": _rates(lambda step, peak, warm_up, steps: _rate(step, peak, 0, steps)),
            "the cosine is `steps` long from the end of the warm-up, so the rate does not come down": _rates(
                lambda step, peak, warm_up, steps: _warmed(
                    step, peak, warm_up, _cosine(peak, (step - warm_up) / steps)
                )
            ),
            "the rate ends below 0: the cosine goes from 1 to -1; add 1 and halve": _rates(
                lambda step, peak, warm_up, steps: _warmed(
                    step, peak, warm_up, peak * math.cos(math.pi * (step - warm_up) / (steps - warm_up))
                )
            ),
            "this is a straight line down, not a cosine": _rates(
                lambda step, peak, warm_up, steps: _warmed(
                    step, peak, warm_up, peak * (1 - (step - warm_up) / (steps - warm_up))
                )
            ),
            "the rate rises again: half a period of the cosine takes π, not 2 π": _rates(
                lambda step, peak, warm_up, steps: _warmed(
                    step, peak, warm_up, _cosine(peak, 2 * (step - warm_up) / (steps - warm_up))
                )
            ),
        },
        hints=(
            "Two cases: step < warm_up, and all others. With warm_up = 0 the first never occurs.",
            "In the warm-up: peak * (step + 1) / warm_up.",
            "After it, progress = (step - warm_up) / (steps - warm_up); peak * (1 + cos(π progress)) / 2.",
        ),
        prelude="import math\n\nimport numpy as np",
    ),
]
