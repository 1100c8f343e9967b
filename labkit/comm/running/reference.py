"""A schedule on MPI ranks, round by round, to be read. `run` gives the same result faster: see plan.py."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm import tags
from labkit.comm.running.executor import before_schedule
from labkit.schedules import Schedule, chunk_bounds


def run_reference(comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray) -> None:
    """Carry out the schedule on every rank's array, in place; values to be reduced are added.

    Unlike `run`, it starts a round only when the one before is over, sends each message in one go, and
    receives every message into a temporary.

    Shapes: array (n,), contiguous and writable, the same n and dtype on all ranks. Collective.
    """
    before_schedule(comm, schedule, array)
    bounds = chunk_bounds(array.size, schedule.chunks)
    for transfers in schedule:
        requests, received = [], []
        for source, dest, first, stop, reduce in transfers:
            part = array[bounds[first] : bounds[stop]]
            if comm.rank == dest:
                temporary = np.empty_like(part)  # `part` itself may still be being sent
                requests.append(comm.Irecv(temporary, source, tags.SCHEDULE))
                received.append((part, temporary, reduce))
            if comm.rank == source:
                requests.append(comm.Isend(part, dest, tags.SCHEDULE))
        for request in requests:
            request.Wait()
        for part, temporary, reduce in received:
            part[...] = part + temporary if reduce else temporary
