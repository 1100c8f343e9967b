"""A rank misses a message between machines while steps of the Hub or the Relay raise their first errors.

mpiexec -n 2 python on_machines.py 1 machines_with_a_fault.py Hub|Relay STEP[,STEP …]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpiwatch import machines
from mpiwatch.communicators import watch
from mpiwatch.waiting import HangError

ERRORS = 3
kind, names = getattr(machines, sys.argv[1]), sys.argv[2].split(",")
calls = Counter[str]()


def faulty(name: str) -> Callable[..., Any]:
    """Return a step that raises its first errors."""
    step = getattr(kind, name)

    def call(*arguments: Any) -> Any:
        calls[name] += 1
        if calls[name] <= ERRORS:
            raise MemoryError("one of the first errors in a step")
        return step(*arguments)

    return call


for name in names:
    setattr(kind, name, faulty(name))
raw, world = MPI.Intracomm(MPI.COMM_WORLD), watch()
world.deadline_s = 1.0
try:
    if world.rank:
        world.recv(source=0)
except HangError as hang:
    print(str(hang).splitlines()[0], flush=True)
assert kind is machines.Hub or world.rank == 0 or min(calls[name] for name in names) > ERRORS
raw.Barrier()
