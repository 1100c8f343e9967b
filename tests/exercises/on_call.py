"""The reference diagnosis of many incidents: a program that only measures has to find cause and rank.

    OPENBLAS_NUM_THREADS=1 mpiexec -n 4 python -m tests.exercises.on_call 200 [--faults 1] [--first 0]

prints each incident with a wrong verdict, and how many are right. With --causes, each seed gives the size of
the job for one incident of each cause.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from time import perf_counter

from mpi4py import MPI

from labkit.exercises import on_call_job
from labkit.exercises.on_call import (
    CAUSES,
    EXPERIMENTS,
    Fault,
    Finding,
    Setting,
    TooBusy,
    diagnosed,
    drawn,
    hang_rows,
)
from mpiwatch import communicators
from mpiwatch.renewal import renewal
from mpiwatch.report import Report
from mpiwatch.waiting import HangError

TOO_BUSY = "too busy"
ATTEMPTS = 4  # of an experiment that is too busy
DEADLINE_S = 2.0  # of a watched call


def own_outcome(name: str) -> object:
    """Run an experiment; return this rank's row, or the report of a hang."""
    try:
        return dict(on_call_job.measure(name))
    except HangError as error:
        renewal.is_due = True
        return error.report


def read(words: list[str], name: str) -> set[Finding]:
    """Return what an experiment reads, on all ranks; if the machine is too busy, repeat it a few times."""
    for attempt in range(ATTEMPTS):
        outcome = own_outcome(name)
        if renewal.is_due_on_any_rank():  # as before a notebook's next cell
            renewal.renew(MPI.COMM_WORLD, "an experiment failed")
        outcomes = MPI.Intracomm(MPI.COMM_WORLD).allgather(outcome)
        reports = [each for each in outcomes if isinstance(each, Report)]
        try:
            found = EXPERIMENTS[name].read(hang_rows(reports[0], len(outcomes)) if reports else outcomes)
        except TooBusy:
            words.append(f"{name}: {TOO_BUSY}")
            if attempt == ATTEMPTS - 1:
                raise
        else:
            words.append(f"{name}: {', '.join(map(str, found))}")
            break
    return found


def settings(options: argparse.Namespace, p: int) -> Iterator[tuple[int, Setting]]:
    """Yield the seeds and their incidents; with --causes, one for each cause, on ranks in turn."""
    for seed in range(options.first, options.first + options.incidents):
        setting = drawn(seed, p, options.faults)
        if not options.causes:
            yield seed, setting
            continue
        for number, (name, cause) in enumerate(CAUSES.items()):
            on_a_rank = cause.is_on_a_rank and (name != "slow link" or p > 2)
            yield seed, setting._replace(faults=(Fault(name, number % p if on_a_rank else None),))


def main() -> None:
    """Diagnose the incidents on this rank. The exit status is 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("incidents", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--causes", action="store_true")
    options = parser.parse_args()
    world = communicators.watch_world(deadline_s=DEADLINE_S)
    renewal.prepare(world)
    counts: Counter[str] = Counter()
    began = perf_counter()
    for seed, setting in settings(options, world.size):
        on_call_job.start_setting(world, setting)
        words = list[str]()
        try:
            found = diagnosed(partial(read, words), options.faults)
            verdict = "right" if found is not None and set(found) == set(setting.faults) else "wrong"
        except TooBusy:
            found, verdict = None, TOO_BUSY
        counts[verdict] += 1
        counts["none accused"] += setting.faults[0].cause == "none" and verdict == "wrong"
        if world.rank == 0 and verdict != "right":
            print(f"seed {seed}: {setting.faults}, found {found}, read {'; '.join(words)}", flush=True)
    if world.rank == 0:
        print(f"{json.dumps(counts)} in {perf_counter() - began:.0f} s, load {os.getloadavg()}")
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
