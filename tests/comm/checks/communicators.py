"""Communicators whose Allreduce is a schedule, in place of mpi4py's own."""

from __future__ import annotations

import array

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import CountingComm, RingComm, ScheduledComm
from labkit.schedules import ALLREDUCE

SCHEDULED = [
    type(name, (ScheduledComm,), {"schedule": staticmethod(schedule)}) for name, schedule in ALLREDUCE.items()
]


def check_every_form_of_a_message(comm: MPI.Intracomm) -> None:
    p, total = comm.size, sum(range(comm.size))
    for wrap in SCHEDULED:
        own = wrap(comm)
        here, into = np.full(5, comm.rank, np.float32), np.zeros(5, np.float32)
        own.Allreduce(here, into)
        np.testing.assert_array_equal(into, total)
        np.testing.assert_array_equal(here, comm.rank)
        own.Allreduce([here, MPI.FLOAT], [into, 5, MPI.FLOAT], op=MPI.MAX)
        np.testing.assert_array_equal(into, p - 1)
        own.Allreduce(MPI.IN_PLACE, [here, 3])
        np.testing.assert_array_equal(here, [total] * 3 + [comm.rank] * 2)
        ints = array.array("i", [comm.rank, 1])
        own.Allreduce(MPI.IN_PLACE, ints)
        assert ints.tolist() == [total, p]
        raw = bytearray(np.full(3, comm.rank, np.int16).tobytes())
        own.Allreduce(MPI.IN_PLACE, [raw, MPI.INT16_T])
        assert np.frombuffer(raw, np.int16).tolist() == [total] * 3
        matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        own.Allreduce(MPI.IN_PLACE, matrix)
        np.testing.assert_array_equal(matrix, np.arange(6.0).reshape(2, 3) * p)
        one = np.array(comm.rank)
        own.Allreduce(MPI.IN_PLACE, one)
        assert one == total


def check_other_operations_and_dtypes_use_the_mpi_library(comm: MPI.Intracomm) -> None:
    own = RingComm(CountingComm(comm))
    first = MPI.Op.Create(lambda a, b, _: memoryview(b).__setitem__(slice(None), bytes(a)), commute=False)
    ranks = np.array([comm.rank], np.uint8)
    own.Allreduce(MPI.IN_PLACE, ranks, first)
    assert ranks == 0
    first.Free()
    truth = np.array([comm.rank == 0, True])
    own.Allreduce(MPI.IN_PLACE, truth, MPI.LAND)
    assert truth.tolist() == [comm.size == 1, True]
    assert own.allreduce(1) == comm.size and own.bcast(comm.rank) == 0
    assert "ring_allreduce" not in {row.name for row in own.traffic()}


def check_its_messages_never_meet_the_callers(comm: MPI.Intracomm) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for wrap in SCHEDULED:
        own = wrap(comm)
        mine = np.full(4, comm.rank), np.full(4, -1)
        coming = own.Irecv(mine[1], MPI.ANY_SOURCE, MPI.ANY_TAG)
        values = np.full(9, comm.rank)
        own.Allreduce(MPI.IN_PLACE, values)
        np.testing.assert_array_equal(values, sum(range(comm.size)))
        own.Send(mine[0], right)
        coming.Wait()
        np.testing.assert_array_equal(mine[1], left)


def check_arguments_that_mpi4py_refuses_are_an_error_before_any_message(comm: MPI.Intracomm) -> None:
    own, fine, read_only = RingComm(comm), np.ones(6, np.float32), np.ones(6, np.float32)
    read_only.flags.writeable = False
    for sent, received, words in (
        (MPI.IN_PLACE, read_only, "read-only"),
        (MPI.IN_PLACE, np.ones(12, np.float32)[::2], "contiguous"),
        (MPI.IN_PLACE, [fine, 9], "at least 9 values"),
        (np.ones(5), np.ones(6), "5 values of float64, got 6 values"),
    ):
        with pytest.raises(ValueError, match=words):
            own.Allreduce(sent, received)
    np.testing.assert_array_equal(fine, 1)
