"""Learning-rate schedules: each returns a function from the step number, counted from 0, to the rate."""

from __future__ import annotations

from collections.abc import Callable

LRSchedule = Callable[[int], float]


def constant(lr: float) -> LRSchedule:
    """Return a schedule that always gives lr."""
    return lambda step: lr


def step_decay(lr: float, every: int, factor: float = 0.1) -> LRSchedule:
    """Return a schedule that multiplies the rate by `factor` after every `every` steps.

    It gives lr · factor^⌊step / every⌋. Raise ValueError if `every` is below 1.
    """
    if every < 1:
        raise ValueError(f"expected a decay every 1 or more steps, got every {every}")
    return lambda step: lr * factor ** (step // every)


def warm_up(steps: int, then: LRSchedule) -> LRSchedule:
    """Return a schedule that grows linearly for `steps` steps, then follows `then`.

    It gives then(step) · min(1, (step + 1) / steps). Training with large batches starts with a warm-up: with
    p ranks, the global batch is p times as large and calls for a rate p times as large, but at that rate the
    first steps, far from any minimum, diverge. Raise ValueError if `steps` is below 1.
    Source: P. Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, § 2.2.
    """
    if steps < 1:
        raise ValueError(f"expected a warm-up of 1 or more steps, got {steps}")
    return lambda step: then(step) * min(1.0, (step + 1) / steps)
