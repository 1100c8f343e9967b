"""The tests of mpiwatch need mpi4py, NumPy, psutil and pytest, and an MPI; nothing of the lab."""

from __future__ import annotations

import glob
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import mpi4py
import pytest

import jobs
from mpiwatch import packages
from mpiwatch.recorder import FlightRecorder

# No test process is an MPI process: modules that it imports may load MPI, but must not initialise it.
mpi4py.rc.initialize = False


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: a further case of what other tests find faster")


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports advise what mpiwatch itself can do, whatever else this process has imported."""
    monkeypatch.setattr(packages, "advice", packages.Advice())


@pytest.fixture(scope="session", name="run")
def _run() -> Callable[..., subprocess.CompletedProcess[str]]:
    return jobs.run


@pytest.fixture(scope="session")
def programs() -> Path:
    return jobs.PROGRAMS


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[FlightRecorder]:
    """A flight recorder of three ranks, or of `request.param`, that all belong to this process."""
    recorder = FlightRecorder(FlightRecorder.create(getattr(request, "param", 3)))
    for slot in recorder.slots:
        slot.pid, slot.sampled_s = os.getpid(), math.inf  # no watchdog will sample it
    yield recorder
    recorder.remove()
    assert not glob.glob(f"{recorder.path}*")
