"""Hang in one watched call after another; rank 0 prints the first line of each report as JSON.

mpiexec -n 4 python on_machines.py 2 hangs_between_machines.py
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
from mpi4py import MPI

from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError

raw, world = MPI.Intracomm(MPI.COMM_WORLD), watch()
rank, size = world.rank, world.size
last = size - 1
half = world.Split(rank // 2)  # its ranks are on one machine
odd = world.Split(rank % 2)  # its ranks are on several machines
world.deadline_s = half.deadline_s = odd.deadline_s = 1.0


def circle() -> None:
    world.recv(source=(rank - 1) % size)


def missing_send() -> None:
    if rank == 0:
        world.recv(source=last, tag=7)


def missing_on_one_machine() -> None:
    if rank == 1:
        half.Barrier()


def mismatch_on_one_machine() -> None:
    if rank < 2:
        half.Allreduce(np.ones(3 + rank), np.ones(3 + rank))


def nothing() -> None:
    """Check that all of these calls work, however late a rank is."""
    x = np.ones(3)
    if rank == last:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
    for comm in world, half, odd:
        comm.Allreduce(MPI.IN_PLACE, x)
    made = odd.Dup()
    assert made.allreduce(1) == odd.size
    made.Free()
    assert x[0] > 1
    left, right = (rank - 1) % size, (rank + 1) % size
    assert world.sendrecv(rank, right, sendtag=5, source=left, recvtag=5) == left


for fault in (
    circle,
    missing_send,
    missing_on_one_machine,
    mismatch_on_one_machine,
    nothing,
):
    said = ""
    try:
        fault()
    except HangError as hang:
        said = str(hang).splitlines()[0]
    said_by = raw.allgather(said)
    epochs = raw.allgather(world.watch.recorder.head.epoch)
    assert len(set(epochs)) == 1, epochs  # the same report on all machines
    assert len({each for each in said_by if each}) <= 1, said_by
    if rank == 0:
        print(json.dumps([fault.__name__, max(said_by), [bool(each) for each in said_by]]), flush=True)
    resume()
    raw.Barrier()
assert not os.path.exists(world.watch.recorder.path)
