"""Run random programs of collectives, each without a fault and with one; print a line for each wrong result.

mpiexec -n 4 python random_collectives.py FIRST_SEED LAST_SEED
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np
from mpi4py import MPI

from mpiwatch.communicators import watch
from mpiwatch.recorder import CellState
from mpiwatch.waiting import HangError

FAULTS = ("skips", "operation", "count", "root", "dtype", "reduction", "raises", "loops")
ROOTED = ("Bcast", "Reduce", "Gather", "bcast", "gather")
PLAIN = ("Barrier", "Allreduce", "Allgather", "Alltoall", "Scan", "allreduce", "allgather")
COUNTED = ("Bcast", "Reduce", "Gather", "Allreduce", "Allgather", "Alltoall", "Scan")
REDUCING = ("Reduce", "Allreduce", "Scan", "allreduce")

raw = MPI.COMM_WORLD
world = watch()
comms = {"world": world, "dup": world.Dup(), "half": world.Split(world.rank % 2)}


class Left(Exception):
    """A rank's own error."""


def random_program(random_: random.Random) -> list[dict]:
    return [
        {
            "comm": random_.choice(list(comms)),
            "op": random_.choice(ROOTED + PLAIN),
            "count": random_.choice((1, 5, 1000, 20_000)),
            "root": random_.randrange(2),
            "dtype": random_.choice(("float32", "float64", "int64")),
            "reduction": random_.choice(("SUM", "MAX")),
        }
        for _ in range(random_.randrange(3, 9))
    ]


def call(step: dict) -> None:  # noqa: PLR0912
    """Make one call and check its result."""
    comm, op, root = comms[step["comm"]], step["op"], step["root"]
    size, rank, count = comm.size, comm.rank, step["count"]
    how = getattr(MPI, step["reduction"])
    mine = np.full(count, rank + 1, step["dtype"])
    ranks = range(1, size + 1)
    total = {"SUM": sum, "MAX": max}[step["reduction"]]
    got, expected = mine, mine
    if op == "Barrier":
        comm.Barrier()
    elif op == "Bcast":
        comm.Bcast(mine, root)
        expected = np.full_like(mine, root + 1)
    elif op == "Reduce":
        got = np.zeros_like(mine)
        comm.Reduce(mine, got, how, root)
        expected = np.full_like(mine, total(ranks) if rank == root else 0)
    elif op == "Allreduce":
        comm.Allreduce(MPI.IN_PLACE, mine, how)
        expected = np.full_like(mine, total(ranks))
    elif op == "Scan":
        got = np.zeros_like(mine)
        comm.Scan(mine, got, how)
        expected = np.full_like(mine, total(range(1, rank + 2)))
    elif op in ("Gather", "Allgather"):
        whole = np.zeros((size, count), step["dtype"])
        if op == "Gather":
            comm.Gather(mine, whole if rank == root else None, root)
        else:
            comm.Allgather(mine, whole)
        if op == "Allgather" or rank == root:
            got, expected = whole[:, 0], np.arange(1, size + 1, dtype=step["dtype"])
    elif op == "Alltoall":
        sent = np.repeat(np.arange(size, dtype=step["dtype"]), count)
        got = np.empty_like(sent)
        comm.Alltoall(sent, got)
        expected = np.full_like(sent, rank)
    elif op == "bcast":
        got, expected = comm.bcast(rank, root), root
    elif op == "gather":
        got = comm.gather(rank, root)
        expected = list(range(size)) if rank == root else None
    elif op == "allreduce":
        got, expected = comm.allreduce(rank + 1, how), total(ranks)
    elif op == "allgather":
        got, expected = comm.allgather(rank), list(range(size))
    assert np.array_equal(got, expected), f"{step}: got {got}, expected {expected}"


def faulty(step: dict, fault: str) -> dict | None:
    """Return the step with the fault in it; None if this step cannot have the fault."""
    op = step["op"]
    if fault == "operation":
        return {**step, "op": "Barrier" if op != "Barrier" else "allgather"}
    if fault == "count" and op in COUNTED:
        return {**step, "count": step["count"] + 1}
    if fault == "root" and op in ROOTED:
        return {**step, "root": 1 - step["root"]}
    if fault == "dtype" and op in COUNTED:
        return {**step, "dtype": "int64" if step["dtype"] != "int64" else "float32"}
    if fault == "reduction" and op in REDUCING:
        return {**step, "reduction": "MAX" if step["reduction"] == "SUM" else "SUM"}
    return step if fault in ("skips", "raises", "loops") else None


def run(program: list[dict], fault: tuple[int, int, str] | None) -> str:
    """Run a program as a cell is run; return how it ended on this rank."""
    assert world.watch is not None
    world.watch.begin_cell()
    try:
        for number, step in enumerate(program):
            if fault and (number, world.rank) == fault[:2]:
                if fault[2] == "skips":
                    continue
                if fault[2] == "raises":
                    raise Left
                if fault[2] == "loops":
                    end = time.monotonic() + 20
                    while world.watch.recorder.head.epoch == world.watch.epoch and time.monotonic() < end:
                        pass
                step = faulty(step, fault[2]) or step  # noqa: PLW2901
            call(step)
    except HangError as error:
        world.watch.end_cell(CellState.RAISED, "HangError")
        return str(error)
    except Left:
        world.watch.end_cell(CellState.RAISED, "Left")
        return "left"
    world.watch.end_cell(CellState.RETURNED, "")
    return ""


def main(first: int, last: int) -> None:
    reported = 0
    for seed in range(first, last):
        random_ = random.Random(seed)
        program = random_program(random_)
        for comm in comms.values():
            comm.deadline_s = 20.0
        ends = raw.allgather(run(program, None))
        if raw.rank == 0 and any(ends):
            print(f"seed {seed}: a false alarm: {next(filter(None, ends))}")
        kind = FAULTS[seed % len(FAULTS)]
        places = [number for number, step in enumerate(program) if faulty(step, kind)]
        if not places:
            kind, places = "operation", list(range(len(program)))
        culprit = random_.randrange(raw.size)
        for comm in comms.values():
            comm.deadline_s = 0.2
        fault = random_.choice(places), culprit, kind
        ends = raw.allgather(run(program, fault))
        texts = {end for end in ends if end not in ("", "left")}
        reported += bool(texts)
        lines = [line for text in texts for line in text.splitlines()[1:] if line.startswith("  rank")]
        named = any(
            str(culprit) in line.split("wait")[0].split("never")[0].split("finished")[0] for line in lines
        )
        if raw.rank == 0 and (len(texts) != 1 or not named):
            print(f"seed {seed}: {fault} in {program}: {len(texts)} reports: {texts}")
    if raw.rank == 0:
        print(f"{reported} of {last - first} faults reported")


main(int(sys.argv[1]), int(sys.argv[2]))
