"""Run random programs of messages: correct ones without an alarm, then one with a circle, reported at once.

mpiexec -n 4 python random_messages.py FIRST_SEED LAST_SEED
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from itertools import count

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm
from mpiwatch.communicators import watch
from mpiwatch.recorder import CellState
from mpiwatch.waiting import HangError

raw = MPI.COMM_WORLD
world = watch()
rank = world.rank
comms = {"world": world, "dup": world.Dup(), "half": world.Split(rank % 2), "counted": CountingComm(world)}
tags = count()


def even_first(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Send around a ring in the safe order, which takes two ranks."""
    if comm.size == 1:
        return
    values, got = np.full(size, comm.rank), np.empty(size, int)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if comm.rank % 2 == 0:
        comm.Send(values, right, tag)
        comm.Recv(got, left, tag)
    else:
        comm.Recv(got, left, tag)
        comm.Ssend(values, right, tag)
    assert (got == left).all()


def both_at_once(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Send around a ring with Sendrecv, and objects with sendrecv."""
    values, got = np.full(size, comm.rank), np.empty(size, int)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.Sendrecv(values, right, tag, got, left, tag)
    assert (got == left).all() and comm.sendrecv(values, right, tag, None, left, tag)[0] == left


def receive_first(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Be in Send on all ranks at once; the receives are under way."""
    values, got = np.full(size, comm.rank), np.empty(size, int)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    request = comm.Irecv(got, left, tag)
    comm.Send(values, right, tag)
    request.Wait()
    assert (got == left).all()


def send_first(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Be in Recv on all ranks at once; the sends are under way, large ones in front of small ones."""
    values, got = np.full(size, comm.rank), np.empty(size, int)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    requests = [comm.Irecv(got, left, tag), comm.Isend(values, right, tag), comm.isend(rank, right, tag + 1)]
    comm.recv(source=left, tag=tag + 1)
    MPI.Request.Waitall(requests)
    assert (got == left).all()


def many_small(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Be in Recv on all ranks at once, for the last of many messages that wait in MPI's buffers.

    With one rank, Send would block: MPICH does not buffer a message that a rank sends to itself.
    """
    if comm.size == 1:
        return
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for _ in range(30):
        comm.Send(np.zeros(8), right, tag)
    comm.send("last", right, tag + 1)
    assert comm.recv(source=left, tag=tag + 1) == "last"
    for _ in range(30):
        comm.Recv(np.empty(8), left, tag)


def from_any(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Receive from any rank."""
    if comm.rank == 0:
        got = [comm.recv(source=MPI.ANY_SOURCE, tag=tag)[0] for _ in range(comm.size - 1)]
        assert sorted(got) == list(range(1, comm.size))
    else:
        comm.send(np.full(size, comm.rank), 0, tag)


def a_chain(comm: MPI.Intracomm, size: int, tag: int) -> None:
    """Wait for the rank before, all the way to rank 0, which is late."""
    if comm.rank == 0:
        time.sleep(size % 7 / 10)
    else:
        comm.Recv(np.empty(size), comm.rank - 1, tag)
    if comm.rank < comm.size - 1:
        comm.Ssend(np.zeros(size), comm.rank + 1, tag)


CORRECT = (even_first, both_at_once, receive_first, send_first, many_small, from_any, a_chain)


def receive_circle(members: list[int], tag: int) -> None:
    world.Recv(np.empty(1), members[members.index(rank) - 1], tag)


def send_circle(members: list[int], tag: int) -> None:
    world.Send(np.zeros(1 << 17), members[members.index(rank) - 1], tag)


def mixed_circle(members: list[int], tag: int) -> None:
    """Let each second rank send; with two ranks that would be a message."""
    peer = members[members.index(rank) - 1]
    if members.index(rank) % 2 and len(members) > 2:
        world.ssend(None, peer, tag)
    else:
        world.recv(source=peer, tag=tag)


def in_vain(members: list[int], tag: int) -> None:
    """Receive from any rank, on all ranks."""
    if len(members) == world.size:
        world.Probe(tag=tag)
    else:
        receive_circle(members, tag)


CIRCLES = (receive_circle, send_circle, mixed_circle, in_vain)


def run(program: Callable[[], None]) -> str:
    """Run a program as a cell is run; return the report it ended with on this rank."""
    assert world.watch is not None
    world.watch.begin_cell()
    try:
        program()
    except HangError as error:
        world.watch.end_cell(CellState.RAISED, "HangError")
        return str(error)
    world.watch.end_cell(CellState.RETURNED, "")
    return ""


def receive_leftovers() -> None:
    """Take the messages of a circle of sends, so that they are not under way in the next program."""
    raw.Barrier()
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        if (message := raw.Improbe(status=(status := MPI.Status()))) is not None:
            message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
    raw.Barrier()


def main(first: int, last: int) -> None:
    world.deadline_s = 60.0  # after it, a report names no circle
    reported = 0
    for seed in range(first, last):
        random_ = random.Random(seed)
        steps = [
            (
                random_.choice(CORRECT),
                random_.choice(list(comms)),
                random_.choice((1, 1000, 50_000, 3_000_000)),
                10 * next(tags),
            )
            for _ in range(random_.randrange(3, 9))
        ]
        ends = raw.allgather(run(lambda: [step(comms[name], size, tag) for step, name, size, tag in steps]))  # noqa: B023
        if raw.rank == 0 and any(ends):
            print(f"seed {seed}: a false alarm: {next(filter(None, ends))} in {steps}")
        members = random_.sample(range(raw.size), random_.randrange(2, raw.size + 1))
        fault, tag = random_.choice(CIRCLES), 10 * next(tags)
        ends = raw.allgather(run(lambda: fault(members, tag) if rank in members else None))  # noqa: B023
        texts = {ends[member] for member in members}
        all_wait = fault is in_vain and len(members) == raw.size
        title = "wait for messages from one another" if all_wait else "in a circle"
        good = len(texts) == 1 and title in texts.pop().partition("\n")[0]
        reported += good
        if raw.rank == 0 and not good:
            print(f"seed {seed}: {fault} of {members}: {ends}")
        receive_leftovers()
    if raw.rank == 0:
        print(f"{reported} of {last - first} circles reported")


main(int(sys.argv[1]), int(sys.argv[2]))
