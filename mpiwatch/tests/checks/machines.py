"""Ranks of one machine are watched if all of them see the same memory."""

from __future__ import annotations

import os
from unittest import mock

from mpi4py import MPI

from mpiwatch.communicators import open_recorder
from mpiwatch.recorder import FlightRecorder


def check_ranks_that_do_not_see_the_recorder_are_not_watched(comm: MPI.Intracomm) -> None:
    made: list[str] = []
    create = FlightRecorder.create

    def elsewhere(size: int) -> str:  # a folder that the other ranks do not see
        made.append(create(size))
        return made[0]

    hidden = comm.rank == comm.size - 1 > 0
    with (
        mock.patch.object(FlightRecorder, "create", elsewhere),
        mock.patch.object(os.path, "exists", lambda path: not hidden),
    ):
        opened = open_recorder(comm, keep=False)
    assert (opened is not None) == (comm.size == 1)
    assert not any(map(os.path.exists, made))
