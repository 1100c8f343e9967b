"""Report which rank is missing and where the others wait when an mpi4py program hangs.

    mpiwatch -n 4 program.py            runs a program, unchanged, and watches its ranks
    comm = mpiwatch.watch_world(deadline_s=60)     watches the ranks of the program that calls it

A call that can never return raises `HangError`, whose `report` says what every rank was doing. A library that
defines communicators derives them from `CommWrapper` and calls `register`. Nothing here loads MPI or NumPy
before it is used.

Further public modules: `mpiwatch.report` (reports as data, text and table), `mpiwatch.launch` (start ranks),
`mpiwatch.program` (watch a rank that another launcher has started), `mpiwatch.processes` (start and end
processes), `mpiwatch.layers` (for communicators and algorithms on top), `mpiwatch.sessions` (ranks that run
one cell after another), `mpiwatch.strict` (find what shows only by chance), `mpiwatch.trace` (recordings of
all calls). All other modules may change from one version to the next.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpiwatch.packages import register

if TYPE_CHECKING:
    from mpiwatch.communicators import resume, watch_world
    from mpiwatch.launch import Options, run
    from mpiwatch.message_waits import wait_for_pending
    from mpiwatch.processes import supervised
    from mpiwatch.report import Report
    from mpiwatch.waiting import HangError
    from mpiwatch.wrapper import CommWrapper

__version__ = "0.1.0"

# The module of each public name, which is imported when the name is used.
_MODULES = {
    "watch_world": "communicators",
    "resume": "communicators",
    "HangError": "waiting",
    "Report": "report",
    "Options": "launch",
    "run": "launch",
    "CommWrapper": "wrapper",
    "wait_for_pending": "message_waits",
    "supervised": "processes",
}

__all__ = [
    "CommWrapper",
    "HangError",
    "Options",
    "Report",
    "register",
    "resume",
    "run",
    "supervised",
    "wait_for_pending",
    "watch_world",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mpiwatch' has no attribute {name!r}")
    return getattr(import_module(f"mpiwatch.{_MODULES[name]}"), name)
