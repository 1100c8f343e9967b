"""Averaging that is started, continued and waited for gives what the blocking algorithm gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import (
    ALGORITHMS,
    STARTABLE,
    CountingComm,
    EmulatedComm,
    Link,
    Started,
    algorithm,
    run,
    shared_memory,
    startable,
)
from labkit.comm.averaging.shared_memory import SharedMemory
from labkit.schedules import ring_allreduce
from mpiwatch import waiting
from mpiwatch.communicators import resume, watch
from mpiwatch.errors import HangError

FIXED = {name: steps for name, steps in STARTABLE.items() if name != "auto"}  # auto measures first
SIZES = 0, 1, 2, 5, 1003


def gradients(comm: MPI.Intracomm, n: int, dtype: type) -> np.ndarray:
    """Return this rank's gradient; all differ."""
    return np.random.default_rng([comm.rank, n]).normal(size=n).astype(dtype)


def until_ended(started: Started) -> None:
    while not started.test():
        waiting.yield_core()


def assert_equal(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    if name == "mpi":  # Iallreduce may add in another order
        np.testing.assert_allclose(got, expected, rtol=0, atol=40 * np.finfo(expected.dtype).eps)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=name)


def check_what_is_started_gives_what_the_blocking_algorithm_gives(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    for name, steps in FIXED.items():
        for n in SIZES:
            for dtype in np.float32, np.float64:
                expected = gradients(comm, n, dtype)
                one, other = expected.copy(), expected.copy()
                weight = (1 + comm.rank) / sum(range(1, comm.size + 1))
                ALGORITHMS[name](own, expected, weight)
                until_ended(Started(own, one, weight, steps))
                Started(own, other, weight, startable(algorithm(name))).wait()
                assert_equal(name, one, expected)
                assert_equal(name, other, expected)
    own.Free()


def check_several_in_flight_are_served_in_their_order(comm: MPI.Intracomm) -> None:
    """A long one, an empty one and short ones, waited for from the last to the first."""
    own = comm.Dup()
    for name, steps in FIXED.items():
        parts = [gradients(comm, n, np.float32) for n in (300_001, 0, 1, 1003, 7)]
        expected = [part.copy() for part in parts]
        for part in expected:
            ALGORITHMS[name](own, part, 0.25)
        started = [Started(own, part, 0.25, steps) for part in parts]
        for number in reversed(range(len(started))):
            started[number].wait()
            assert all(one.ended for one in started[: number + 1])
        for part, sum_ in zip(parts, expected, strict=True):
            assert_equal(name, part, sum_)
    own.Free()


def check_buckets_in_shared_memory_are_averaged_where_they_lie(comm: MPI.Intracomm) -> None:
    nodes: tuple[Callable[[int], int], ...] = (lambda rank: 0, lambda rank: rank % 2, lambda rank: rank)
    for node in nodes:
        memory = SharedMemory(group=lambda comm: comm.Split(node(comm.rank), comm.rank))  # noqa: B023
        whole = memory.array(comm, 5001)
        whole[...] = values = gradients(comm, 5001, np.float32)
        expected = values.copy()
        cuts = (5001, 4000, 3999, 0)
        for stop, start in pairwise(cuts):
            memory(comm, expected[start:stop], 0.5)
        started = [Started(comm, whole[start:stop], 0.5, memory.steps) for stop, start in pairwise(cuts)]
        started[-1].wait()
        np.testing.assert_array_equal(whole, expected)


def check_the_messages_of_what_is_started_are_counted_under_its_name(comm: MPI.Intracomm) -> None:
    blocking, counting = CountingComm(comm), CountingComm(comm)
    run(blocking, ring_allreduce(comm.size), np.ones(1003, np.float32))
    run(blocking, ring_allreduce(comm.size), np.ones(64, np.float32))
    own = [np.ones(n, np.float32) for n in (1003, 64)]
    started = [Started(counting, array, 1.0, STARTABLE["ring"]) for array in own]
    # A message of the caller's own goes out between those of the schedules.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receiving = counting.Irecv(np.empty(3, np.int32), left, 0)
    counting.Isend(np.ones(3, np.int32), right).Wait()
    receiving.Wait()
    started[1].wait()
    counted = {row.name: row for row in counting.traffic()}
    assert counted.pop("messages").sent.sum() == 12 * comm.size
    assert [str(row) for row in counted.values()] == [str(row) for row in blocking.traffic()]
    counting.reset()
    Started(counting, own[0], 1.0, STARTABLE["mpi"]).wait()
    assert [(row.name, row.calls, row.sent) for row in counting.traffic()] == [("Iallreduce", 1, None)]


def check_what_is_started_takes_its_time_on_emulated_links(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, Link(8e6))
    part = (comm.size - 1) / comm.size
    for name in "ring", "mpi":
        arrays = [np.full(8192, comm.rank, np.float32) for _ in range(2)]
        comm.Barrier()
        began = perf_counter()
        started = [Started(slow, array, 1.0, STARTABLE[name]) for array in arrays]
        started[0].wait()
        first = perf_counter() - began
        started[1].wait()
        second = perf_counter() - began
        takes = 2 * part * 32_768 / 8e6 if comm.size > 1 else 0.0
        assert first >= takes and second >= 2 * takes, (name, first, second, takes)
        assert (arrays[0] == sum(range(comm.size))).all() and (arrays[1] == arrays[0]).all()
    comm.Barrier()
    began = perf_counter()
    requests = [slow.Iallreduce(MPI.IN_PLACE, array) for array in arrays]  # the second queues for the port
    for request in reversed(requests):
        request.Wait()
    assert perf_counter() - began >= 2 * takes


def check_a_missing_rank_is_reported_with_the_bucket_it_never_started(comm: MPI.Intracomm) -> None:
    world, last = watch(), comm.rank == comm.size - 1
    before, world.deadline_s = world.deadline_s, 0.5
    for name, said in ("ring", "ring_allreduce"), ("shared-memory", "shared-memory"), ("mpi", "Iallreduce"):
        own = world.Dup() if name != "mpi" or MPI.get_vendor()[0] != "Open MPI" else None
        if own is None or comm.size == 1:
            continue  # Open MPI's next collective would be out of step
        Started(own, np.ones(10), 1.0, STARTABLE[name], "bucket 1 of 2").wait()
        if not last:
            second = Started(own, np.ones(10), 1.0, STARTABLE[name], "bucket 2 of 2")
            with pytest.raises(HangError, match=rf"{said} \(bucket 2 of 2\)") as error:
                second.wait()
            assert second.ended and f"rank {comm.size - 1} " in str(error.value), error.value
        MPI.COMM_WORLD.Barrier()
        resume()
        MPI.COMM_WORLD.Barrier()
        if name == "shared-memory":  # in step again after a hang
            array = np.ones(10)
            Started(own, array, 1.0, STARTABLE[name]).wait()
            assert (array == comm.size).all()
    world.deadline_s = before


def check_what_cannot_be_started_is_refused(comm: MPI.Intracomm) -> None:
    for given in algorithm("allgather", "median"), lambda comm, gradient, weight: None:
        with pytest.raises(ValueError, match="expected an algorithm that can be started, one of mpi, "):
            startable(given)
    assert set(STARTABLE) == set(ALGORITHMS)
    assert startable(shared_memory) == shared_memory.steps
    array = np.full(3, 2.0)
    Started(comm, array, 0.5, startable(algorithm("ring", "sum"))).wait()
    assert (array == 2.0 * comm.size).all()  # a sum ignores the weight
