"""mpi4py's own tests of Allreduce, on our communicators: mpi4py_suite.py FOLDER-OF-TESTS."""

import sys
import unittest

from mpi4py import MPI

from labkit.comm import (
    CountingComm,
    HalvingDoublingComm,
    RecursiveDoublingComm,
    RingComm,
    RootComm,
    TreeComm,
)

sys.path.insert(0, sys.argv.pop(1))
import test_cco_buf as theirs

suite = unittest.TestSuite()
counting = CountingComm(MPI.COMM_WORLD)
for kind in RootComm, RingComm, TreeComm, RecursiveDoublingComm, HalvingDoublingComm:
    for base in theirs.TestCCOBufWorld, theirs.TestCCOBufInplaceWorld:
        ours = type(f"{base.__name__}_{kind.__name__}", (base,), {"COMM": kind(counting)})
        suite.addTest(ours("testAllreduce"))


class OfADuplicate(theirs.TestCCOBufWorld):
    def setUp(self):
        self.COMM = RingComm(counting).Dup()

    def tearDown(self):
        self.COMM.Free()


suite.addTest(OfADuplicate("testAllreduce"))

result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2 * (counting.rank == 0)).run(suite)
if not result.wasSuccessful():
    MPI.COMM_WORLD.Abort(1)
if counting.size > 1:
    names = {row.name for row in counting.traffic() if row.messages is not None and row.messages.sum()}
    assert {
        "root_allreduce",
        "ring_allreduce",
        "tree_allreduce",
        "recursive_doubling",
        "halving_doubling",
    } <= names
if counting.rank == 0:
    print(f"{result.testsRun} tests of mpi4py's passed")
