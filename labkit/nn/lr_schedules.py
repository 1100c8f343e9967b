"""Learning-rate schedules: functions of the number of the step, counted from 0."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """Return the schedule that is always lr."""
    return lambda step: lr


def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """Return the schedule that multiplies lr by `factor` every so many steps: lr · factor^⌊step / every⌋."""
    if every < 1:
        raise ValueError(f"a decay every {every} steps: expected at least 1")
    return lambda step: lr * factor ** (step // every)


def warm_up(steps: int, then: Schedule) -> Schedule:
    """Return a schedule that first grows in a straight line: then(step) · min(1, (step + 1) / steps).

    Large batches begin with it: p ranks make the batch p times larger and ask for a p times larger rate,
    which the first steps, far from any minimum, do not bear.
    Source: P. Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, § 2.2.
    """
    if steps < 1:
        raise ValueError(f"a warm-up of {steps} steps: expected at least 1")
    return lambda step: then(step) * min(1.0, (step + 1) / steps)
