"""A hang in a call that is not watched, while steps of the watchdog fail: STEP[,STEP …] error|often|delay.

`error`: the step raises an error each time, on rank 0. `often`: it raises its first errors on every rank.
`delay`: it takes seconds the first time, on every rank.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpiwatch.watchdog import Watchdog

ERRORS, DELAY_S = 3, 2.0


def faulty(step: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return the step with a fault."""
    calls = 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if kind == "error" and MPI.COMM_WORLD.rank == 0:
            raise TypeError("an error in a step, each time")
        if kind == "often" and calls <= ERRORS:
            raise MemoryError("one of the first errors in a step")
        if kind == "delay" and calls == 1:
            time.sleep(DELAY_S)
        return step(*arguments)

    return call


names, kind = sys.argv[1:]
for name in names.split(","):
    setattr(Watchdog, name, faulty(getattr(Watchdog, name), kind))
window = MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)
window.Fence()
if MPI.COMM_WORLD.rank == 0:
    window.Fence()
MPI.COMM_WORLD.Barrier()
