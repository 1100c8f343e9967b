"""The functions that `connect()` runs on the engines."""

# ruff: noqa: PLC0415 (imports inside functions: the notebook's kernel loads this module, and no MPI)

from __future__ import annotations

import gc
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.cluster.adapter import functions
from mpiwatch.launch import node_name
from mpiwatch.processes import start_time

DEFINED_BY_CONNECT = ("comm", "rank", "size", "np")


@dataclass(frozen=True)
class RankInfo:
    """What a rank reports about itself.

    `library` is the MPI library that its mpi4py has loaded, `prefix` the environment of its Python, `started`
    when its process was started, as mpiwatch.processes.start_time tells.
    """

    rank: int
    size: int
    pid: int
    started: str
    host: str
    library: str
    prefix: str


def rank_info() -> RankInfo:
    """Report this rank, and prepare its tracebacks. Not collective."""
    from IPython import get_ipython
    from mpi4py import MPI

    from labkit import alt_text
    from labkit.cluster.text_bars import draw_bars_as_text
    from labkit.cluster.tracebacks import shorten_tracebacks
    from mpiwatch.sessions import cell_number

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
        name_cells_in_warnings()
        draw_bars_as_text()
        alt_text.register(shell)
    name, version = MPI.get_vendor()
    library = f"{name} {'.'.join(map(str, version))}"
    host = node_name(socket.gethostname())
    pid = os.getpid()
    return RankInfo(comm.rank, comm.size, pid, start_time(pid), host, library, sys.prefix)


def name_cells_in_warnings() -> None:
    """Let a warning name the notebook's cell, not a file whose name differs from rank to rank."""
    import warnings

    from mpiwatch.sessions import cell_number

    plain = warnings.formatwarning

    def formatted(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
        text = plain(message, category, filename, lineno, line)
        number = cell_number(filename)
        return (
            text.replace(f"{filename}:{lineno}: ", f"Cell In[{number}], line {lineno}: ") if number else text
        )

    warnings.formatwarning = formatted


def install_comm(deadline_s: float, clear: bool, strict: bool = False) -> tuple[str, list[str]]:
    """Define `comm`, watched, `rank`, `size` and `np` for cells; `MPI.COMM_WORLD` is `comm`. Collective.

    With `strict`, `comm` is in strict mode from now on.

    Return the path of the flight recorder, and with `clear` the names that cells had defined, which are
    cleared before. If the ranks cannot share a flight recorder, its path is empty and `comm` is not watched.
    """
    import numpy as np  # only on the engine, where BLAS finds its settings
    from IPython import get_ipython

    from labkit import priority
    from labkit.cluster import engine_guards, failed_frame
    from labkit.cluster.completion.on_ranks import ANSWER, answer
    from labkit.cluster.places.files import files_of_this_cluster
    from mpiwatch import sessions, watch_world

    comm = watch_world(deadline_s=deadline_s, keep=True)
    sessions.begin(comm)
    if strict:
        from mpiwatch.strict import begin

        comm = begin(comm)
    shell = get_ipython()
    cleared = clear_names(shell) if clear else []
    if sessions.is_renewal_due():  # the notebook whose cell failed has not done it
        renew_comm("a cell of another notebook failed")
    shell.user_ns.update(comm=comm, rank=comm.rank, size=comm.size, np=np)
    functions.answer_requests(shell, ANSWER, partial(answer, shell))
    if comm.watch is None:
        return "", cleared
    comm.watch.recorder.reports = files_of_this_cluster()["reports"]
    comm.watch.end_cell(sessions.CellState.RETURNED, "")  # no cell is running yet
    if not getattr(shell, "_labkit_records_cells", False):
        shell._labkit_records_cells = True
        sessions.leave_calls_that_hang()
        engine_guards.note_ends(comm.watch)
        engine_guards.restore_signals_in_children()
        failed_frame.replace_debuggers(shell)
        record_cells(shell, comm.watch, engine_guards.limit_output())
        priority.lower(starts_checks=comm.rank == 0)  # after the watchdog's threads have begun
    path: str = comm.watch.recorder.path
    return path, cleared


def renew_comm(because: str) -> None:
    """Let `comm` go on with a fresh context, and end all that was made from it. Collective."""
    from mpi4py import MPI

    from mpiwatch import sessions

    sessions.renew(MPI.COMM_WORLD, because)


def leftovers() -> tuple[Any, ...]:
    """Return what the last cell has left on this rank: see mpiwatch.sessions.leftovers."""
    from mpi4py import MPI

    from mpiwatch import sessions

    return sessions.leftovers(MPI.COMM_WORLD.watch)  # type: ignore[attr-defined]


def begin_recording() -> str:
    """Let this rank record its next cell; return the path of the recording's file."""
    from mpi4py import MPI

    from mpiwatch import sessions

    return sessions.begin_recording(MPI.COMM_WORLD)


def end_recording() -> bytes:
    """Return the recording of the last cell."""
    from mpiwatch import sessions

    return sessions.end_recording()


def case_notes() -> dict[str, Any]:
    """Return what this rank knows of the case that the last cell has run: see `watching.take_notes`."""
    watching = sys.modules.get("labkit.exercises.watching")
    return watching.take_notes() if watching is not None else {}


def cell_texts(numbers: list[str]) -> dict[str, str]:
    """Return the texts of cells that this rank has run, by their numbers in the notebook."""
    import linecache

    texts = {}
    for entry in list(linecache.cache.values()):
        lines = entry[2] if len(entry) > 2 else []
        match = re.match(r"\s*# cell \[(\d+)\]", lines[0]) if lines else None
        if match is not None and match[1] in numbers:
            texts[match[1]] = "".join(lines)
    return texts


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
    return [name for name in names if not name.startswith("_") and name not in DEFINED_BY_CONNECT]


def record_cells(shell: Any, watch: Any, outputs: Sequence[Any]) -> None:
    """Record in the flight recorder when code that a client runs on this engine begins and ends.

    `outputs`: the streams whose output is bounded for each cell.
    """
    from labkit.cluster import engine_guards
    from labkit.cluster.completion.on_ranks import let_go_of_values
    from labkit.cluster.reloading import Reloader
    from mpiwatch import sessions

    engine_guards.keep_streams()
    reloader = Reloader(os.getcwd())

    def begin_call() -> None:
        for output in outputs:
            output.begin_cell()
        sessions.begin_cell(watch)

    def end_call(error: BaseException | None) -> None:
        with sessions.without_interrupts():  # else the cell would seem to run forever
            let_go_of_values()
            reloader.end_cell()
            engine_guards.restore_closed_streams()
            for output in outputs:
                output.end_cell()
            sessions.end_cell(watch, error)

    def end_cell(result: Any) -> None:
        end_call(result.error_before_exec or result.error_in_exec)

    def end_silent_cell() -> None:  # runs after every cell; `end_cell` follows unless the cell is silent
        if shell.last_execution_succeeded:
            end_call(None)
        else:
            end_cell(shell.last_execution_result)

    shell.events.register("pre_execute", begin_call)
    shell.events.register(
        "pre_execute", reloader.begin_cell
    )  # not before a call of the lab's: nobody sees its output
    shell.events.register("post_execute", end_silent_cell)
    shell.events.register("post_run_cell", end_cell)

    functions.call_around_functions(shell, begin_call, end_call)
