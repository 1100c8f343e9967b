"""The functions that `connect()` runs on the engines."""

# ruff: noqa: PLC0415 (imports inside functions: the notebook's kernel loads this module, and no MPI)

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cluster.adapter import functions
from mpiwatch.launch import node_name

GIVEN = ("comm", "rank", "size", "np")


@dataclass(frozen=True)
class RankInfo:
    """What a rank reports about itself.

    `library` is the MPI library that its mpi4py has loaded, `prefix` the environment of its Python.
    """

    rank: int
    size: int
    pid: int
    host: str
    library: str
    prefix: str


def rank_info() -> RankInfo:
    """Report this rank, and prepare its tracebacks. Not collective."""
    from IPython import get_ipython
    from mpi4py import MPI

    from labkit.cluster.tracebacks import shorten_tracebacks
    from mpiwatch.places import cell_number

    comm, shell = MPI.COMM_WORLD, get_ipython()
    # Tracebacks name a cell by its number in the notebook; this engine counts its own cells. They have no
    # colours: see cluster_profiles/mpi/ipython_kernel_config.py.
    own_label = type(shell.compile).format_code_name

    def label(file: str) -> tuple[str, str] | None:
        if own_label(shell.compile, file) is None:
            return None
        number = cell_number(file)
        return ("Cell", f"In[{number}]") if number else ("In", "%px")

    shell.compile.format_code_name = label
    shell.colors = "nocolor"
    if not getattr(shell, "_labkit_shortens", False):
        shell._labkit_shortens = True
        shorten_tracebacks(shell)
    name, version = MPI.get_vendor()
    library = f"{name} {'.'.join(map(str, version))}"
    host = node_name(socket.gethostname())
    return RankInfo(comm.rank, comm.size, os.getpid(), host, library, sys.prefix)


def install_comm(deadline_s: float, clear: bool, strict: bool = False) -> tuple[str, list[str]]:
    """Define `comm`, watched, `rank`, `size` and `np` for cells; `MPI.COMM_WORLD` is `comm`. Collective.

    With `strict`, `comm` is in strict mode from now on.

    Return the path of the flight recorder, and with `clear` the names that cells had defined, which are
    cleared before. If the ranks cannot share a flight recorder, its path is empty and `comm` is not watched.
    """
    import numpy as np  # only on the engine, where BLAS finds its settings
    from IPython import get_ipython

    from labkit.cluster import engine_guards
    from labkit.cluster.places.files import files_of_this_cluster
    from mpiwatch import left_calls
    from mpiwatch.communicators import watch_world
    from mpiwatch.recorder import CellState
    from mpiwatch.renewal import renewal
    from mpiwatch.waiting import Watch

    comm = watch_world(deadline_s=deadline_s, keep=True)
    renewal.prepare(comm)
    if strict:
        from mpiwatch.strict import begin

        comm = begin(comm)
    shell = get_ipython()
    cleared = clear_names(shell) if clear else []
    if renewal.is_due_on_any_rank():  # the notebook whose cell failed has not done it
        renew_comm("a cell of another notebook failed")
    shell.user_ns.update(comm=comm, rank=comm.rank, size=comm.size, np=np)
    if comm.watch is None:
        return "", cleared
    comm.watch.recorder.reports = files_of_this_cluster()["reports"]
    comm.watch.end_cell(CellState.RETURNED, "")  # no cell is running yet
    if not getattr(shell, "_labkit_records_cells", False):
        shell._labkit_records_cells = True
        left_calls.install()
        engine_guards.note_ends(comm.watch)
        engine_guards.restore_signals_in_children()
        record_cells(shell, comm.watch, engine_guards.limit_output())
    assert isinstance(comm.watch, Watch)
    return comm.watch.recorder.path, cleared


def renew_comm(because: str) -> None:
    """Let `comm` go on with a fresh context, and end all that was made from it. Collective."""
    from mpi4py import MPI

    from mpiwatch.renewal import renewal

    renewal.renew(MPI.COMM_WORLD, because)


def leftovers() -> tuple[Any, ...]:
    """Return what the last cell has left on this rank: the fields of mpiwatch.messages.Leftovers."""
    from mpi4py import MPI

    from mpiwatch import messages

    return tuple(messages.leftovers(MPI.COMM_WORLD.watch))  # type: ignore[attr-defined]


def clear_names(shell: Any) -> list[str]:
    """Delete what cells have defined; return their names, without those that `connect()` has given."""
    initial = shell.user_ns_hidden  # IPython's own names and values
    missing = object()
    names = [name for name, value in shell.user_ns.items() if initial.get(name, missing) is not value]
    for name in names:
        if functions.is_in_use(name):
            continue
        del shell.user_ns[name]
        if name in initial:
            shell.user_ns[name] = initial[name]
    shell.displayhook.flush()  # the results that `Out` holds
    gc.collect()
    return [name for name in names if not name.startswith("_") and name not in GIVEN]


def record_cells(shell: Any, watch: Any, outputs: Sequence[Any]) -> None:
    """Record in the flight recorder when code that a client runs on this engine begins and ends.

    `outputs`: the streams whose output is bounded for each cell.
    """
    from labkit.cluster import engine_guards
    from mpiwatch import messages
    from mpiwatch.places import describe
    from mpiwatch.recorder import CellState
    from mpiwatch.renewal import renewal, without_interrupts
    from mpiwatch.under_way import traffic

    engine_guards.keep_streams()

    def begin() -> None:
        traffic.balance = 0
        for output in outputs:
            output.begin_cell()
        watch.begin_cell()

    def end(error: BaseException | None) -> None:
        with without_interrupts():  # else the cell would seem to run forever
            engine_guards.restore_closed_streams()
            for output in outputs:
                output.end_cell()
            strict = sys.modules.get("mpiwatch.strict")
            if strict is not None and (left := strict.end_cell()):
                print(left)
            if strict is None:  # strict mode reports what is left as findings
                watch.slot.balance = traffic.balance
                watch.slot.open_requests = len(messages.open_requests())
            renewal.is_due = renewal.is_due or error is not None
            state = CellState.RETURNED if error is None else CellState.RAISED
            watch.end_cell(state, describe(error) if error else "")

    def end_cell(result: Any) -> None:
        end(result.error_before_exec or result.error_in_exec)

    def end_silent_cell() -> None:  # runs after every cell; `end_cell` follows unless the cell is silent
        if shell.last_execution_succeeded:
            end(None)
        else:
            end_cell(shell.last_execution_result)

    shell.events.register("pre_execute", begin)
    shell.events.register("post_execute", end_silent_cell)
    shell.events.register("post_run_cell", end_cell)

    functions.call_around_functions(shell, begin, end)
