"""Learning-rate schedules: each returns a function from the step number, counted from 0, to the rate."""

from __future__ import annotations

import math
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


def cosine(lr: float, steps: int) -> LRSchedule:
    """Return a schedule that falls from lr to 0 in `steps` steps, along half a period of the cosine.

    It gives lr · (1 + cos(π · step / steps)) / 2, and 0 from then on. Raise ValueError if `steps` is below 1.
    Source: I. Loshchilov, F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017, § 3;
    without restarts, it is PyTorch's CosineAnnealingLR.
    """
    if steps < 1:
        raise ValueError(f"expected a cosine over 1 or more steps, got {steps}")
    return lambda step: lr * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def linear_scaling(ranks: int, steps: int, then: LRSchedule) -> LRSchedule:
    """Return the schedule `then` of one rank, scaled for `ranks` ranks with as large a local batch each.

    The factor grows linearly from 1 to `ranks` in `steps` steps (a warm-up). The global batch is `ranks`
    times as large: with a rate `ranks` times as large, one step moves about as far as `ranks` steps of one
    rank. That holds only while the weights change slowly, so the factor has to grow from 1. Raise ValueError
    if `ranks` is below 1 or `steps` below 0.
    Source: P. Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, § 2.1, § 2.2.
    """
    if ranks < 1 or steps < 0:
        raise ValueError(f"expected 1 or more ranks and 0 or more steps, got {ranks} and {steps}")
    return lambda step: then(step) * (1 + (ranks - 1) * (min(1.0, step / steps) if steps else 1.0))
