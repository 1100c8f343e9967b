"""A whole run from its settings to its files, as `labkit train` starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import (
    CollectiveError,
    EmulatedComm,
    Link,
    SharedSet,
    algorithm,
    parse_link,
    print_by_rank,
    raise_together,
    sleeping_barrier,
)
from labkit.nn import MODELS, Model
from labkit.train import bottleneck
from labkit.train.batches import Batches
from labkit.train.bottleneck import Bottleneck, Straggler
from labkit.train.callbacks import Callback, Contributions, Epoch
from labkit.train.experiment.run_record import prepare, record, save
from labkit.train.loop import gather, train
from labkit.train.speed import speeds
from labkit.train.timeline import Step, Timeline, save_trace

SPEED_SAMPLES = 256  # at most as many samples of each rank measure its speed


@dataclass(frozen=True)
class Results:
    """The measurements of all ranks, and the run's `record`."""

    rows: list[Epoch]
    steps: list[Step]
    run: dict[str, Any]


def run(
    comm: MPI.Intracomm,
    settings: Mapping[str, Any],
    out: Path,
    *,
    ordered: bool,
    draw: Callable[[Path, Results], None],
) -> str | None:
    """Train as the settings say, print each epoch, write the results to `out`; return a summary on rank 0.

    The settings are the options of `labkit train`, by name. `ordered` prints the lines of an epoch in the
    order of their ranks. Rank 0 calls `draw` to add figures to the results.

    Collective. Raise CollectiveError on every rank if a setting is wrong, the training diverges, or the
    results cannot be written.
    """
    bottlenecks, links = _bottlenecks(comm, settings)
    try:
        averaging = algorithm(settings["algorithm"], settings["aggregate"])
    except ValueError as error:  # the same on all ranks
        raise CollectiveError(f"--algorithm and --aggregate: {error}") from None
    _together(comm, out, lambda: prepare(out))
    dataset = SharedSet(comm, settings["data"])
    raise_together(comm, _mismatch(settings, dataset.labelled))

    model = MODELS[settings["model"]](dataset.features, dataset.outputs, settings["seed"])
    about = record(comm, settings)
    world = EmulatedComm(comm, links) if links else comm
    if isinstance(world, EmulatedComm):
        about["links"] = world.emulated
    straggler = Straggler(bottlenecks, comm.rank, comm.size, settings["seed"])
    if settings["shard"] == "weighted":
        few = min(SPEED_SAMPLES, len(dataset.targets) // comm.size)
        x, y = Batches.of(comm, dataset, "strided").epoch(1)[:2]
        about["speeds"] = speeds(comm, model, x[:few], y[:few], straggler)
    batches = Batches.of(
        comm,
        dataset,
        settings["shard"],
        settings["batch"],
        seed=settings["seed"],
        speeds=about.get("speeds", ()),
    )
    timeline = Timeline(comm)
    rows = train(
        world,
        model,
        batches,
        epochs=settings["epochs"],
        lr=settings["lr"],
        algorithm=averaging,
        callbacks=[straggler, Contributions(), timeline, _Printer(comm, ordered)],
    )
    results = Results(gather(comm, rows), timeline.gather(), about)
    test_set = dataset.test()  # on rank 0
    return _together(comm, out, lambda: _save(out, model, test_set, results, draw) if test_set else None)


class _Printer(Callback):
    """Print a line for each epoch of each rank."""

    def __init__(self, comm: MPI.Intracomm, ordered: bool) -> None:
        self._comm, self._ordered = comm, ordered

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        print_by_rank(self._comm, _line(epoch), self._ordered)


def _line(row: Epoch) -> str:
    words = [f"epoch {row.epoch}: loss {row.local_loss:.4f} (all ranks {row.global_loss:.4f})"]
    if row.contribution:
        means = " ".join(f"{name} {mean:+.4f}" for name, mean in row.gradient_mean.items())
        parts = " ".join(f"{name} {100 * part:.2f} %" for name, part in row.contribution.items())
        words += [f"mean gradient {means}", f"contribution {parts}"]
    words.append(f"wait {1e3 * row.wait_s:.3f} ms, transfer {1e3 * row.transfer_s:.3f} ms")
    return " · ".join(words)


def _together(comm: MPI.Intracomm, out: Path, write: Callable[[], str | None]) -> str | None:
    """Call `write` on rank 0 and return its result there, None elsewhere. Collective.

    Raise CollectiveError on every rank if `out` cannot be written to.
    """
    result = fault = None
    if comm.rank == 0:
        try:
            result = write()
        except OSError as error:
            fault = f"cannot write to --out {out}: {error.strerror}"
    sleeping_barrier(comm)  # rank 0 needs its core to draw
    raise_together(comm, fault)
    return result


def _mismatch(settings: Mapping[str, Any], labelled: bool) -> str | None:
    """Return why the model and the data do not fit together, or None."""
    if labelled == (settings["model"] == "softmax"):
        return None
    return (
        f"the model {settings['model']!r} does not fit the data {settings['data']!r}, whose targets are "
        f"{'labels' if labelled else 'values'}; use --data {'linear' if labelled else 'digits'}"
    )


def _bottlenecks(
    comm: MPI.Intracomm, settings: Mapping[str, Any]
) -> tuple[list[Bottleneck], list[Link] | None]:
    """Return the bottlenecks, and the links to emulate if any. Collective.

    Raise CollectiveError on every rank if --bottleneck or --link is wrong.
    """
    fault, links, found = None, None, []
    try:
        found = [bottleneck.parse(text) for text in settings.get("bottleneck", ())]
        default = parse_link(settings["link"]) if settings.get("link") else None
        links = bottleneck.links(found, comm.size, default)
        fault = bottleneck.check(found, comm.size, default)
        if links and settings["algorithm"] == "shared-memory":
            fault = "--algorithm shared-memory sends no messages, so there is no link to emulate"
    except ValueError as error:
        fault = str(error)
    raise_together(comm, fault)
    return found, links


def _save(
    out: Path,
    model: Model,
    test_set: tuple[np.ndarray, np.ndarray],
    results: Results,
    draw: Callable[[Path, Results], None],
) -> str:
    """Write the results and return a summary."""
    x, y = test_set
    test = {"test_loss": model.loss(x, y)}
    summary = f"test loss {test['test_loss']:.4f}"
    if np.issubdtype(y.dtype, np.integer):
        test["test_accuracy"] = float((model.predict(x) == y).mean())
        summary += f", test accuracy {100 * test['test_accuracy']:.2f} %"
    draw(out, results)
    save_trace(out / "trace.json", results.steps, results.run)
    save(out, model, results.rows, {**results.run, **test})
    return f"{summary}; results in {out}"
