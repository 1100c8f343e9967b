"""What notebooks measure on the ranks."""

from __future__ import annotations

from time import sleep

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import CollectiveError, EmulatedComm, Link, run
from labkit.comm.groups import exchange_times, group_times, growing_groups, times_table, traffic_of
from labkit.comm.timing import least_seconds
from labkit.schedules import count_traffic, ring_allreduce


def ring(comm: MPI.Intracomm, array: np.ndarray, weight: float = 1.0) -> None:
    run(comm, ring_allreduce(comm.size), array)


def check_a_group_of_each_size_is_timed(comm: MPI.Intracomm) -> None:
    times = group_times(comm, {"ring": ring}, [8, 64], seconds=0.01)
    assert list(times) == [ranks for ranks in range(2, comm.size + 1) if comm.rank < ranks]
    for of_sizes in times.values():
        assert list(of_sizes) == [8, 64] and all(seconds["ring"] > 0 for seconds in of_sizes.values())
    lines = times_table(times).splitlines()
    assert len(lines) == 2 + 2 * len(times)
    assert all(line.endswith("*") for line in lines[1:-1])  # the only one is the fastest


def check_a_wrong_sum_is_not_timed(comm: MPI.Intracomm) -> None:
    if comm.size > 1:
        with pytest.raises(CollectiveError, match="nothing left a wrong sum"):
            group_times(comm, {"nothing": lambda *arguments: None}, [8], seconds=0.01)


def check_two_ranks_exchange(comm: MPI.Intracomm) -> None:
    times = exchange_times(comm, [8, 1024], repeats=3)
    assert len(times) == (2 if comm.rank < 2 else 0) and all(seconds > 0 for seconds in times)


def check_the_traffic_of_a_function_is_that_of_its_schedule(comm: MPI.Intracomm) -> None:
    n = 5 * comm.size
    counted, expected = traffic_of(comm, ring, np.ones(n)), count_traffic(ring_allreduce(comm.size), 4 * n)
    np.testing.assert_array_equal(counted.sent, expected.sent // 4)
    np.testing.assert_array_equal(counted.received, expected.received // 4)
    assert counted.messages == expected.messages


def check_groups_grow_by_a_rank_and_emulate_as_their_communicator_does(comm: MPI.Intracomm) -> None:
    links = EmulatedComm(comm, Link(bytes_per_s=1e9, latency_s=1e-3))
    groups = [(group.size, group.rank, group.links[0].latency_s) for group in growing_groups(links, 2)]
    assert groups == [(ranks, comm.rank, 1e-3) for ranks in range(2, comm.size + 1) if comm.rank < ranks]
    links.Free()


def check_the_fastest_call_counts_and_takes_as_long_as_its_slowest_rank(comm: MPI.Intracomm) -> None:
    pauses = iter([0.0, 0.5, 0.02 if comm.rank == comm.size - 1 else 0.0, 0.5])  # the first warms up
    seconds = least_seconds(comm, lambda: sleep(next(pauses)), 3)
    assert 0.02 <= seconds < 0.5
    assert comm.allreduce(seconds, MPI.MAX) == seconds
