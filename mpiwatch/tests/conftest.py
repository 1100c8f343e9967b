"""A flight recorder without ranks, for tests of what it holds and of the reports made from it."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator

import pytest

from mpiwatch.recorder import FlightRecorder


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[FlightRecorder]:
    """A flight recorder of three ranks, or of `request.param`, that all belong to this process."""
    recorder = FlightRecorder(FlightRecorder.create(getattr(request, "param", 3)))
    for slot in recorder.slots:
        slot.pid, slot.sampled_s = os.getpid(), math.inf  # no watchdog will sample it
    yield recorder
    recorder.remove()
    assert not glob.glob(f"{recorder.path}*")
