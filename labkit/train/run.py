"""A whole run from its settings to its files, as `labkit train` starts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import (
    Averaging,
    CollectiveError,
    CountingComm,
    EmulatedComm,
    Link,
    SharedSet,
    all_or_none,
    choose,
    parse_link,
    raise_together,
    sleeping_barrier,
)
from labkit.nn import MODELS, SGD, AdamW, Classifier, Model
from labkit.nn.lr_schedules import LRSchedule, constant, cosine, linear_scaling, step_decay
from labkit.train import bottleneck
from labkit.train.batches import Batches
from labkit.train.bottleneck import Bottleneck, Straggler, speeds
from labkit.train.buckets import Buckets
from labkit.train.callbacks import Contributions
from labkit.train.checklist import RAW
from labkit.train.checkpoints import Checkpoints, stored_settings
from labkit.train.comparison import as_text, beside, compare
from labkit.train.loop import gather, train
from labkit.train.memory import Memory, memory_line, predict
from labkit.train.presets import PRESETS
from labkit.train.printing import Printer, end_line, start_lines
from labkit.train.replicas import hash_of
from labkit.train.run_record import (
    iterations,
    prepare,
    record,
    save_iterations,
    save_measurements,
    save_record,
    save_weights,
)
from labkit.train.settings import Settings
from labkit.train.steps import Epoch, Step
from labkit.train.timeline import Timeline, save_trace
from labkit.units import MIB

# What --augment does to the images of a data set: digits must not be mirrored.
AUGMENTATIONS = {
    "digits": data.Augmentation(shift=2),
    "mnist": data.Augmentation(shift=2),
    "cifar10": data.Augmentation(shift=4, flip=True),
}
WARM_UP_EPOCHS = 5  # as in Goyal et al., 2017
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


Parts = tuple[list[Bottleneck], list[Link] | None, Averaging]
# Adds figures to the results of a run: given its folder, the epochs and steps of all ranks, and its record.
Draw = Callable[[Path, list[Epoch], list[Step], dict[str, Any]], None]


def run(
    comm: MPI.Intracomm,
    given: Mapping[str, Any],
    out: Path,
    *,
    preset: str | None = None,
    resume: Path | None = None,
    draw: Draw,
) -> None:
    """Train as the settings say, print each epoch, test each rank's model and write the results to `out`.

    The `given` settings are the options of `labkit train` that were given, by name; the others are those of
    the preset, or of the run in the directory `resume`, and of the model's recipe. Rank 0 calls `draw` to add
    figures to the results.

    If `resume` holds the results of a run with these settings, do nothing but say so.

    Collective. Raise CollectiveError on every rank if a setting is wrong, the training diverges, another run
    is writing to `out`, or the results cannot be written.
    """
    before = stored(comm, resume) if resume else Before(_preset(comm, preset), preset=preset)
    settings = Settings.complete(given, before.settings)
    if resume and (finished := comm.bcast(_finished(out, before.started, settings))):
        if comm.rank == 0:
            print(f"The run in {out} is finished ({finished}): there is nothing to resume.", flush=True)
        return
    if why := settings.fault():
        raise CollectiveError(why)
    parts = all_or_none(comm, lambda: _parts(settings, comm.size))
    with ExitStack() as stack:
        _write(comm, out, lambda: stack.enter_context(prepare(out)))
        _run(comm, settings, before=before, parts=parts, out=out, draw=draw)


def _run(
    comm: MPI.Intracomm,
    settings: Settings,
    *,
    before: Before,
    parts: Parts,
    out: Path,
    draw: Draw,
) -> None:
    """Do what `run` says, alone in `out`."""
    bottlenecks, links, averaging = parts
    shape = settings.recipe.shape
    dataset = SharedSet(comm, settings.data, shape, settings.samples)
    model = MODELS[settings.model](shape or dataset.features, dataset.outputs, settings.seed)
    optimizer = _optimizer(settings, model.params)

    about = {**record(comm, asdict(settings)), "command": f"{settings.command_line(comm.size)} {out}"}
    about |= {
        "optimizer": repr(optimizer or SGD(model.params[:0])),
        "started": before.started or about["started"],
    }
    preset = before.preset if before.ranks in (None, comm.size) else None
    if preset:
        about["preset"] = preset
    world = CountingComm(EmulatedComm(comm, links) if links else comm)
    if isinstance(world, EmulatedComm):
        about["links"] = world.emulated
    straggler = Straggler(bottlenecks, comm.rank, settings.seed)
    if settings.shard == "weighted":
        few = min(SPEED_SAMPLES, len(dataset.targets) // comm.size)
        x, y = Batches.of(comm, dataset, "strided").epoch(1)[:2]
        about["speeds"] = speeds(comm, model, x[:few], y[:few], straggler)
    batches = Batches.of(
        comm,
        dataset,
        settings.shard,
        settings.batch,
        seed=settings.seed,
        speeds=about.get("speeds", ()),
        augmentation=AUGMENTATIONS[settings.data] if settings.augment else None,
    )
    about["batches"] = {
        "samples": len(dataset.targets),
        "global_batch": batches.about["global batch"],
        "updates_per_epoch": batches.steps,
    }
    epochs, steps = _length(settings, batches)
    if why := _unfit(before, settings, steps, comm.size):
        raise CollectiveError(f"cannot resume: {why}")
    if settings.algorithm == "auto":
        about["auto"] = str(choose(world, model.grads.nbytes))
    timeline, memory = Timeline(comm), Memory()
    buckets = _buckets(settings)
    # Contributions cost two passes over the gradient in each step, and with buckets cannot be measured.
    contributions = buckets is None if settings.contributions is None else settings.contributions
    with Printer(comm, steps, settings.log_every) as printer:
        figures, remarks = beside(preset, settings, comm.size, out) if preset else ({}, [])
        printer.note("\n".join([start_lines(settings, about, model.params.size, steps), *remarks]))
        rows = train(
            world,
            model,
            batches,
            epochs=epochs,
            lr=_lr_schedule(settings, batches.steps, steps, comm.size),
            optimizer=optimizer,
            algorithm=averaging,
            buckets=buckets,
            shard_state=settings.shard_state,
            accumulate=settings.accumulate,
            buffers=settings.buffers,
            check_weights=settings.check_weights,
            average_after_step=settings.average_after_step,
            checkpoints=Checkpoints(
                out / CHECKPOINT,
                every_steps=settings.checkpoint_every or 0,
                resume=before.ranks is not None,
                settings={**asdict(settings), "started": about["started"], "preset": preset},
            ),
            callbacks=[straggler, *([Contributions()] if contributions else []), timeline, printer, memory],
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
    about |= {
        "bytes_sent_per_step": _sent(world, steps - before.steps, printer),
        "memory": {
            "measured": memory.most,
            "predicted": predict(model, optimizer, comm.size, settings.shard_state, buckets or Buckets()),
        },
    }
    printer.note(memory_line(about["memory"], model.params.size))
    rows = gather(comm, rows)
    if preset and comm.rank == 0:
        compared = compare(preset, rows, table, about["ended"], settings.log_every, figures=figures)
        about["comparison"] = [row._asdict() for row in compared]
        printer.note(as_text(preset, compared, remarks, table[:, :, 1].mean(axis=0)))
    _write(comm, out, lambda: _save(out, model, rows, steps_of_ranks, about=about, draw=draw))
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


def _preset(comm: MPI.Intracomm, name: str | None) -> dict[str, Any]:
    """Return the settings of a preset; none for None. Collective."""
    if name is None:
        return {}
    preset = PRESETS[name]
    there = comm.allreduce(preset.data not in data.SOURCES or data.is_cached(preset.data), MPI.LAND)
    return preset.on(preset.data if there else "digits")


def _unfit(before: Before, settings: Settings, steps: int, ranks: int) -> str | None:
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
    old = asdict(Settings.complete({}, before.settings))
    for name, value in asdict(settings).items():
        if value != old[name]:
            return f"the training is complete, with {name} {old[name]}, got {value}"
    return None if before.started else "the training is complete, but its checkpoint has no records"


def _finished(out: Path, started: str | None, settings: Settings) -> str | None:
    """Return when the run that started then was finished with these settings; None if it was not."""
    try:
        run = json.loads((out / "run.json").read_text())
        same = run["started"] == started and Settings.complete({}, run["settings"]) == settings
        return str(run["finished"]) if same and all((out / name).exists() for name in RAW) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _length(settings: Settings, batches: Batches) -> tuple[int, int]:
    """Return how many epochs and steps the run has; the last epoch may be shorter than the others."""
    epochs, most = settings.epochs, settings.iterations
    if most and (epochs is None or most < epochs * batches.steps):
        return batches.end_after(most), most
    assert epochs is not None  # only `iterations` can take its place
    return epochs, epochs * batches.steps


def _parts(settings: Settings, ranks: int) -> Parts:
    """Return the bottlenecks, the links to emulate if any, and what averages the gradients.

    Raise ValueError if --bottleneck or --link is invalid, or if the algorithm cannot compute --aggregate or
    send what --compress says.
    """
    bottlenecks = [bottleneck.parse(text) for text in settings.bottleneck]
    default = parse_link(settings.link) if settings.link else None
    bottleneck.check(bottlenecks, ranks, default)
    links = bottleneck.links(bottlenecks, ranks, default)
    if links and settings.algorithm == "shared-memory":
        raise ValueError("--algorithm shared-memory sends no messages, so there is no link to emulate")
    return bottlenecks, links, Averaging(settings.algorithm, settings.aggregate, settings.compress)


def _optimizer(settings: Settings, params: np.ndarray) -> SGD | AdamW | None:
    """Return the optimiser of these parameters; None for plain gradient descent, which needs no velocity."""
    if settings.optimizer == "adamw":
        return AdamW(params, weight_decay=settings.weight_decay)
    momentum, decay = settings.momentum, settings.weight_decay
    return SGD(params, momentum, decay) if momentum or decay else None


def _buckets(settings: Settings) -> Buckets | None:
    """Return the buckets of a run that averages during the backward pass; None for one that does not."""
    if settings.bucket_mb:
        largest = settings.bucket_mb * MIB
        return Buckets(largest, min(largest, Buckets().first_bytes))
    return Buckets() if settings.overlap or settings.shard_state != "none" else None


def _lr_schedule(settings: Settings, steps: int, total: int, ranks: int) -> LRSchedule:
    """Return the learning rate by step, for a run of `total` steps, `steps` in each epoch.

    - constant
    - step: a tenth of the rate after each third of the run
    - cosine: down to 0 at the end of the run
    - warm-up: from the rate to `ranks` times the rate in the first five epochs, at most a third of the run
      (`linear_scaling`), for a global batch that is `ranks` times as large as the rate is meant for
    """
    lr = settings.lr
    schedules = {
        "constant": lambda: constant(lr),
        "step": lambda: step_decay(lr, -(-total // 3)),
        "cosine": lambda: cosine(lr, total),
        "warm-up": lambda: linear_scaling(ranks, min(WARM_UP_EPOCHS * steps, total // 3), constant(lr)),
    }
    return schedules[settings.lr_schedule]()


def _sent(world: CountingComm, steps: int, printer: Printer) -> list[float] | None:
    """Print and return how many bytes each rank has sent in one of so many steps; None if none was counted.

    The messages of the lab's own algorithms can be counted, those inside the MPI library not. Collective.
    """
    counted = [row.sent.sum(axis=1) for row in world.traffic() if row.sent is not None]
    if not counted or not steps:
        return None
    sent: list[float] = (np.sum(counted, axis=0) / steps).tolist()
    printer.note(f"bytes sent in a step by the rank that sends most: {max(sent):,.0f}")
    return sent


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


def _save(
    out: Path, model: Model, rows: list[Epoch], steps: list[Step], *, about: dict[str, Any], draw: Draw
) -> None:
    """Write all results but the weights; the figures, which can be drawn again, come last.

    When all is written, say so in run.json.
    """
    save_measurements(out, model, rows, about)
    save_iterations(out / "iterations.csv", iterations(steps, about["ranks"]))
    save_trace(out / "trace.json", steps, about)
    draw(out, rows, steps, about)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    save_record(out, model, rows, {**about, "finished": finished})
