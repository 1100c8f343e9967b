"""Run several programs one after the other on the ranks of one job, in one of three modes.

mpiexec -n 2 python several.py RESULTS DEADLINE_S cells|plain|strict PROGRAM…

In `cells`, collectives begin with a rendezvous, as in a notebook; `plain` is as labkit run does. Like a cell,
each program ends with a result, an error or a hang report, and the next one begins when all ranks have
reached that end. Each program has its own communicator as MPI.COMM_WORLD, so that its messages cannot reach
the next one. Rank 0 appends a line of JSON to RESULTS for each.
"""

from __future__ import annotations

import gc
import json
import runpy
import sys
from time import sleep

from mpi4py import MPI

from mpiwatch import strict, under_way
from mpiwatch.communicators import resume, watch_world
from mpiwatch.processes import sweep_after_this_job
from mpiwatch.recorder import CellState
from mpiwatch.strict import StrictComm, exchange, findings, freed, memory, requests
from mpiwatch.waiting import HangError

if MPI.COMM_WORLD.rank == 0:
    sweep_after_this_job()  # a job that the watchdog ends leaves MPI's shared memory
meeting = MPI.COMM_WORLD.Dup()
mode = sys.argv[3]
world = watch_world(deadline_s=float(sys.argv[2]), in_program=mode != "cells")
world = strict.begin(world) if mode == "strict" else world
watch = world.watch
assert watch is not None
left_behind: list[MPI.Request] = []  # sends whose buffers must stay


def run(path: str) -> dict[str, str]:
    """Run a program; return how it ended on this rank, and the text of the report or error."""
    watch.begin_cell()
    try:
        runpy.run_path(path, run_name="__main__")
    except HangError as error:
        watch.end_cell(CellState.RAISED, "HangError")
        return {"how": "report", "said": str(error)}
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        watch.end_cell(CellState.RAISED, said)
        return {"how": "error", "said": said}
    watch.end_cell(CellState.RETURNED, "")
    return {"how": "", "said": ""}


def meet() -> None:
    """Wait until all ranks have reached the end of the program; meanwhile, drive messages."""
    arrived = meeting.Ibarrier()
    while not arrived.Test():
        exchange.progress()
        sleep(0.001)


def forget_all() -> None:
    """Clear what strict mode has found and noted of a program."""
    gc.collect()  # requests that the program has dropped
    requests.report_never_completed(only_dropped=False)
    freed.report_never_freed(only_dropped=False)
    findings.take()
    memory.active.clear()
    left_behind.extend(under_way.unfinished)  # they would look like messages of the next program
    under_way.unfinished.clear()
    exchange.headers_sent.clear()
    exchange.headers_received.clear()


for path in sys.argv[4:]:
    kept = len(exchange.exchanges)
    comm = world.Dup()
    freed.forget(comm)
    setattr(MPI, "COMM_WORLD", comm)  # noqa: B010
    ended = run(path)
    meet()
    everyone = meeting.allgather(ended)
    resume()
    has_failed = any(each["how"] for each in everyone)
    found = strict.collect(world) if isinstance(world, StrictComm) and not has_failed else []
    forget_all()
    del exchange.exchanges[kept:]
    left_behind.extend(under_way.under_way.dropped)
    under_way.under_way.__init__()  # type: ignore[misc]
    if world.rank == 0:
        row = {"path": path, "ranks": everyone, "findings": json.loads(findings.to_json(found))}
        with open(sys.argv[1], "a") as file:
            print(json.dumps(row), file=file)
