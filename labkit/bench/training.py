"""Time set-ups of training in turns: each round runs every one once, in changing order.

A turn is a short training run of a few steps, all on the same model and the same samples. It takes as long as
on its slowest rank. Ranks that a set-up does not need are asleep meanwhile. Ours is a call of
`labkit.train.train`, the function that users call. PyTorch's DistributedDataParallel (DDP) trains over gloo,
with the same model, batches and optimiser. DDP's own defaults hold (buckets of 25 MB), except that it does
not broadcast the buffers before each step: `labkit.train` does not do so either.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from labkit.bench import training_rows
from labkit.bench.algorithms import TIMEOUT, gloo
from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY, pytorch_model
from labkit.bench.rows import Row
from labkit.bench.step import batch_for
from labkit.bench.training_rows import (
    BY_PYTORCH,
    Case,
    Run,
    StepTimes,
    Time,
    core_limit,
    scaling_cases,
    scaling_rows,
    scaling_table,
    setup_rows,
    setup_table,
    setups,
)
from labkit.comm import ALGORITHMS, sleeping_barrier
from labkit.data import local_batches
from labkit.nn import MODELS, SGD, Model
from labkit.train import Batches, Buckets, Callback, Step, train
from mpiwatch.processes import cores

Samples = tuple[np.ndarray, np.ndarray]


class _Recorder(Callback):
    """Record the times of all steps."""

    def __init__(self, report: Callable[[], None]) -> None:
        self.steps: list[StepTimes] = []
        self._report = report

    def after_step(self, step: Step) -> None:
        self.steps.append(StepTimes(step.begin, step.ready, step.start, step.end, step.done))
        self._report()


def our_run(
    comm: MPI.Intracomm,
    model: Model,
    case: Case,
    samples: Samples,
    report: Callable[[], None],
    *,
    one_node: bool,
) -> Run:
    """Return a function that trains on this rank's samples, with all ranks of `comm`, and returns the times.

    `report` is called after each step. Collective.
    """
    batch = case.batch
    if case.setup == training_rows.NO_AVERAGING:  # each rank trains by itself, with its local batch
        comm, batch = MPI.COMM_SELF, batch // case.p
    batches = Batches(comm, *samples, batch)
    options = _options(case.setup, one_node)

    def run() -> Sequence[StepTimes]:
        recorder = _Recorder(report)
        sgd = SGD(model.params, MOMENTUM, WEIGHT_DECAY)
        train(
            comm,
            model,
            batches,
            epochs=1,
            lr=LR,
            optimizer=sgd,
            buffers="leave",
            check_weights=False,
            callbacks=[recorder],
            **options,
        )
        return recorder.steps

    return run


def _no_averaging(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Leave the gradient as it is."""


def _options(setup: str, one_node: bool) -> dict[str, Any]:
    """Return the options of `train` that make a set-up."""
    algorithms = {
        training_rows.ALONE: "mpi",
        training_rows.ROOT: "root",
        training_rows.ALLREDUCE: "mpi",
        training_rows.SHARED_MEMORY: "shared-memory",
        training_rows.RING: "ring",
        training_rows.OVERLAP: training_rows.without_overlap(one_node),
    }
    if setup == training_rows.NO_AVERAGING:
        return {"algorithm": _no_averaging}
    return {
        "algorithm": ALGORITHMS[algorithms[setup]],
        "buckets": Buckets() if setup == training_rows.OVERLAP else None,
    }


class Torch:
    """The PyTorch models of this rank, one for each number of ranks. All ranks of the process group make it.

    The process group must exist (`labkit.bench.algorithms.gloo`); `rank` is this rank in it.
    """

    def __init__(self, name: str, rank: int, sizes: Sequence[int], timeout: timedelta) -> None:
        import torch  # noqa: PLC0415

        self._models: dict[int, Any] = {}
        self._groups: dict[int, Any] = {}
        for p in sorted(set(sizes)):
            group = torch.distributed.new_group(list(range(p)), timeout=timeout)
            if rank >= p:
                continue
            model = pytorch_model(name)[0]
            if p > 1:
                wrapper = torch.nn.parallel.DistributedDataParallel
                with warnings.catch_warnings():  # new versions want another name, which older ones lack
                    warnings.simplefilter("ignore", FutureWarning)
                    model = wrapper(model, process_group=group, broadcast_buffers=False)
            self._models[p], self._groups[p] = model, group

    def run(self, case: Case, samples: Samples, slices: Sequence[slice], report: Callable[[], None]) -> Run:
        """Return a function that trains on this rank's samples, a slice per step, and returns the times."""
        import torch  # noqa: PLC0415

        model, group = self._models[case.p], self._groups[case.p]
        sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        x, y = (torch.from_numpy(array) for array in samples)
        locally = case.setup in (training_rows.DDP_NO_SYNC, training_rows.DDP_NO_OVERLAP)

        def run() -> Sequence[StepTimes]:
            steps = []
            for part in slices:
                begin = perf_counter()
                with model.no_sync() if locally else nullcontext():
                    sgd.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
                    loss.backward()
                ready = perf_counter()
                if case.setup == training_rows.DDP_NO_OVERLAP:
                    _average(model, group, case.p)
                end = perf_counter()
                sgd.step()
                steps.append(StepTimes(begin, ready, ready, end, perf_counter()))
                report()
            return steps

        return run


def _average(model: Any, group: Any, p: int) -> None:
    """Average all gradients by one all_reduce, after the backward pass."""
    import torch  # noqa: PLC0415

    gradients = [parameter.grad for parameter in model.parameters()]
    joined = torch.cat([gradient.view(-1) for gradient in gradients])
    torch.distributed.all_reduce(joined, group=group)
    joined /= p
    parts = joined.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


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
