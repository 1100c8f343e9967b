"""Who takes part in `labkit bench collectives`: every way to add up over ranks, as a plain sum in place.

The averaging algorithms (`labkit.comm.ALGORITHMS`) first multiply by a rank's weight. That is not part of the
collective, so a schedule runs here without it; where it is one step with the adding, the weight is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from mpi4py import MPI

from labkit.bench.by_hand import ring_by_hand
from labkit.bench.gloo import gloo
from labkit.bench.rounds import Contender
from labkit.comm import allgather, run, shared_array, shared_memory
from labkit.schedules import ALLREDUCE, Schedule, hierarchical


def plain_allreduce(comm: MPI.Intracomm, array: np.ndarray) -> None:
    """Sum in place by one Allreduce of the MPI library, without `labkit.comm.mpi_allreduce`'s weight."""
    comm.Allreduce(MPI.IN_PLACE, array)


@contextmanager
def contenders(comm: MPI.Intracomm) -> Iterator[dict[str, Contender]]:
    """Yield what can take part here, by name; the baselines first. Collective."""
    with gloo(comm) as peer:
        found = {"mpi-allreduce": Contender(plain_allreduce), "hand-written": Contender(ring_by_hand)}
        if peer:
            found["gloo"] = Contender(peer)
        found["allgather"] = Contender(partial(allgather, weight=1.0))
        found |= {name: _running(schedule(comm.size)) for name, schedule in ALLREDUCE.items()}
        nodes = tuple(comm.allgather(MPI.Get_processor_name()))
        if 1 < len(set(nodes)) < comm.size:
            found["hierarchical"] = _running(hierarchical(comm.size, nodes))
        found["shared-memory"] = Contender(partial(shared_memory, weight=1.0), shared_array)
        found["shared-memory-copied"] = Contender(partial(shared_memory, weight=1.0), _private)
        yield found


def _running(schedule: Schedule) -> Contender:
    return Contender(lambda comm, array: run(comm, schedule, array))


def _private(comm: MPI.Intracomm, n: int) -> np.ndarray:
    """Return memory of this rank's own, if there is room for its copy that is shared."""
    shared_array(comm, n)
    return np.empty(n, np.float32)
