"""A whole run from its settings to its files, as `labkit train` starts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm import (
    Averages,
    CollectiveError,
    EmulatedComm,
    Link,
    SharedSet,
    choose,
    raise_together,
    sleeping_barrier,
)
from labkit.nn import MODELS, Classifier, Model
from labkit.train.batches import Batches
from labkit.train.bottleneck import Bottleneck, Straggler
from labkit.train.callbacks import Contributions
from labkit.train.checkpoints import Checkpoints, stored_settings
from labkit.train.experiment import building
from labkit.train.experiment.checklist import RAW
from labkit.train.experiment.comparison import as_text, compare
from labkit.train.experiment.iterations import iterations, save_iterations
from labkit.train.experiment.presets import chosen
from labkit.train.experiment.printing import Printer, end_line, hosts_line, start_line
from labkit.train.experiment.progress import ProgressBar
from labkit.train.experiment.run_record import (
    prepare,
    record,
    save_measurements,
    save_record,
    save_weights,
)
from labkit.train.experiment.settings import AUGMENTATIONS, RECIPES, command_line, complete, fault
from labkit.train.loop import gather, train
from labkit.train.replicas import hash_of
from labkit.train.speed import speeds
from labkit.train.steps import Epoch, Step
from labkit.train.timeline import Timeline, save_trace

SPEED_SAMPLES = 256  # at most as many samples of each rank measure its speed
TEST_BATCH = 100
CHECKPOINT = "checkpoint.npz"


class Before(NamedTuple):
    """What a run begins with: the settings of a preset, or those that a checkpoint holds.

    The checkpoint also says when its run was started, on which preset and on how many ranks, and how many
    steps are done.
    """

    settings: dict[str, Any]
    started: str | None = None
    preset: str | None = None
    ranks: int | None = None
    steps: int = 0


@dataclass(frozen=True)
class Results:
    """What a run has measured on all ranks, and its `record`.

    Shape: iterations (p, n, 6), see `iterations`.
    """

    rows: list[Epoch]
    steps: list[Step]
    iterations: np.ndarray
    run: dict[str, Any]


def run(
    comm: MPI.Intracomm,
    given: Mapping[str, Any],
    out: Path,
    *,
    preset: str | None = None,
    resume: Path | None = None,
    ordered: bool = False,
    draw: Callable[[Path, Results], None],
) -> None:
    """Train as the settings say, print each epoch, test each rank's model and write the results to `out`.

    The `given` settings are the options of `labkit train` that were given, by name; the others are those of
    the preset, or of the run in the directory `resume`, and of the model's recipe. `ordered` prints the lines
    of an epoch in the order of their ranks. Rank 0 calls `draw` to add figures to the results.

    If `resume` holds the results of a run with these settings, do nothing but say so.

    Collective. Raise CollectiveError on every rank if a setting is wrong, the training diverges, another run
    is writing to `out`, or the results cannot be written.
    """
    before = stored(comm, resume) if resume else Before(chosen(comm, preset), preset=preset)
    settings = complete(given, before.settings)
    if resume and (finished := comm.bcast(_finished(out, before.started, settings))):
        if comm.rank == 0:
            print(f"The run in {out} is finished ({finished}): there is nothing to resume.", flush=True)
        return
    if why := fault(settings):
        raise CollectiveError(why)
    parts = *building.bottlenecks(comm, settings), building.averaging(settings)
    with ExitStack() as stack:
        _write(comm, out, lambda: stack.enter_context(prepare(out)))
        _run(comm, settings, before=before, parts=parts, out=out, ordered=ordered, draw=draw)


def _run(
    comm: MPI.Intracomm,
    settings: Mapping[str, Any],
    *,
    before: Before,
    parts: tuple[list[Bottleneck], list[Link] | None, Averages],
    out: Path,
    ordered: bool,
    draw: Callable[[Path, Results], None],
) -> None:
    """Do what `run` says, alone in `out`."""
    bottlenecks, links, algorithm = parts
    recipe = RECIPES[settings["model"]]
    dataset = SharedSet(comm, settings["data"], recipe.shape, settings["samples"])
    model = MODELS[settings["model"]](recipe.shape or dataset.features, dataset.outputs, settings["seed"])

    about = {**record(comm, settings), "command": f"{command_line(settings, comm.size)} {out}"}
    about["started"] = before.started or about["started"]
    preset = before.preset if before.ranks in (None, comm.size) else None
    if preset:
        about["preset"] = preset
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
        augmentation=AUGMENTATIONS[settings["data"]] if settings["augment"] else None,
    )
    about["batches"] = {
        "samples": len(dataset.targets),
        "global_batch": batches.about["global batch"],
        "updates_per_epoch": batches.steps,
    }
    epochs, steps = _length(settings, batches)
    if why := _unfit(before, settings, steps, comm.size):
        raise CollectiveError(f"cannot resume: {why}")
    if settings["algorithm"] == "auto":
        about["auto"] = str(choose(world, model.grads.nbytes))
    timeline = Timeline(comm)
    with ProgressBar(comm.rank, steps) as progress:
        printer = Printer(comm, progress, ordered=ordered, log_every=settings["log_every"])
        printer.note(start_line(settings, comm.size, model.params.size, len(dataset.targets), steps))
        if len(set(about["hosts"])) > 1:
            printer.note(hosts_line(about["hosts"]))
        if "auto" in about:
            printer.note(about["auto"])
        rows = train(
            world,
            model,
            batches,
            epochs=epochs,
            lr=building.lr_schedule(settings, batches.steps, steps, comm.size),
            optimizer=building.optimizer(settings, model),
            algorithm=algorithm,
            buckets=building.buckets(settings),
            accumulate=settings["accumulate"],
            buffers=settings["buffers"],
            check_weights=settings["check_weights"],
            average_after_step=settings["average_after_step"],
            checkpoints=Checkpoints(
                out / CHECKPOINT,
                every_steps=settings["checkpoint_every"] or 0,
                resume=before.ranks is not None,
                settings={**settings, "started": about["started"], "preset": preset},
            ),
            callbacks=[
                straggler,
                *([Contributions()] if building.contributions(settings) else []),
                timeline,
                progress,
                printer,
            ],
        )
        total_s = timeline.total_s
    steps_of_ranks = timeline.gather()
    table = iterations(steps_of_ranks, comm.size)
    _write(comm, out, lambda: save_weights(out, model))

    tested = evaluate(model, dataset)
    samples = sum(row.samples for row in rows)
    printer.say(end_line(tested["test_loss"], tested["test_accuracy"], total_s, samples))
    about["ended"] = comm.gather(
        {
            "rank": comm.rank,
            **tested,
            "total_s": total_s,
            "samples": samples,
            "local_batch": max((step.local_batch for step in timeline.recorded), default=0),
            "parameters_hash": hash_of(model.params),
            "buffers_hash": hash_of(model.buffers),
        }
    )
    results = Results(gather(comm, rows), steps_of_ranks, table, about)
    if preset and comm.rank == 0:
        compared = compare(preset, results.rows, table, about["ended"], settings["log_every"])
        about["comparison"] = [row._asdict() for row in compared]
        printer.note(as_text(preset, settings["data"], compared))
    _write(comm, out, lambda: _save(out, model, results, draw))
    printer.note(f"The results are in {out}.")


def evaluate(model: Model, dataset: SharedSet) -> dict[str, Any]:
    """Return loss and accuracy of this rank's model on the test set, and the count behind the accuracy.

    A regression has no accuracy and no count: None. Collective: all ranks go through the test set together,
    and each tests its own model.
    """
    loss, correct, n = 0.0, 0, 0
    for x, y in dataset.test_batches(TEST_BATCH):
        loss += len(x) * model.loss(x, y)
        correct += model.correct
        n += len(x)
    classifies = isinstance(model, Classifier)
    return {
        "test_loss": loss / n,
        "test_accuracy": correct / n if classifies else None,
        "test_correct": int(correct) if classifies else None,
        "test_samples": n,
    }


def stored(comm: MPI.Intracomm, directory: Path) -> Before:
    """Return what the checkpoint in this directory says of its run. Collective.

    Raise CollectiveError on every rank if there is none, or if it is damaged.
    """
    settings: dict[str, Any] | str = ""
    if comm.rank == 0:
        try:
            settings = stored_settings(directory / CHECKPOINT)
        except ValueError as error:
            settings = f"cannot resume: {error}"
    settings = comm.bcast(settings)
    if isinstance(settings, str):
        raise CollectiveError(settings)
    others = {name: settings.pop(name, None) for name in Before._fields[1:]}
    return Before(settings, **others)


def _unfit(before: Before, settings: Mapping[str, Any], steps: int, ranks: int) -> str | None:
    """Return why a run of so many steps cannot go on from what was before; None if it can.

    If there is nothing left to train, the results are those of the ranks and settings before the break.
    """
    if before.steps < steps:
        return None
    if before.steps > steps:
        return f"expected a run of at least {before.steps} steps, which are done already, got {steps}"
    if before.ranks != ranks:
        return (
            f"the training is complete; expected the {before.ranks} ranks that have its records, got {ranks}"
        )
    changed = [name for name in settings if _as_json(settings[name]) != before.settings.get(name)]
    if changed:
        name = changed[0]
        return f"the training is complete, with {name} {before.settings.get(name)}, got {settings[name]}"
    return None if before.started else "the training is complete, but its checkpoint has no records"


def _as_json(value: object) -> Any:
    """Return a value as it is read from a JSON file: with lists in place of tuples."""
    return json.loads(json.dumps(value))


def _finished(out: Path, started: str | None, settings: Mapping[str, Any]) -> str | None:
    """Return when the run that started then was finished with these settings; None if it was not."""
    try:
        run = json.loads((out / "run.json").read_text())
        same = run["started"] == started and run["settings"] == _as_json(settings)
        return str(run["finished"]) if same and all((out / name).exists() for name in RAW) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _length(settings: Mapping[str, Any], batches: Batches) -> tuple[int, int]:
    """Return how many epochs and steps the run has; the last epoch may be shorter than the others."""
    epochs, iterations = settings["epochs"], settings["iterations"]
    if iterations and (epochs is None or iterations < epochs * batches.steps):
        return batches.end_after(iterations), iterations
    return epochs, epochs * batches.steps


def _write(comm: MPI.Intracomm, out: Path, write: Callable[[], None]) -> None:
    """Call `write` on rank 0. Collective.

    Raise CollectiveError on every rank if `out` cannot be written to.
    """
    why = None
    if comm.rank == 0:
        try:
            write()
        except OSError as error:
            name = f" ({Path(error.filename).name})" if error.filename else ""
            why = f"cannot write to --out {out}: {error.strerror}{name}"
    sleeping_barrier(comm)  # rank 0 needs its core to draw
    raise_together(comm, why)


def _save(out: Path, model: Model, results: Results, draw: Callable[[Path, Results], None]) -> None:
    """Write all results but the weights; the figures, which can be drawn again, come last.

    When all is written, say so in run.json.
    """
    save_measurements(out, model, results.rows, results.run)
    save_iterations(out / "iterations.csv", results.iterations)
    save_trace(out / "trace.json", results.steps, results.run)
    draw(out, results)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    save_record(out, model, results.rows, {**results.run, "finished": finished})
