"""`labkit bench mine`: the step of a student's my_ddp.py, part by part, beside labkit's, Allreduce and DDP.

The part that costs most is named in a sentence. A network's gradient is timed by kind of layer, too.

In each round every side takes one step on the same samples, with one thread on each rank. A part takes as
long as on its slowest rank. A barrier stands before each part, so that waiting for another rank does not
count. DDP overlaps its parts, so its step is timed as a whole.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.bench.collectives import gloo
from labkit.bench.ddp import DDP, STEPS, TORCH_ALONE, Case, pytorch_runs
from labkit.bench.pytorch import LR, MOMENTUM
from labkit.bench.rows import Row, in_turns, rows_of, table
from labkit.comm import ALGORITHMS
from labkit.files import read_input
from labkit.nn import MODELS, SGD
from mpiwatch.layers import raise_faults

PARTS = "gradient", "averaging", "update"
MODEL_NAMES = {"cnn": "mnist-cnn"}  # labkit's, where it is another than the program's
# The layers of the program and of labkit, by the name of their class; and whose functions do the work.
KINDS = {
    **dict.fromkeys(("Conv", "Conv2D"), "convolution"),
    **dict.fromkeys(("Linear", "Dense"), "dense layers"),
    **dict.fromkeys(("MaxPool", "AveragePool", "AvgPool"), "pooling"),
    **dict.fromkeys(("ReLU", "Tanh"), "activations"),
}
FUNCTIONS = {
    "convolution": {"conv_forward", "conv_backward"},
    "dense layers": {"linear_backward"},
    "pooling": {"max_pool"},
    "gradient": {"mlp_gradient"},
    "averaging": {"average_gradients"},
    "update": {"momentum_step"},
}
NAMED = {"labkit": "labkit's", "Allreduce": "MPI's Allreduce"}
YOURS = re.compile(r"^# Yours: (\w+), notebook \w+$", re.MULTILINE)
NEEDED = "MODELS", "Step", "load_digits", "average_gradients"


def load(comm: MPI.Intracomm, path: Path, model: str | None, average: str | None) -> tuple[Any, str, str]:
    """Return the program as a module, and the model and the average that are timed.

    By default they are the program's first model, and its ring if it has one. Raise CollectiveError on every
    rank if the program lacks what is timed.
    """
    loader = SourceFileLoader("my_ddp", str(path))  # whatever the file's name ends in
    spec = spec_from_file_location("my_ddp", path, loader=loader)
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    fault = None
    missing = [name for name in NEEDED if not hasattr(program, name)]
    if missing:
        fault = f"{path} has no {', '.join(missing)}; `labkit collect` writes a program that has"
        raise_faults([fault] * comm.size)
    models, averages = list(program.MODELS), list(getattr(program, "AVERAGES", ["mpi"]))
    model = model or models[0]
    average = average or ("ring" if "ring" in averages else "mpi")
    if model not in models:
        fault = f"expected --model to be one of {', '.join(models)}, got {model!r}"
    elif average not in averages:
        fault = f"expected --average to be one of {', '.join(averages)}, got {average!r}"
    raise_faults([fault] * comm.size)
    return program, model, average


def compare(
    comm: MPI.Intracomm, program: Path, model: str | None, average: str | None, *, batch: int, rounds: int
) -> tuple[list[Row], str]:
    """Return rows of each part and of the whole step, with a local batch of `batch` images, and their text.

    The text ends with a sentence on the part that costs most. Collective.
    """
    student, model, average = load(comm, program, model, average)
    network = student.MODELS[model]()
    images, labels = student.load_digits(network.side)[:2]
    own_samples = np.arange(comm.rank, comm.size * batch, comm.size) % len(labels)
    x, y = images[own_samples], labels[own_samples]
    options = Namespace(average=average, lr=LR, momentum=MOMENTUM, warm_up=None, accumulate=1)
    step = student.Step(comm, network, options, rounds)
    theirs = MODELS[MODEL_NAMES.get(model, model)]()
    sgd, algorithm = SGD(theirs.params, MOMENTUM), ALGORITHMS.get(average, ALGORITHMS["mpi"])
    inputs = x.reshape(len(x), *theirs.input_shape)
    buffer = np.zeros_like(network.params)
    layers = {"mine": time_layers(getattr(network, "layers", ())), "labkit": time_layers(theirs.layers)}
    kinds = list(layers["mine"])

    def mine() -> Iterator[None]:
        _, grads = step.gradient(network.params, x, y)
        yield
        step.average(comm, grads, batch)
        yield
        step.update(network.params, grads)

    def labkits() -> Iterator[None]:
        theirs.loss_and_gradient(inputs, y)
        yield
        algorithm(comm, theirs.grads, 1 / comm.size)
        yield
        sgd.step(theirs.grads, LR)

    def library() -> Iterator[None]:
        yield
        comm.Allreduce(MPI.IN_PLACE, buffer)
        np.divide(buffer, comm.size, out=buffer)
        yield

    sides: dict[str, Callable[[], Iterator[None]]] = {"mine": mine, "labkit": labkits, "Allreduce": library}
    with gloo(comm) if model in STEPS else nullcontext() as all_reduce:
        if all_reduce is not None:
            name = DDP if comm.size > 1 else TORCH_ALONE
            case = Case(name, comm.size, comm.size * batch)
            ddp = pytorch_runs(model, {comm.size: comm})(case, (inputs, y), [slice(batch)])

            def pytorchs() -> Iterator[None]:
                ddp()
                yield

            sides[name] = pytorchs

        def measure(name: str) -> np.ndarray:
            seconds = layers.get(name, {})
            seconds.update(dict.fromkeys(seconds, 0.0))
            parts = _slowest(comm, sides[name]())
            of_layers = np.array([seconds.get(kind, 0.0) for kind in kinds])
            comm.Allreduce(MPI.IN_PLACE, of_layers, MPI.MAX)
            return np.concatenate([parts, of_layers])

        times = in_turns(sides, rounds, measure)
    measured = {name: 1e3 * np.median(seconds, axis=0) for name, seconds in times.items()}
    rows = rows_of_parts(f"mine/{model}/{comm.size}x{batch}/{average}", measured, kinds)
    return rows, f"{table(rows)}\n\n{costliest(rows, average, functions_of(program))}"


def functions_of(program: Path) -> set[str]:
    """Return the names of the program's functions that are the student's."""
    return set(YOURS.findall(read_input(program).decode(errors="replace")))


def rows_of_parts(where: str, measured: Mapping[str, np.ndarray], kinds: Sequence[str]) -> list[Row]:
    """Return rows of the parts, of the kinds of layers and of the whole step; each side's times are in ms."""
    medians = {name: values[: len(PARTS)] for name, values in measured.items()}
    medians["Allreduce"] = np.where([False, True, False], medians["Allreduce"], medians["mine"])
    rows = []
    for index, part in enumerate(PARTS):
        against = ["mine", "labkit", *(["Allreduce"] if part == "averaging" else [])]
        rows += rows_of(f"{where}/{part}", {name: float(medians[name][index]) for name in against}, "ms")
        for number, kind in enumerate(kinds, len(PARTS)):
            of_kind = {name: float(measured[name][number]) for name in ("mine", "labkit")}
            if part == "gradient" and min(of_kind.values()) > 0:
                rows += rows_of(f"{where}/gradient/{kind}", of_kind, "ms")
    steps = {name: float(median.sum()) for name, median in medians.items()}
    return [*rows, *rows_of(f"{where}/step", steps, "ms")]


def time_layers(layers: Iterable[Any]) -> dict[str, float]:
    """Let layers add up the seconds of their forward and backward passes, by kind; return where they do."""
    seconds: dict[str, float] = {}
    for layer in layers:
        kind = KINDS.get(type(layer).__name__)
        if kind is not None:
            seconds[kind] = 0.0
            for name in ("forward", "backward"):
                setattr(layer, name, _timed(getattr(layer, name), kind, seconds))
    return seconds


def _timed(function: Callable[..., Any], kind: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        began = perf_counter()
        result = function(*arguments)
        seconds[kind] += perf_counter() - began
        return result

    return timed


def costliest(rows: Sequence[Row], average: str, yours: set[str]) -> str:
    """Return a sentence on the part that takes most of a step: how much of it, and beside labkit's and MPI's.

    Layers count as parts of their own. `yours`: the program's functions that are the student's.
    """
    by_part: dict[str, list[Row]] = {}
    for row in rows:
        by_part.setdefault(row.case.rpartition("/")[2], []).append(row)
    (step, *_) = by_part.pop("step")
    if set(by_part) & {*KINDS.values()}:
        del by_part["gradient"]  # its layers stand for it
    part = max(by_part, key=lambda name: by_part[name][0].ours)
    first, *others = by_part[part]
    is_yours = bool(FUNCTIONS.get(part, set()) & yours) or (part == "averaging" and average != "mpi")
    name = f"{'Your' if is_yours else 'The program’s'} {part}"
    name += f" ({average})" if part == "averaging" else ""
    verb = "take" if part.endswith("s") else "takes"
    percent = 100 * first.ours / step.ours
    share = f"{name} {verb} {percent:.0f} % of a step ({first.ours:.2f} of {step.ours:.2f} ms)"
    beside = [f"{row.ratio:.1f} times {NAMED.get(row.against, row.against)}" for row in (first, *others)]
    return f"{share}: {', '.join(beside)}."


def _slowest(comm: MPI.Intracomm, parts: Iterator[None]) -> np.ndarray:
    """Return the times (s) of the parts, each on its slowest rank. Collective."""
    seconds = np.zeros(len(PARTS))
    for index in range(len(PARTS)):
        comm.Barrier()
        began = perf_counter()
        next(parts, None)
        seconds[index] = perf_counter() - began
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return seconds
