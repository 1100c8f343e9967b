"""Who takes part in `labkit bench collectives`: every way to add up over ranks, as a plain sum in place."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.bench.by_hand import ring_by_hand
from labkit.bench.collectives import Sum
from labkit.bench.gloo import gloo
from labkit.comm import run
from labkit.schedules import ring_allreduce


def contenders(comm: MPI.Intracomm) -> dict[str, Sum]:
    """Return what can take part here, by name; the baselines first. Collective."""
    found: dict[str, Sum] = {"mpi-allreduce": mpi_allreduce, "hand-written": ring_by_hand}
    if peer := gloo(comm):
        found["gloo"] = peer
    found["ring"] = lambda comm, array: run(comm, ring_allreduce(comm.size), array)
    return found


def mpi_allreduce(comm: MPI.Intracomm, array: np.ndarray) -> None:
    """The MPI library's own."""
    comm.Allreduce(MPI.IN_PLACE, array)
