"""mpi4py's own tests with MPI.COMM_WORLD and MPI.COMM_SELF replaced by communicators of the lab.

mpiexec -n 3 python mpi4py_suite.py FOLDER-OF-TESTS COMMUNICATOR MODULE …

Rank 0 prints a JSON row per module. A test counts as failed if it fails on any rank.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from mpi4py import MPI

from labkit.comm import CountingComm, EmulatedComm, Link, RingComm, ScheduledComm
from labkit.schedules import ALLREDUCE
from mpiwatch.communicators import WatchedComm, watch

WORLD, SELF = MPI.COMM_WORLD, MPI.COMM_SELF
DTYPES = "idF"  # an integer, a float, a complex number

Wrap = Callable[[MPI.Intracomm], MPI.Intracomm]


def watched(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a watched communicator on the same handle."""
    return watch() if comm == WORLD else WatchedComm(comm)


def emulated(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator with fast emulated links."""
    return EmulatedComm(comm, Link(1e10, 1e-6))


COMMUNICATORS: dict[str, Wrap] = {
    "mpi4py's own": lambda comm: comm,
    "counting": CountingComm,
    **{
        name: type(name, (ScheduledComm,), {"schedule": staticmethod(schedule)})
        for name, schedule in ALLREDUCE.items()
    },
    "watched": watched,
    "emulated": emulated,
    "counting(watched)": lambda comm: CountingComm(watched(comm)),
    "ring(watched)": lambda comm: RingComm(watched(comm)),
    "ring(counting)": lambda comm: RingComm(CountingComm(comm)),
    "ring(emulated)": lambda comm: RingComm(emulated(comm)),
    "counting(ring(watched))": lambda comm: CountingComm(RingComm(watched(comm))),
    "ring(counting(watched))": lambda comm: RingComm(CountingComm(watched(comm))),
}

# Tests that are not run: communicator and test (module.class.name), both as patterns of fnmatch.
EXCEPTIONS = (
    # They pickle COMM_WORLD by its name in mpi4py: a wrapper is another object of the same handle.
    *(("[!m]*", f"test_comm.TestComm{name}.testPickle") for name in ("Self", "World")),
    # EmulatedComm refuses them after they have sent messages, which the next test would receive.
    *(("*emulated*", f"test_p2p_buf.*.test{name}") for name in ("SendRecv", "Persistent")),
    ("*emulated*", "test_p2p_*_matched.*"),
)


class Result(unittest.TestResult):
    """What became of each test: passed, not run, or the traceback of its failure."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.ends[test.id()] = "passed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.ends[test.id()] = "not run"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        is_refusal = isinstance(err[1], NotImplementedError) and "on an emulated link" in str(err[1])
        self.ends[test.id()] = "not run" if is_refusal else "".join(traceback.format_exception(*err))

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.addError(test, err)


@contextmanager
def replaced(wrap: Wrap) -> Iterator[None]:
    """Let `MPI.COMM_WORLD` and `MPI.COMM_SELF` be communicators of the lab."""
    MPI.COMM_WORLD, MPI.COMM_SELF = wrap(WORLD), wrap(SELF)
    try:
        yield
    finally:
        MPI.COMM_WORLD, MPI.COMM_SELF = WORLD, SELF


def adapt() -> None:
    """Keep three dtypes of each array library: mpi4py repeats most tests for each of its 20.

    Skip one check of test_comm_topo, which compares classes: what mpi4py makes from a bare handle is not
    wrapped.
    """
    for array in importlib.import_module("arrayimpl").ArrayBackends:
        array.TypeMap = {code: datatype for code, datatype in array.TypeMap.items() if code in DTYPES}
    importlib.import_module("test_comm_topo").BaseTestTopo.checkHandle = lambda self, comm: None


def cases(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestSuite):
        for part in suite:
            yield from cases(part)
    else:
        yield suite


def run(communicator: str, module: str) -> dict[str, Any]:
    """Run a module's tests on a communicator; return the row, the same on all ranks."""
    chosen, result = unittest.TestSuite(), Result()
    with replaced(COMMUNICATORS[communicator]):
        adapt()
        for test in cases(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))):
            if not any(fnmatch(communicator, who) and fnmatch(test.id(), what) for who, what in EXCEPTIONS):
                chosen.addTest(test)
        chosen.run(result)
    by_rank, passed, failed = WORLD.allgather(result.ends), 0, {}
    for test in result.ends:
        ends = {rank: each.get(test, "not run") for rank, each in enumerate(by_rank)}
        passed += set(ends.values()) == {"passed"}
        if not set(ends.values()) <= {"passed", "not run"}:
            failed[test] = ends
    return {"communicator": communicator, "module": module, "passed": passed, "failed": failed}


folder, name, *modules = sys.argv[1:]
sys.path.insert(0, folder)
sys.argv[1:] = []
for module in modules:
    row = run(name, module)
    if WORLD.rank == 0:
        print(json.dumps(row), flush=True)
