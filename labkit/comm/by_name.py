"""The averaging algorithms as functions, by their names in `labkit.algorithms`."""

from __future__ import annotations

from functools import partial

from labkit.algorithms import OTHERS, SCHEDULES
from labkit.comm import algorithms
from labkit.comm.algorithms import Algorithm

FIXED: dict[str, Algorithm] = {
    **{name: getattr(algorithms, function) for name, function in OTHERS.items()},
    **{name: partial(algorithms.scheduled, name) for name in SCHEDULES},
}
