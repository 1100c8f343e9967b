"""Emulated links: right values, after the time that the simulator predicts, without busy waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, process_time, sleep

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import ALGORITHMS, CountingComm, EmulatedComm, Link, RingComm, run
from labkit.schedules import CostModel, Network, ring_allreduce, root_allreduce, simulate
from labkit.train.bottleneck import links, parse
from tests.comm.checks.averaging import drive
from tests.raising import error_on_every_rank

LINK = Link(8e6, 1e-3)  # 64 KiB take 9.2 ms
N = 16_384
TAKES_S = LINK.latency_s + 4 * N * LINK.s_per_byte
LATE = 1.5  # times the reference at most, in the best of some tries
TRIES = 120  # on a busy machine


def assert_takes(comm: MPI.Intracomm, call: Callable[[], object], expected: float, rounds: int = 1) -> None:
    """Compare the seconds that a call takes, from the first rank's start to the last rank's end, to expected.

    It has to take at least as long, and at most 1.5 times as long as a reference: the ranks sleep for that
    time, with as many barriers in between as the call has rounds. So a busy machine delays both.
    """

    def reference() -> None:
        for _ in range(rounds):
            sleep(expected / rounds)
            comm.Barrier()

    took, reference_took = [], []
    while not took or (min(took) > LATE * min(reference_took) + 1e-3 and len(took) < TRIES):
        for do, found in (reference, reference_took), (call, took):
            comm.Barrier()
            start = perf_counter()
            do()
            comm.Barrier()  # catches up on what Waitall did not wait for
            end = perf_counter()
            found.append(comm.allreduce(end, MPI.MAX) - comm.allreduce(start, MPI.MIN))
    assert min(took) >= expected - 1e-4, (expected, sorted(took)[:3])
    limit = LATE * min(reference_took) + 1e-3
    assert min(took) <= limit, (expected, sorted(took)[:3], limit)


def network(of_ranks: Sequence[Link]) -> Network:
    """Return the simulator's network with these links, in which adding up takes no time."""
    free = Network.uniform(len(of_ranks), CostModel(0.0, 0.0, 0.0))
    alpha, beta = zip(*((link.latency_s, link.s_per_byte) for link in of_ranks), strict=True)
    return replace(free, alpha=np.array(alpha), beta=np.array(beta))


def check_schedules_take_as_long_as_the_simulator_predicts(comm: MPI.Intracomm) -> None:
    for bottlenecks in [], [parse(f"{comm.size - 1}:slow-link=4")]:
        slow = EmulatedComm(comm, links(bottlenecks, comm.size, LINK) or ())
        for make in ring_allreduce, root_allreduce:
            schedule, array = make(comm.size), np.empty(N, np.float32)

            def add_up() -> None:
                array[:] = comm.rank  # noqa: B023
                run(slow, schedule, array)  # noqa: B023

            expected = simulate(schedule, 4 * N, network(slow.links)).seconds
            assert_takes(slow, add_up, expected, 2 * comm.size)
            np.testing.assert_array_equal(array, sum(range(comm.size)))


def check_a_waiting_rank_uses_little_processor_time(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, Link(1e5))
    array = np.zeros(2500, np.float32)  # 0.1 s
    began, used = perf_counter(), process_time()
    if comm.rank == 0 and comm.size > 1:
        slow.Send(array, comm.size - 1)
    elif comm.rank == comm.size - 1 and comm.size > 1:
        slow.Recv(array, 0)
    slow.Allreduce(MPI.IN_PLACE, array)
    slow.Barrier()
    took, used = perf_counter() - began, process_time() - used
    assert comm.size == 1 or took > 0.19 * (comm.size - 1) / comm.size, took
    assert comm.size == 1 or used < 0.4 * took, (used, took)


def check_messages_queue_at_the_port_that_sends_and_are_matched_by_tag(comm: MPI.Intracomm) -> None:
    """Compare when they are due, which a busy machine does not change."""
    if comm.size < 3:
        return
    slow, sent = EmulatedComm(comm, Link(1e3, 1.0)), list[float]()
    if comm.rank == 0:
        sent = [slow.Isend(np.ones(1), dest, tag).due for dest, tag in ((1, 1), (1, 2), (2, 3))]
        np.testing.assert_allclose(np.diff(sent), 1.008, rtol=0, atol=1e-9)
    tags = {1: (2, 1), 2: (3,)}.get(comm.rank, ())
    receives = [slow.Irecv(np.empty(1), 0, tag) for tag in tags]
    while not all(request.has_due_time() for request in receives):
        sleep(1e-3)
    sent = comm.bcast(sent)
    assert [request.due for request in receives] == [sent[tag - 1] for tag in tags]


def check_a_late_message_does_not_delay_one_sent_earlier(comm: MPI.Intracomm) -> None:
    if comm.size < 3:
        return
    slow = EmulatedComm(comm, Link(latency_s=1.0))
    slow.Barrier()
    if comm.rank == 0:
        late = slow.Irecv(np.empty(1), 1)
        while not late.has_arrived():  # the message, without its second of delay
            sleep(1e-3)
        early = slow.Irecv(np.empty(1), 2)  # whichever is waited for first
        while not (late.has_due_time() and early.has_due_time()):
            sleep(1e-3)
        assert late.due - early.due > 0.999, (early.due, late.due)
    elif comm.rank < 3:
        if comm.rank == 1:
            comm.recv(source=2)
        slow.Isend(np.ones(1), 0)
        if comm.rank == 2:
            comm.send(None, 1)


def check_a_message_travels_while_its_ranks_compute_and_waitall_is_caught_up_with(
    comm: MPI.Intracomm,
) -> None:
    slow = EmulatedComm(comm, LINK)
    came, gone = np.empty(N, np.float32), np.full(N, comm.rank, np.float32)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def compute_meanwhile() -> None:
        requests = [slow.Irecv(came, left), slow.Isend(gone, right)]
        sleep(TAKES_S)  # the same as computing, for the link
        for request in requests:
            request.Wait()

    assert_takes(slow, compute_meanwhile, TAKES_S)  # one after the other: twice that
    slower = EmulatedComm(comm, LINK.slower(8))

    def around() -> None:  # the next call on the communicator waits
        MPI.Request.Waitall([slower.Irecv(came, left), slower.Isend(gone, right)])

    assert_takes(slower, around, 8 * TAKES_S if comm.size > 1 else 0.0)
    assert (came == left).all()


def check_the_librarys_collectives_give_right_values_and_take_their_time(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, LINK)
    p, rank, ranks = comm.size, comm.rank, np.arange(comm.size, dtype=np.float32)
    mine, one, row = np.full(p, rank, np.float32), np.empty(1, np.float32), np.empty(p, np.float32)
    root = rank == 0

    def at_root(values: object) -> object:
        return values if root else None

    for call, got, expected in (
        (lambda: slow.Allreduce(mine, row), row, ranks.sum()),
        (lambda: slow.Reduce_scatter_block(mine, one), one, ranks.sum()),
        (lambda: slow.Allgather(mine[:1], row), row, ranks),
        (lambda: slow.Alltoall(mine, row), row, ranks),
        (lambda: slow.Gather(mine[:1], at_root(row)), row if root else None, ranks),
        (lambda: slow.Reduce(mine, at_root(row)), row if root else None, ranks.sum()),
        (lambda: slow.Scatter(at_root([ranks, MPI.FLOAT]), one), one, rank),
        (lambda: slow.Bcast([mine, p, MPI.FLOAT], p - 1), mine, p - 1),
    ):
        call()
        assert got is None or (got == expected).all()

    # Delayed by the slowest port.
    link = LINK.slower(8)
    slow = EmulatedComm(comm, [Link(), *[link] * (p - 1)])
    array = np.ones(N, np.float32)
    expected = 2 * (p - 1) / p * 4 * N * link.s_per_byte + 2 * int(np.ceil(np.log2(p))) * link.latency_s
    expected = expected if p > 1 else 0.0
    assert_takes(slow, lambda: slow.Allreduce(MPI.IN_PLACE, array), expected)


def check_emulated_links_take_mpi4pys_messages(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, [Link(8e6, 1e-5 * (rank + 1)) for rank in range(comm.size)]).Dup()
    came, status = np.empty(3, np.int32), MPI.Status()
    request = slow.Irecv(came)  # from any rank, here this one
    slow.Send([np.arange(3, dtype=np.int32), MPI.INT], comm.rank, 7)
    request.Wait(status)
    assert came.tolist() == [0, 1, 2] and (status.source, status.tag) == (comm.rank, 7)
    slow.Barrier()  # without it, another rank's next message could match, too
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    slow.Sendrecv(np.full(3, comm.rank, np.int32), right, 1, came, left, 1, status)
    assert (came == left).all() and status.source == left
    slow.Issend(came, MPI.PROC_NULL).Wait()
    slow.Recv(came, MPI.PROC_NULL)
    assert slow.allreduce(1) == comm.size

    half = slow.Split(comm.rank % 2, -comm.rank)
    assert isinstance(half, EmulatedComm)
    assert half.links == [slow.links[rank] for rank in half.allgather(comm.rank)]
    assert half.allgather(comm.rank) == sorted(half.allgather(comm.rank), reverse=True)
    half.Free()
    slow.Free()


def check_nothing_waits_for_a_cancelled_receive(comm: MPI.Intracomm) -> None:
    emulated, value = EmulatedComm(comm, Link(1e-6, 1e9)), np.zeros(1)
    requests = [emulated.Irecv(value, comm.rank, tag) for tag in (1, 2)]
    for request in requests:
        request.Cancel()
    MPI.Request.Wait(requests[0])
    emulated.Sendrecv(np.ones(1), comm.rank, 3, value, comm.rank, 3)
    assert value[0] == 1
    requests[1].Wait()
    emulated.Free()


def check_emulated_links_compose_with_other_wrappers(comm: MPI.Intracomm) -> None:
    array = np.full(N, comm.rank, np.float32)
    sums = sum(range(comm.size))
    expected = simulate(ring_allreduce(comm.size), 4 * N, network([LINK] * comm.size)).seconds
    bare = CountingComm(comm)
    run(bare, ring_allreduce(comm.size), array)
    for make in (
        lambda: CountingComm(EmulatedComm(comm, LINK)),
        lambda: EmulatedComm(CountingComm(comm), LINK),
    ):
        both = make()
        array[:] = comm.rank
        run(both, ring_allreduce(comm.size), array)
        assert (array == sums).all()
        assert [str(one) for one in both.traffic()] == [str(one) for one in bare.traffic()]
        assert both.emulated == "emulated links: 64mbit+1ms"
    for slow in RingComm(EmulatedComm(comm, LINK)), RingComm(EmulatedComm(comm, LINK)).Dup():
        one = np.full(N, comm.rank, np.float32)
        assert_takes(slow, lambda: slow.Allreduce(MPI.IN_PLACE, one), expected, 2 * comm.size)  # noqa: B023


def check_methods_that_cannot_be_delayed_are_refused(comm: MPI.Intracomm) -> None:
    slow = EmulatedComm(comm, [Link(125e6)] * (comm.size - 1) + [Link(12.5e6, 1e-3)])
    rank = f", rank {comm.size - 1} 100mbit+1ms" if comm.size > 2 else ""
    assert comm.size < 3 or slow.emulated == f"emulated links: 1gbit{rank}"
    with pytest.raises(NotImplementedError, match=r"Ialltoall.*Irecv"):
        slow.Ialltoall(np.ones(comm.size), np.ones(comm.size))
    different = [Link(1e6 + (comm.rank == comm.size - 1))] * comm.size
    for bad, words in ([Link()] * (comm.size + 1), "a link for each"), (different, "as on rank 0"):
        if comm.size == 1 and bad is different:
            continue
        assert words in error_on_every_rank(comm, lambda bad=bad: EmulatedComm(comm, bad))


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
    assert comm.size == 1 or requests[1].due - requests[1].seconds > requests[0].due - 1e-6
    assert perf_counter() - began >= 2 * takes
