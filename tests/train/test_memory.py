"""The memory and the time of a call."""

from __future__ import annotations

import tracemalloc
from time import sleep, thread_time

import numpy as np

from labkit.train.memory import least_time_and_peak

MIB = 1 << 20


def test_the_fastest_call_and_the_most_memory_of_a_call_are_measured() -> None:
    work_s = iter([0.0, 0.2, 0.02, 0.2])  # the first call is traced, not timed

    def call(size: int) -> None:
        np.empty(size, np.uint8)
        np.empty(2 * MIB, np.uint8)
        sleep(0.05)  # waiting is no work
        end = thread_time() + next(work_s)
        while thread_time() < end:
            pass

    seconds, peak = least_time_and_peak(call, 3 * MIB, repeats=3)
    assert 0.02 <= seconds < 0.05
    assert 3 * MIB <= peak < 4 * MIB
    assert not tracemalloc.is_tracing()
