"""Algorithms driven as generators give what blocking calls give, and say what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import (
    ALGORITHMS,
    Averaging,
    CountingComm,
    EmulatedComm,
    Link,
    average,
    run,
    shared_array,
)
from labkit.comm.running import Steps, complete
from labkit.schedules import ring_allreduce
from mpiwatch import waiting
from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError
from tests.comm.checks.sharing import on_nodes

FIXED = [name for name in ALGORITHMS if name != "auto"]  # auto measures first
SIZES = 0, 1, 2, 5, 1003


def gradients(comm: MPI.Intracomm, n: int, dtype: type) -> np.ndarray:
    """Return this rank's gradient; all differ."""
    return np.random.default_rng([comm.rank, n]).normal(size=n).astype(dtype)


def drive(steps: Steps) -> None:
    """Let it go on as far as it can, again and again, until it has ended."""
    for over, _ in steps:
        while not over():
            waiting.yield_core()


def assert_equal(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    if name == "mpi":  # Iallreduce may add in another order
        np.testing.assert_allclose(got, expected, rtol=0, atol=40 * np.finfo(expected.dtype).eps)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=name)


def check_a_driven_generator_gives_what_the_blocking_call_gives(comm: MPI.Intracomm) -> None:
    own, weight = comm.Dup(), (1 + comm.rank) / sum(range(1, comm.size + 1))
    robust = [Averaging("allgather", "median"), Averaging("mpi-allgather", "trimmed-mean")]
    for averaging in [*map(Averaging, FIXED), Averaging("ring", "mean"), *robust]:
        for n in SIZES:
            for dtype in np.float32, np.float64:
                expected = gradients(comm, n, dtype)
                driven = expected.copy()
                averaging(own, expected, weight)
                drive(averaging.steps(own, driven, weight))
                assert_equal(averaging.algorithm, driven, expected)
    own.Free()


def check_buckets_in_shared_memory_are_averaged_where_they_lie(comm: MPI.Intracomm) -> None:
    nodes: tuple[Callable[[int], int], ...] = (lambda rank: 0, lambda rank: rank % 2, lambda rank: rank)
    for node in nodes:
        with on_nodes(comm, node) as own:
            whole = shared_array(own, 5001)
            whole[...] = values = gradients(comm, 5001, np.float32)
            expected = values.copy()
            cuts = (5001, 4000, 3999, 0)
            for stop, start in pairwise(cuts):
                ALGORITHMS["shared-memory"](own, expected[start:stop], 0.5)
            for stop, start in pairwise(cuts):
                drive(ALGORITHMS["shared-memory"].steps(own, whole[start:stop], 0.5))
            np.testing.assert_array_equal(whole, expected)


def check_messages_are_counted_under_the_name_of_the_schedule(comm: MPI.Intracomm) -> None:
    blocking, counting = CountingComm(comm), CountingComm(comm)
    run(blocking, ring_allreduce(comm.size), np.ones(1003, np.float32))
    own = np.ones(1003, np.float32)
    steps = ALGORITHMS["ring"].steps(counting, own, 1.0)
    wait = next(steps, None)
    # A message of the caller's own goes out between those of the schedule.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receiving = counting.Irecv(np.empty(3, np.int32), left, 0)
    counting.Isend(np.ones(3, np.int32), right).Wait()
    receiving.Wait()
    while wait is not None and not wait[0]():
        waiting.yield_core()
    complete(steps)
    counted = {row.name: row for row in counting.traffic()}
    assert counted.pop("messages").sent.sum() == 12 * comm.size
    assert [str(row) for row in counted.values()] == [str(row) for row in blocking.traffic()]
    counting.reset()
    drive(ALGORITHMS["mpi"].steps(counting, own, 1.0))
    assert [(row.name, row.calls, row.sent) for row in counting.traffic()] == [("Iallreduce", 1, None)]


def check_a_driven_generator_takes_its_time_on_emulated_links(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, Link(8e6))
    takes = 2 * (comm.size - 1) / comm.size * 32_768 / 8e6
    for name in "ring", "mpi", "gather-scatter":
        arrays = [np.full(8192, comm.rank, np.float32) for _ in range(2)]
        comm.Barrier()
        began = perf_counter()
        for number, array in enumerate(arrays, start=1):
            drive(ALGORITHMS[name].steps(slow, array, 1.0))
            assert perf_counter() - began >= number * takes, (name, number)
            assert (array == sum(range(comm.size))).all()
    comm.Barrier()
    began = perf_counter()
    requests = [slow.Iallreduce(MPI.IN_PLACE, array) for array in arrays]  # the second queues for the port
    for request in reversed(requests):
        request.Wait()
    assert comm.size == 1 or np.isclose(requests[1].due - requests[1].seconds, requests[0].due)
    assert perf_counter() - began >= 2 * takes


def check_a_missing_rank_is_reported_and_the_ranks_are_in_step_again(comm: MPI.Intracomm) -> None:
    world, last = watch(), comm.rank == comm.size - 1
    before, world.deadline_s = world.deadline_s, 0.5
    for name, said in ("ring", "ring_allreduce"), ("shared-memory", "shared-memory"), ("mpi", "Iallreduce"):
        own = world.Dup() if name != "mpi" or MPI.get_vendor()[0] != "Open MPI" else None
        if own is None or comm.size == 1:
            continue  # Open MPI's next collective would be out of step
        complete(ALGORITHMS[name].steps(own, np.ones(10), 1.0))
        if not last:
            second = ALGORITHMS[name].steps(own, np.ones(10), 1.0)
            with pytest.raises(HangError, match=said) as error:
                complete(second)
            assert next(second, None) is None and f"rank {comm.size - 1} " in str(error.value), error.value
        MPI.COMM_WORLD.Barrier()
        resume()
        MPI.COMM_WORLD.Barrier()
        if name == "shared-memory":
            array = np.ones(10)
            average(own, array, 1.0, Averaging(name, "sum"))
            assert (array == comm.size).all()
    world.deadline_s = before
