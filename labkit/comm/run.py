"""Running a schedule on MPI ranks."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.schedules import Schedule, bounds

_TAG = 26_149  # apart from the tags of the caller's own messages


def run(comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, op: MPI.Op = MPI.SUM) -> None:
    """Carry out the schedule on every rank's array, in place.

    Shapes: array (n,), contiguous and writable, the same n and dtype on all ranks. Collective. Nothing is
    checked here.
    """
    ends = bounds(array.size, schedule.pieces)
    for one in schedule:
        requests, arrived = [], []
        for source, dest, first, stop, add in one:
            part = array[ends[first] : ends[stop]]
            if source == comm.rank:
                requests.append(comm.Isend(part, dest, _TAG))
            elif dest == comm.rank:
                came = np.empty_like(part)
                requests.append(comm.Irecv(came, source, _TAG))
                arrived.append((came, part, add))
        MPI.Request.Waitall(requests)
        for came, part, add in arrived:
            if add:
                op.Reduce_local(came, part)
            else:
                part[...] = came
