"""What is made from a stack of layers around a watched communicator does all that each of its layers does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm, RingComm
from labkit.watch.communicators import resume, watch
from labkit.watch.errors import HangError

DEADLINE_S = 17.0  # no default: it must have come from the stack


def stacks() -> Iterator[RingComm | CountingComm]:
    """Yield a ring that is counted and watched, put together in both orders."""
    for inner, outer in ((CountingComm, RingComm), (RingComm, CountingComm)):
        own = outer(inner(watch().Dup()))
        own.deadline_s = DEADLINE_S
        yield own


def made(own: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    """Yield all that a stack can be made into, each freed when the next is asked for."""
    group = own.Get_group()
    algorithms: tuple[Callable[[], MPI.Intracomm], ...] = (
        own.Dup,
        own.Clone,
        lambda: own.Dup().Dup(),
        lambda: own.Split(own.rank % 2, -own.rank),
        lambda: own.Split(0).Split(own.rank % 2),
        lambda: own.Split_type(MPI.COMM_TYPE_SHARED),
        lambda: own.Create(group),
        lambda: own.Create_group(group),
    )
    for algorithm in algorithms:
        part = algorithm()
        yield part
        part.Free()
    group.Free()


def check_what_is_made_from_a_watched_stack_counts_and_rings(comm: MPI.Intracomm) -> None:
    for own in stacks():
        for part in made(own):
            assert isinstance(part, RingComm) and isinstance(part, CountingComm)
            assert part.watch is not None and part.deadline_s == DEADLINE_S
            own.counts.reset()
            ranks = np.full(3, comm.rank)
            part.Allreduce(MPI.IN_PLACE, ranks)
            members = MPI.Group.Translate_ranks(part.group, None, comm.group)
            np.testing.assert_array_equal(ranks, sum(members))
            assert own.counts.calls["ring_allreduce"] == 1
        own.Free()


def check_a_grid_made_from_a_stack_is_watched(comm: MPI.Intracomm) -> None:
    for own in stacks():
        line = own.Create_cart([comm.size], [True])
        assert line.Get_cart_rank([comm.rank]) == line.rank
        assert line.watch is not None and line.deadline_s == DEADLINE_S
        mismatch_on(line)
        line.Free()
        own.Free()


def check_what_is_made_from_a_watched_stack_reports_a_mismatch(comm: MPI.Intracomm) -> None:
    for own in stacks():
        for part in made(own):
            mismatch_on(part)
            comm.Barrier()  # no rank goes on in a part of its own while another reports there
        own.Free()


def mismatch_on(part: MPI.Intracomm) -> None:
    """Check that calls that do not fit are an error on all ranks, and that the next ones fit again."""
    last = part.rank == part.size - 1
    try:
        part.Bcast(np.ones(3 + last), root=0)
    except HangError as error:
        assert part.size > 1 and "with different counts" in str(error), error
    else:
        assert part.size == 1
    MPI.COMM_WORLD.Barrier()
    resume()
    MPI.COMM_WORLD.Barrier()
    assert part.allreduce(1) == part.size
