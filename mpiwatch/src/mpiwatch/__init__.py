"""Report which rank is missing and where the others wait when an mpi4py program hangs.

    mpiwatch -n 4 program.py            runs a program, unchanged, and watches its ranks
    comm = mpiwatch.watch_world(deadline_s=60)     watches the ranks of the program that calls it

A call that can never return raises `HangError`, whose `report` says what every rank was doing. A library that
defines communicators derives them from `CommWrapper` and calls `register`. Nothing here loads MPI or NumPy
before it is used.

Further public modules: `mpiwatch.report` (reports as data, text and table), `mpiwatch.launch` (start ranks),
`mpiwatch.processes` (start and end processes), `mpiwatch.layers` (for communicators and algorithms on top),
`mpiwatch.sessions` (ranks that run one cell after another), `mpiwatch.strict` (find what shows only by
chance). All other modules may change from one version to the next.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpiwatch.packages import advise, register

if TYPE_CHECKING:
    from mpiwatch.communicators import resume, watch, watch_world
    from mpiwatch.launch import Options, run
    from mpiwatch.message_waits import Pending, wait_for_pending
    from mpiwatch.processes import supervised
    from mpiwatch.program import begin_watching
    from mpiwatch.report import Report
    from mpiwatch.script import load
    from mpiwatch.waiting import CollectiveError, HangError
    from mpiwatch.wrapper import CommWrapper

__version__ = "0.1.0"

HANG_EXIT_CODE = 86  # of a program, or of a rank of a session, that ends because of a hang
STRICT_EXIT_CODE = 87  # of a program without a hang in which strict mode has found errors
FLIGHT_RECORDER = "mpiwatch-flight-recorder-"  # of its file's name; its creator's pid follows

# The module of each public name, which is imported when the name is used.
_MODULES = {
    "watch_world": "communicators",
    "watch": "communicators",
    "resume": "communicators",
    "HangError": "waiting",
    "CollectiveError": "waiting",
    "Report": "report",
    "Options": "launch",
    "run": "launch",
    "load": "script",
    "begin_watching": "program",
    "CommWrapper": "wrapper",
    "Pending": "message_waits",
    "wait_for_pending": "message_waits",
    "supervised": "processes",
}

__all__ = [
    "HANG_EXIT_CODE",
    "STRICT_EXIT_CODE",
    "CollectiveError",
    "CommWrapper",
    "HangError",
    "Options",
    "Pending",
    "Report",
    "advise",
    "begin_watching",
    "load",
    "register",
    "resume",
    "run",
    "supervised",
    "wait_for_pending",
    "watch",
    "watch_world",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mpiwatch' has no attribute {name!r}")
    return getattr(import_module(f"mpiwatch.{_MODULES[name]}"), name)
