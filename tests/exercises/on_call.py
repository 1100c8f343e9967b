"""The reference diagnosis of many incidents: a program that only measures has to find cause and rank.

    python -m tests.exercises.on_call 200 [--ranks 4] [--faults 1] [--first 0] [--causes]

prints each incident with a wrong verdict, and how many are right. With --causes, each seed gives the size of
the job for one incident of each cause.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import perf_counter

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

TOO_BUSY = "too busy"
ATTEMPTS = 4  # of an experiment that is too busy
DEADLINE_S = 2.0  # of a watched call


def session():  # type: ignore[no-untyped-def]
    """Return the world's communicator, watched as in a notebook, and a function that runs one experiment."""
    from mpi4py import MPI  # noqa: PLC0415

    from labkit.exercises import on_call_job  # noqa: PLC0415
    from mpiwatch import communicators  # noqa: PLC0415
    from mpiwatch.report import Report  # noqa: PLC0415
    from mpiwatch.waiting import HangError  # noqa: PLC0415

    world = communicators.watch_world(deadline_s=DEADLINE_S)
    communicators.prepare_renewal(world)

    def own_outcome(name: str) -> object:
        """Run an experiment; return this rank's row, or the report of a hang."""
        try:
            return dict(on_call_job.measure(name))
        except HangError as error:
            communicators.renewal_is_due = True
            return error.report

    def experiment(name: str) -> set[Finding]:
        """Return what an experiment reads, on all ranks."""
        outcome = own_outcome(name)
        if communicators.renewal_is_due_on_any_rank():  # as before a notebook's next cell
            communicators.renew(MPI.COMM_WORLD, {"job": on_call_job._job})
        outcomes = MPI.Intracomm(MPI.COMM_WORLD).allgather(outcome)
        reports = [each for each in outcomes if isinstance(each, Report)]
        return EXPERIMENTS[name].read(hang_rows(reports[0], world.size) if reports else outcomes)

    def start(setting: Setting) -> None:
        on_call_job.start_setting(world, setting)

    return world, start, experiment


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
    """Start the ranks, or on a rank, diagnose the incidents. The exit status is 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("incidents", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--causes", action="store_true")
    parser.add_argument("--on-a-rank", action="store_true")
    options = parser.parse_args()
    if not options.on_a_rank:
        from tests.conftest import started  # noqa: PLC0415

        with started(options.ranks, "-m", "tests.exercises.on_call", *sys.argv[1:], "--on-a-rank") as job:
            assert job.stdout, f"the job has no output to read: {job}"
            for line in job.stdout:
                print(line, end="", flush=True)
            sys.exit(job.wait())
    world, start, experiment = session()
    counts: Counter[str] = Counter()
    began = perf_counter()
    for seed, setting in settings(options, world.size):
        start(setting)
        words = list[str]()
        found = None
        with suppress(TooBusy):
            found = diagnosed(partial(repeated, experiment, words), options.faults)
        busy = bool(words) and words[-1].endswith(TOO_BUSY)
        right = found is not None and set(found) == set(setting.faults)
        counts["right" if right else TOO_BUSY if busy else "wrong"] += 1
        counts["none accused"] += setting.faults[0].cause == "none" and not right and not busy
        if world.rank == 0 and not right:
            print(f"seed {seed}: {setting.faults}, found {found}, read {'; '.join(words)}", flush=True)
    if world.rank == 0:
        print(f"{json.dumps(counts)} in {perf_counter() - began:.0f} s, load {os.getloadavg()}")
    sys.exit(counts["wrong"] > 0)


def repeated(experiment: Callable[[str], set[Finding]], words: list[str], name: str) -> set[Finding]:
    """Return what an experiment reads; if the machine is too busy, repeat it a few times."""
    for _ in range(ATTEMPTS - 1):
        with suppress(TooBusy):
            words.append(f"{name}: {TOO_BUSY}")
            found = experiment(name)
            words[-1] = f"{name}: {', '.join(map(str, found))}"
            return found
    words.append(f"{name}: {TOO_BUSY}")
    return experiment(name)


if __name__ == "__main__":
    main()
