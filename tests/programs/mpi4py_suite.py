"""mpi4py's own tests with MPI.COMM_WORLD and MPI.COMM_SELF replaced by communicators of the lab.

mpiexec -n 3 python mpi4py_suite.py FOLDER-OF-TESTS [COMMUNICATOR …] [--modules MODULE …]

Rank 0 prints a JSON row per communicator and module. A test counts as failed if it fails on any rank. With
MPI4PY_SUITE_TRACE set, each rank writes the name of each test to standard error before it runs.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from mpi4py import MPI

from labkit.comm import CountingComm, EmulatedComm, Link, RingComm, ScheduledComm
from labkit.schedules import ALLREDUCE
from mpiwatch.communicators import WatchedComm, watch

WORLD, SELF = MPI.COMM_WORLD, MPI.COMM_SELF
MODULES = (
    *("test_p2p_buf", "test_p2p_obj", "test_p2p_buf_matched", "test_p2p_obj_matched"),
    *("test_cco_buf", "test_cco_vec", "test_cco_obj", "test_cco_nb_buf", "test_cco_nb_vec"),
    *("test_cco_pr_buf", "test_comm", "test_comm_topo", "test_msgzero", "test_request"),
)

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

# Tests that are not run: communicator, test (module.class.name), both as patterns of fnmatch, and the reason.
PICKLE = "pickles COMM_WORLD by its name in mpi4py: a wrapper is another object of the same handle"
REFUSED = "calls what EmulatedComm refuses because it cannot hold it back (NotImplementedError)"
EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("[!m]*", "test_comm.TestCommSelf.testPickle", PICKLE),
    ("[!m]*", "test_comm.TestCommWorld.testPickle", PICKLE),
    *(
        ("*emulated*", name, REFUSED)  # after they have sent messages, which the next test would receive
        for name in ("test_p2p_buf.*.testSendRecv", "test_p2p_buf.*.testPersistent", "test_p2p_*_matched.*")
    ),
)


class Result(unittest.TestResult):
    """What became of each test: passed, skipped by mpi4py, or the traceback of its failure."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.ends[test.id()] = "passed"
        if "MPI4PY_SUITE_TRACE" in os.environ:
            sys.stderr.write(f"{time.perf_counter():.3f} rank {WORLD.rank}: {test.id()}\n")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.ends[test.id()] = "skipped"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        is_refusal = isinstance(err[1], NotImplementedError) and "on an emulated link" in str(err[1])
        self.ends[test.id()] = REFUSED if is_refusal else "".join(traceback.format_exception(*err))

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


def run(communicator: str, module: str, pattern: str) -> dict[str, Any]:
    """Run a module's tests on a communicator; return the row, the same on all ranks."""
    excepted: Counter[str] = Counter()
    chosen = unittest.TestSuite()
    sys.modules.pop(module, None)  # each communicator has classes of its own
    began = time.perf_counter()
    with replaced(COMMUNICATORS[communicator]):
        adapt()
        for test in cases(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))):
            if not fnmatch(test.id(), f"*{pattern}*"):
                continue
            reasons = [
                why
                for who, what, why in EXCEPTIONS
                if fnmatch(communicator, who) and fnmatch(test.id(), what)
            ]
            if reasons:
                excepted[reasons[0]] += 1
            else:
                chosen.addTest(test)
        result = Result()
        chosen.run(result)
    ends = {test_id: "passed" for test_id in result.ends}
    for rank, by_test in enumerate(WORLD.allgather(result.ends)):
        for test_id, end in by_test.items():
            if end in ("skipped", REFUSED) and ends[test_id] == "passed":
                ends[test_id] = end
            elif end not in ("passed", "skipped", REFUSED):
                ends[test_id] = f"rank {rank}: {end}"
    refused = sum(end == REFUSED for end in ends.values())
    if refused:
        excepted[REFUSED] += refused
    failed = {test_id: end for test_id, end in ends.items() if end.startswith("rank ")}
    passed = sum(end == "passed" for end in ends.values())
    return {
        "mpi": MPI.get_vendor()[0],
        "p": WORLD.size,
        "communicator": communicator,
        "module": module,
        "run": len(ends) - refused,
        "passed": passed,
        "skipped": sum(end == "skipped" for end in ends.values()),
        "excepted": excepted,
        "failed": failed,
        "seconds": round(time.perf_counter() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("communicators", nargs="*")
    parser.add_argument("--modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", default="*")
    parser.add_argument("--limit", type=float, default=0)
    options = parser.parse_args()
    sys.path.insert(0, options.folder)
    sys.argv[1:] = []
    if options.limit:
        faulthandler.dump_traceback_later(options.limit, exit=True)
    for communicator in options.communicators or COMMUNICATORS:
        for module in options.modules:
            row = run(communicator, module, options.tests)
            if WORLD.rank == 0:
                print(json.dumps(row), flush=True)


main()
