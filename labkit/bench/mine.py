"""`labkit bench mine`: the step of a student's my_ddp.py, part by part, beside labkit's, Allreduce and DDP.

    mpiexec -n 4 python -m mpi4py -m labkit.bench.mine my_ddp.py lenet5 ring 16 50

In each round every side takes one step on the same samples. A part takes as long as on its slowest rank. A
barrier stands before the averaging, so that waiting for another rank does not count. Prints rows as JSON.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.bench.collectives import gloo
from labkit.bench.pytorch import LR, MOMENTUM
from labkit.bench.rows import Row, rows_of
from labkit.bench.training import DDP, STEPS, TORCH_ALONE, Case, Torch
from labkit.comm import ALGORITHMS
from labkit.nn import MODELS, SGD, ops
from mpiwatch.processes import print_error
from mpiwatch.waiting import CollectiveError, raise_faults

PARTS = "forward", "backward", "averaging", "update"
MODEL_NAMES = {"cnn": "mnist-cnn"}  # labkit's, where it is another than the program's
NEEDED = "MODELS", "AVERAGES", "Step", "load_digits"
WARM_UP = 2


def load(comm: MPI.Intracomm, path: Path, average: str) -> Any:
    """Return the program as a module. Raise CollectiveError on every rank if it lacks what is timed."""
    spec = spec_from_file_location("my_ddp", path)
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    fault = None
    if missing := [name for name in NEEDED if not hasattr(program, name)]:
        fault = f"{path} has no {', '.join(missing)}; `labkit collect` writes a program that has"
    elif average not in (names := ["mpi", *program.AVERAGES]):
        fault = f"expected --average to be one of {', '.join(names)}, got {average!r}"
    raise_faults([fault] * comm.size)
    return program


def measure(
    comm: MPI.Intracomm, path: Path, model: str, average: str, *, batch: int, rounds: int
) -> list[Row]:
    """Return the rows: each part and the whole step, with a local batch of `batch` images. Collective."""
    program = load(comm, path, average)
    make, side = program.MODELS[model]
    images, labels = program.load_digits(side)[:2]
    own = np.arange(comm.rank, comm.size * batch, comm.size) % len(labels)
    x, y = images[own], labels[own]
    options = Namespace(average=average, lr=LR, momentum=MOMENTUM, warm_up=None, accumulate=1)
    network = make()
    step = program.Step(comm, network, options, rounds)
    theirs = MODELS[MODEL_NAMES.get(model, model)]()
    sgd, algorithm = SGD(theirs.params, MOMENTUM), ALGORITHMS.get(average, ALGORITHMS["mpi"])
    inputs = x.reshape(len(x), *theirs.input_shape)
    gradient = np.zeros_like(network.grads)

    def mine() -> Iterator[None]:
        _, dz = step.loss(x, y)
        yield
        network.backward(dz)
        yield
        step.average(comm, network.grads, batch)
        yield
        step.update(network.params, network.grads)

    def labkits() -> Iterator[None]:
        z = theirs.forward(inputs, training=True)
        ops.softmax_cross_entropy(z, y)
        dy: np.ndarray | None = ops.softmax_cross_entropy_backward(z, y)
        yield
        for layer in reversed(theirs.layers):
            dy = None if dy is None else layer.backward(dy)
        yield
        algorithm(comm, theirs.grads, 1 / comm.size)
        yield
        sgd.step(theirs.grads, LR)

    def library() -> Iterator[None]:
        yield
        yield
        comm.Allreduce(MPI.IN_PLACE, gradient)
        np.divide(gradient, comm.size, out=gradient)
        yield

    sides: dict[str, Callable[[], Iterator[None]]] = {"mine": mine, "labkit": labkits, "Allreduce": library}
    medians = _medians(comm, sides, rounds)
    medians["Allreduce"] = np.where([False, False, True, False], medians["Allreduce"], medians["mine"])
    where = f"mine/{model}/{comm.size}x{batch}/{average}"
    rows = []
    for index, part in enumerate(PARTS):
        against = ["mine", "labkit", *(["Allreduce"] if part == "averaging" else [])]
        rows += rows_of(f"{where}/{part}", {name: float(medians[name][index]) for name in against}, "ms")
    steps = {name: float(found.sum()) for name, found in medians.items()}
    if ddp := _pytorch(comm, model, inputs, y):
        steps["ddp-gloo" if comm.size > 1 else TORCH_ALONE] = 1e3 * ddp
    return [*rows, *rows_of(f"{where}/step", steps, "ms")]


def _medians(
    comm: MPI.Intracomm, sides: dict[str, Callable[[], Iterator[None]]], rounds: int
) -> dict[str, np.ndarray]:
    """Return the median times (ms) of the parts by side; in each round all take a turn. Collective."""
    times: dict[str, list[np.ndarray]] = {name: [] for name in sides}
    for number in range(-WARM_UP, rounds):
        for name in sides if number % 2 else reversed(sides):
            parts = _slowest(comm, sides[name]())
            if number >= 0:
                times[name].append(parts)
    return {name: 1e3 * np.median(found, axis=0) for name, found in times.items()}


def _slowest(comm: MPI.Intracomm, parts: Iterator[None]) -> np.ndarray:
    """Return the times (s) of the four parts, each on its slowest rank. Collective."""
    seconds = np.zeros(len(PARTS))
    for index in range(len(PARTS)):
        comm.Barrier()
        begin = perf_counter()
        next(parts, None)
        seconds[index] = perf_counter() - begin
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return seconds


def _pytorch(comm: MPI.Intracomm, model: str, x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the time (s) of DDP's step; None without PyTorch, or if PyTorch has no such model here."""
    if model not in STEPS:
        return None
    with gloo(comm) as all_reduce:
        if all_reduce is None:
            return None
        case = Case(DDP if comm.size > 1 else TORCH_ALONE, comm.size, comm.size * len(x))
        steps = Torch(model, comm.rank, [comm.size]).run(
            case, (x, y), [slice(len(x))] * STEPS[model], lambda: None
        )()
        own = float(np.median([step.done - step.begin for step in steps[1:]]))
        return comm.allreduce(own, MPI.MAX)


def main(path: str, model: str, average: str, batch: str, rounds: str) -> None:
    """Print the rows on rank 0; what the program prints goes to standard error."""
    comm = MPI.COMM_WORLD
    try:
        with redirect_stdout(sys.stderr):
            rows = measure(comm, Path(path), model, average, batch=int(batch), rounds=int(rounds))
    except CollectiveError as error:
        if comm.rank == 0:
            print_error(f"labkit bench mine: {error}\n")
        comm.Barrier()
        sys.exit(2)
    if comm.rank == 0:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
