"""A rank misses a Barrier between machines while a step of the Hub or the Relay raises its first errors.

mpiexec -n 2 python on_machines.py 1 machines_with_a_fault.py Hub|Relay STEP
"""

from __future__ import annotations

import sys
from typing import Any

from mpi4py import MPI

from mpiwatch import machines
from mpiwatch.communicators import watch
from mpiwatch.waiting import HangError

ERRORS = 3
kind, name = getattr(machines, sys.argv[1]), sys.argv[2]
step, calls = getattr(kind, name), 0


def faulty(*arguments: Any) -> Any:
    global calls  # noqa: PLW0603
    calls += 1
    if calls <= ERRORS:
        raise MemoryError("one of the first errors in a step")
    return step(*arguments)


setattr(kind, name, faulty)
raw, world = MPI.Intracomm(MPI.COMM_WORLD), watch()
world.deadline_s = 1.0
try:
    if world.rank:
        world.recv(source=0)
except HangError as hang:
    print(str(hang).splitlines()[0], flush=True)
assert kind is machines.Hub or world.rank == 0 or calls > ERRORS
raw.Barrier()
