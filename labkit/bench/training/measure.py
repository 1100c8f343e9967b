"""Time the cases in turns: each round runs every case once, in changing order.

A turn is a short training run of a few steps, all on the same model and the same samples. It takes as long as
on its slowest rank. Ranks that a case does not need are asleep meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from mpi4py import MPI

from labkit.bench.algorithms import TIMEOUT, gloo
from labkit.bench.rows import Row
from labkit.bench.step import batch_for
from labkit.bench.training.cases import BY_PYTORCH, Case, Run, Time, setups
from labkit.bench.training.cases import scaling as scaling_cases
from labkit.bench.training.ddp import Torch
from labkit.bench.training.ours import our_run
from labkit.bench.training.rows import core_limit, scaling_rows, scaling_table, setup_rows, setup_table
from labkit.comm import sleeping_barrier
from labkit.data import local_batches
from labkit.nn import MODELS
from mpiwatch.processes import cores

Report = Callable[[str], None]

STEPS = {"vgg11": 3, "lenet5": 21}  # of a turn; the first is not measured


def compare(
    comm: MPI.Intracomm, model: str, batch: int, scaling: str | None, *, rounds: int, report: Report
) -> tuple[list[Row], str]:
    """Return rows and a table: of all set-ups on all ranks or, for "strong" or "weak" scaling, on 1 … p.

    `batch` is each rank's local batch; in strong scaling, that on all ranks. `report` is called with a line
    about the progress, often. Collective.
    """
    one_node = len(set(comm.allgather(MPI.Get_processor_name()))) == 1
    place = "shm" if one_node else "hosts"
    with gloo(comm) as all_reduce:
        pytorch = all_reduce is not None
        cases = (
            scaling_cases(comm.size, batch, one_node=one_node, pytorch=pytorch, strong=scaling == "strong")
            if scaling
            else setups(comm.size, batch, one_node=one_node, pytorch=pytorch)
        )
        times = measure(comm, model, cases, rounds, report, one_node=one_node)
    machines = dict(comm.allgather((machine(), cores())))
    limit = core_limit(sorted({case.p for case in cases}), sum(machines.values()))
    if scaling:
        return scaling_rows(model, times, place, scaling), f"{scaling_table(times)}{limit}"
    return setup_rows(model, times, place), f"{setup_table(times)}{limit}"


def measure(
    comm: MPI.Intracomm,
    model: str,
    cases: Sequence[Case],
    rounds: int,
    report: Report,
    *,
    one_node: bool,
) -> dict[Case, Time]:
    """Return the median time of every case, the same on all ranks. Collective."""
    progress = _Progress(report)
    turns: dict[Case, list[Time]] = {case: [] for case in cases}
    with _runs(comm, model, cases, progress.step, one_node) as runs:
        for number in range(rounds):
            for case in reversed(cases) if number % 2 else cases:
                progress.turn = f"round {number + 1} of {rounds}: {case.setup}, {case.size}"
                turns[case].append(_turn(comm, case, runs.get(case)))
    return {case: median(times) for case, times in turns.items()}


class _Progress:
    """Add the number of the step to the line about the progress."""

    def __init__(self, report: Report) -> None:
        self._report, self.turn = report, ""

    def step(self) -> None:
        self._report(self.turn)


def median(times: Sequence[Time]) -> Time:
    """Return the time whose iteration is the median (of an even number, the lower), so its parts add up."""
    return sorted(times, key=lambda time: time.iteration)[(len(times) - 1) // 2]


def _turn(comm: MPI.Intracomm, case: Case, run: Run | None) -> Time:
    """Run a case once on its ranks; return its time on the slowest of them. Collective."""
    sleeping_barrier(comm)
    own = Time.of(run()) if run else None
    sleeping_barrier(comm)
    times = [time for time in comm.allgather(own) if time]
    return max(times, key=lambda time: time.iteration)


def machine() -> str:
    """Return what only processes on the same machine have in common; hosts of `labkit hosts` share one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        return socket.gethostname()


@contextmanager
def _runs(
    comm: MPI.Intracomm, name: str, cases: Sequence[Case], report: Callable[[], None], one_node: bool
) -> Iterator[Mapping[Case, Run]]:
    """Yield what this rank runs for each case that needs it. Collective."""
    model, found = MODELS[name](), {}
    comms = {}
    for p in sorted({case.p for case in cases}):
        comms[p] = cast(MPI.Intracomm, comm.Split(0 if comm.rank < p else MPI.UNDEFINED, comm.rank))
    by_pytorch = [case for case in cases if case.setup in BY_PYTORCH]
    torch = Torch(name, comm.rank, [case.p for case in by_pytorch], TIMEOUT) if by_pytorch else None
    for case in cases:
        if comm.rank >= case.p:
            continue
        n = STEPS[name] * case.batch
        samples = batch_for(model, len(range(comm.rank, n, case.p)))
        if torch and case.setup in BY_PYTORCH:
            found[case] = torch.run(case, samples, local_batches(n, case.batch, comm.rank, case.p), report)
        else:
            found[case] = our_run(comms[case.p], model, case, samples, report, one_node=one_node)
    yield found
    for each in comms.values():
        if each:
            each.Free()
