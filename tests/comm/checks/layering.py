"""A communicator made from a stack of wrappers around a watched one does what each of its wrappers does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm, EmulatedComm, Link, RingComm, run
from labkit.schedules import ring_allreduce
from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError

DEADLINE_S = 17.0  # not the default: it must come from the stack


def stacks() -> Iterator[RingComm | CountingComm]:
    """Yield a ring that is counted and watched, wrapped in both orders."""
    for inner, outer in ((CountingComm, RingComm), (RingComm, CountingComm)):
        own = outer(inner(watch().Dup()))
        own.deadline_s = DEADLINE_S
        yield own


def made(own: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    """Yield what each method makes from a stack; free it before the next."""
    group = own.Get_group()
    methods: tuple[Callable[[], MPI.Intracomm], ...] = (
        own.Dup,
        own.Clone,
        lambda: own.Dup().Dup(),
        lambda: own.Split(own.rank % 2, -own.rank),
        lambda: own.Split(0).Split(own.rank % 2),
        lambda: own.Split_type(MPI.COMM_TYPE_SHARED),
        lambda: own.Create(group),
        lambda: own.Create_group(group),
        lambda: own.Create_cart([own.size], [True]),
    )
    for make in methods:
        part = make()
        yield part
        part.Free()
    group.Free()


def check_all_that_is_made_from_a_watched_stack_counts_runs_the_ring_and_reports_a_mismatch(
    comm: MPI.Intracomm,
) -> None:
    for own in stacks():
        for part in made(own):
            assert isinstance(part, RingComm) and isinstance(part, CountingComm)
            assert part.watch is not None and part.deadline_s == DEADLINE_S
            own.reset()
            ranks = np.full(3, comm.rank)
            part.Allreduce(MPI.IN_PLACE, ranks)
            members = MPI.Group.Translate_ranks(part.group, None, comm.group)
            np.testing.assert_array_equal(ranks, sum(members))
            assert own.counts.calls["ring_allreduce"] == 1
            mismatch_on(part)
            comm.Barrier()  # no rank goes on in a part of its own while another reports there
        own.Free()


def check_methods_have_mpi4pys_parameters_and_wrappers_keep_theirs_apart(
    comm: MPI.Intracomm,
) -> None:
    own = EmulatedComm(watch().Dup(), Link())
    for name in "Sendrecv", "Gather", "Igather", "bcast", "Split", "Free":
        made, given = (signature(getattr(kind, name)) for kind in (type(own), MPI.Intracomm))
        assert list(made.parameters) == list(given.parameters)
        defaults = [[each.default for each in one.parameters.values()] for one in (made, given)]
        assert defaults[0] == defaults[1]
    right, left = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    received = np.empty(3)
    request = own.Irecv(received, left)
    own.Ssend(np.full(3, own.rank), right)
    request.Wait()
    own.Free()


def check_a_schedule_on_a_watched_stack_is_compared_under_its_name(comm: MPI.Intracomm) -> None:
    for own in stacks():
        last = own.rank == own.size - 1
        try:
            run(own, ring_allreduce(own.size), np.ones(3 + last))
        except HangError as error:
            assert own.size > 1 and "different counts" in str(error), error
            assert "is waiting in ring_allreduce (#" in str(error) and ", 4 float64)" in str(error), error
        else:
            assert own.size == 1
        MPI.COMM_WORLD.Barrier()
        resume()
        MPI.COMM_WORLD.Barrier()
        array = np.ones(5)
        run(own, ring_allreduce(own.size), array)
        np.testing.assert_array_equal(array, own.size)
        own.Free()


def mismatch_on(part: MPI.Intracomm) -> None:
    """Check that calls that differ are an error on all ranks, and that the next call works again."""
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
