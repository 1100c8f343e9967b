"""The functions that `connect()` runs on the engines."""

from __future__ import annotations

import gc
import os
import re
import socket
from typing import Any

from labkit.cluster.world import RankInfo
from labkit.launch import node_name

GIVEN = ("comm", "rank", "size", "np")
# The names that ipyparallel defines while it runs a function.
IN_USE = re.compile(r"_[0-9a-f]{8}_.*_(f|args|kwargs|result)$")


def rank_info() -> RankInfo:
    """Report this rank. Not collective."""
    from IPython import get_ipython  # noqa: PLC0415
    from mpi4py import MPI  # noqa: PLC0415

    comm = MPI.COMM_WORLD
    label_cells(get_ipython())
    name, version = MPI.get_vendor()
    library = f"{name} {'.'.join(map(str, version))}"
    return RankInfo(comm.rank, comm.size, os.getpid(), node_name(socket.gethostname()), library)


def label_cells(shell: Any) -> None:
    """Make tracebacks name a cell by its number in the notebook; this engine counts its own cells."""
    from labkit.watch.flight_recorder.source import cell_number  # noqa: PLC0415

    own_label = type(shell.compile).format_code_name

    def label(file: str) -> tuple[str, str] | None:
        if own_label(shell.compile, file) is None:
            return None
        number = cell_number(file)
        return ("Cell", f"In[{number}]") if number else ("In", "%px")

    shell.compile.format_code_name = label


def install_comm(deadline_s: float, clear: bool) -> tuple[str, list[str]]:
    """Define `comm`, watched, `rank`, `size` and `np` for cells. Collective.

    Return the path of the flight recorder, and with `clear` the names that cells had defined, which are
    cleared before. If the ranks cannot share a flight recorder, its path is empty and `comm` is not watched.
    """
    import numpy as np  # noqa: PLC0415  (only on the engine, where BLAS finds its settings)
    from IPython import get_ipython  # noqa: PLC0415

    from labkit.watch.communicators import watch  # noqa: PLC0415
    from labkit.watch.flight_recorder.layout import CellState  # noqa: PLC0415
    from labkit.watch.wait import Watch  # noqa: PLC0415

    comm = watch(keep=True)
    comm.deadline_s = deadline_s
    shell = get_ipython()
    cleared = clear_names(shell) if clear else []
    shell.user_ns.update(comm=comm, rank=comm.rank, size=comm.size, np=np)
    if comm.watch is None:
        return "", cleared
    comm.watch.end_cell(CellState.RETURNED, "")  # no cell is running yet
    if not getattr(shell, "_labkit_records_cells", False):
        shell._labkit_records_cells = True
        begin, end = _hooks(comm.watch)
        shell.events.register("pre_run_cell", begin)
        shell.events.register("post_run_cell", end)
    assert isinstance(comm.watch, Watch)
    return comm.watch.recorder.path, cleared


def clear_names(shell: Any) -> list[str]:
    """Delete what cells have defined; return their names, without those that `connect()` has given."""
    initial = shell.user_ns_hidden  # IPython's own names and values
    missing = object()
    names = [name for name, value in shell.user_ns.items() if initial.get(name, missing) is not value]
    for name in names:
        if IN_USE.match(name):
            continue
        del shell.user_ns[name]
        if name in initial:
            shell.user_ns[name] = initial[name]
    shell.displayhook.flush()  # the results that `Out` holds
    gc.collect()
    return [name for name in names if not name.startswith("_") and name not in GIVEN]


def _hooks(watch: Any) -> tuple[Any, Any]:
    """Return functions that record the beginning and the end of each cell, for IPython to call."""
    from labkit.watch.flight_recorder.layout import CellState  # noqa: PLC0415
    from labkit.watch.flight_recorder.source import describe  # noqa: PLC0415

    def begin(info: Any) -> None:
        watch.begin_cell()

    def end(result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        state = CellState.RETURNED if error is None else CellState.RAISED
        watch.end_cell(state, describe(error) if error else "")

    return begin, end
