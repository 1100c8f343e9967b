"""Fork the processes of a check from a process that has imported what they need, to save their imports.

    python -m labkit.checks.forked --serve STARTER

forks judges for the process STARTER, and supervisors for these judges. Its standard input is the listener
(`labkit/forking.py`).

    python -m labkit.checks.forked STARTER FILE COMMAND …

is the supervisor of a job: it ends the job when the process STARTER ends, and forks the job's ranks. It
writes its process id to FILE, whole or not at all.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import mpi4py

from labkit import forking
from labkit.checks.limits import set_readable
from labkit.files import atomic_write
from labkit.forked_ranks import ForkedRanks
from mpiwatch.processes import GRACE_S, die_with_parent, end_signal, supervise

IMPORTED = (  # by judges and ranks; none with reference solutions, which students' code could read
    *("labkit.comm", "labkit.checks.failures", "labkit.checks.job", "labkit.checks.recording"),
    *("mpiwatch.communicators", "mpiwatch.program"),
)


def main(words: list[str]) -> NoReturn:
    """Fork judges and supervisors, or supervise a job."""
    set_readable(False)
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # a rank initialises MPI itself
    for module in IMPORTED:
        importlib.import_module(module)
    starter, *command = words
    if starter == forking.SERVE:
        _serve(int(command[0]))
    file, *command = command
    with atomic_write(Path(file)) as new:
        new.write(str(os.getpid()).encode())
    if command[0] == forking.FORK:
        _supervise_ranks(int(starter), int(command[1]), command[2:])
    _supervise_command(int(starter), command)


def _supervise_ranks(starter: int, number: int, words: list[str]) -> NoReturn:
    """Fork the ranks of a job, which run a module, and supervise them."""
    gc.freeze()  # the collector of a rank does not write to objects, and so they stay shared
    start = partial(_fork, ForkedRanks(number))
    code = supervise(start, starter, GRACE_S, signal.SIGKILL, lambda pid, stopped: [])
    if code is None:  # in a rank
        _run_module(words, is_rank=True)
    os._exit(code)


def _supervise_command(starter: int, command: list[str]) -> NoReturn:
    """Supervise a command, for example an mpiexec; fork what its stand-ins ask for."""
    if sys.platform == "linux":
        supervisor, listener = os.getpid(), forking.listen()
        if os.fork() == 0:
            die_with_parent(signal.SIGKILL, supervisor)
            os.dup2(listener.fileno(), 0)
            listener.close()
            _serve()
        listener.close()
    os._exit(supervise(command, starter, GRACE_S, end_signal(command[0]), lambda pid, stopped: []) or 0)


def _fork(ranks: ForkedRanks, prepare: Callable[[], None]) -> ForkedRanks | None:
    """Fork the ranks; return None in each of them."""
    return ranks if ranks.fork(prepare) is None else None


def _serve(starter: int = 0) -> NoReturn:
    """Fork a process for each stand-in; in the process, run its module."""
    _run_module(forking.serve(starter), is_rank=not starter)


def _run_module(words: list[str], *, is_rank: bool) -> NoReturn:
    """Run a module as `python -m` does, with its arguments."""
    sys.argv[:] = words
    set_readable(True)  # a rank; a judge closes itself again
    if is_rank:  # in the folder of its job; a judge is in the student's folder
        sys.path.insert(0, os.getcwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main(sys.argv[1:])
