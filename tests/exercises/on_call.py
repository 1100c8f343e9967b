"""Jobs with each known fault, measured with the references of notebook 11's probes.

    OPENBLAS_NUM_THREADS=1 mpiexec -n 4 python -m tests.exercises.on_call [--rounds 1]

prints each cause with the probes in which it shows and the result of its job, and a line of JSON: how many
agree with the table of causes, how many do not, and how many measurements were too busy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.exercises import catalogue, on_call, on_call_job
from labkit.exercises.on_call import CAUSES, ON_A_RANK, PROBES
from labkit.exercises.reference import reference_function
from mpiwatch import communicators
from mpiwatch.renewal import renewal
from mpiwatch.waiting import HangError

DEADLINE_S = 2.0  # of a watched call
ATTEMPTS = 4  # of a measurement that is too busy


def once(probe: str) -> Any:
    """Return the rows of a probe, or the report of a hang."""
    try:
        name = PROBES[probe].function
        function = reference_function(catalogue.find(name)) if name else None
        measured = on_call_job.measure(probe, function)
    except HangError as error:
        renewal.is_due = True
        return error.report
    if measured["again"] is None:
        return measured["rows"]
    return on_call.settled(probe, np.array(measured["rows"]), np.array(measured["again"])).tolist()


def rows_of(world: MPI.Intracomm, probe: str, counts: Counter[str]) -> Any:
    """Return the rows of a probe on all ranks; repeat what is too busy. A hang is a row for each rank."""
    for _ in range(ATTEMPTS):
        try:
            outcome = once(probe)
        except on_call.TooBusy:
            outcome = None
        if renewal.is_due_on_any_rank():
            renewal.renew(MPI.COMM_WORLD, "a measurement failed")
        outcomes = MPI.Intracomm(MPI.COMM_WORLD).allgather(outcome)
        if any(each is None for each in outcomes):
            counts["too busy"] += 1
            continue
        report = next((each for each in outcomes if not isinstance(each, list)), None)
        if report is not None:
            return [[int(rank in report.missing())] for rank in range(world.size)]
        return outcomes[0]
    return None


def main() -> None:
    """Measure on this rank. The exit status is 1 if a row of the table is another one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    world = communicators.watch_world(deadline_s=DEADLINE_S)
    renewal.prepare(world)
    counts: Counter[str] = Counter()
    for number in range(options.rounds):
        healthy: dict[str, Any] = {}
        for place, cause in enumerate(["none", *[cause for cause in CAUSES if cause != "none"]]):
            rank = (number + place) % world.size
            on_call_job.start(world, on_call.setting_of(number, cause, rank, world.size))
            shown = set()
            for probe in PROBES:
                rows = rows_of(world, probe, counts)
                if cause == "none":
                    healthy[probe] = rows
                if rows is None or healthy[probe] is None:
                    continue
                if on_call.shows(probe, rows, healthy[probe]):
                    shown.add(probe)
            is_right = shown == on_call._SHOWS[cause]
            counts["right" if is_right else "wrong"] += 1
            step = "" if cause == "branch" else f"{on_call_job.result(is_repaired=False)}"
            if world.rank == 0:
                print(cause, rank if cause in ON_A_RANK else "", sorted(shown), step, flush=True)
    if world.rank == 0:
        print(json.dumps(counts))
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
