"""Who takes part in `labkit bench collectives`: every way to add up over ranks, as a plain sum in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from labkit.bench.by_hand import ring_by_hand
from labkit.bench.gloo import gloo
from labkit.bench.rounds import Contender
from labkit.comm import run
from labkit.schedules import ALLREDUCE, Schedule


@contextmanager
def contenders(comm: MPI.Intracomm) -> Iterator[dict[str, Contender]]:
    """Yield what can take part here, by name; the baselines first. Collective."""
    with gloo(comm) as peer:
        found = {"mpi-allreduce": Contender(mpi_allreduce), "hand-written": Contender(ring_by_hand)}
        if peer:
            found["gloo"] = Contender(peer)
        found |= {name: _running(schedule(comm.size)) for name, schedule in ALLREDUCE.items()}
        yield found


def mpi_allreduce(comm: MPI.Intracomm, array: np.ndarray) -> None:
    """The MPI library's own."""
    comm.Allreduce(MPI.IN_PLACE, array)


def _running(schedule: Schedule) -> Contender:
    return Contender(lambda comm, array: run(comm, schedule, array))
