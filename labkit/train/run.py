"""A whole run from its settings to its files, as `labkit train` starts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.algorithms import AUTO
from labkit.comm import (
    Averaging,
    CollectiveError,
    CountingComm,
    EmulatedComm,
    SharedSet,
    all_or_none,
    parse_link,
    raise_together,
    sleeping_barrier,
)
from labkit.files import atomic_write
from labkit.nn import MODELS, SGD, AdamW, Classifier, Model, save_model
from labkit.nn.lr_schedules import LRSchedule, constant, cosine, linear_scaling, step_decay
from labkit.train import bottleneck
from labkit.train.batches import Batches
from labkit.train.callbacks import Contributions, Timeline
from labkit.train.checklist import RAW
from labkit.train.checkpoints import Checkpoints, read_checkpoint
from labkit.train.comparison import as_text, beside, compare
from labkit.train.loop import gather, hash_of, train
from labkit.train.memory import Memory
from labkit.train.overlap import Buckets
from labkit.train.presets import PRESETS
from labkit.train.printing import Printer, start_lines
from labkit.train.run_record import (
    iterations,
    prepare,
    record,
    save_measurements,
    save_record,
)
from labkit.train.settings import Settings
from labkit.train.steps import Epoch, Step
from labkit.train.stored import check_fields, check_type
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

# Adds figures to the results of a run: given its folder, the epochs and steps of all ranks, and its record.
Draw = Callable[[Path, list[Epoch], list[Step], dict[str, Any]], None]


def run_training(
    comm: MPI.Intracomm,
    options: Mapping[str, Any],
    out: Path,
    *,
    preset: str | None = None,
    resume: bool = False,
    draw: Draw,
) -> None:
    """Train as the settings say, print each epoch, test each rank's model and write the results to `out`.

    `options` has those of `labkit train` that the user wrote, by name; all other settings are those of the
    preset, or with `resume` of the run in `out`, and of the model's recipe. Rank 0 calls `draw` to add
    figures to the results.

    If `out` holds the results of the run to resume, with these settings, do nothing but say so.

    Collective. Raise CollectiveError on every rank if a setting is wrong, the training diverges, another run
    is writing to `out`, or the results cannot be written.
    """
    before = _stored(comm, out) if resume else _preset(comm, preset)
    settings = Settings.complete(options, before)
    finished = comm.bcast(_finished(out, before, settings)) if resume else None
    if finished:
        if comm.rank == 0:
            print(f"The run in {out} is finished ({finished}): there is nothing to resume.", flush=True)
        return
    why = settings.fault()
    if why:
        raise CollectiveError(why)
    averaging = all_or_none(
        comm, lambda: Averaging(settings.algorithm, settings.aggregate, settings.compress)
    )
    slow = all_or_none(comm, lambda: [bottleneck.parse(text) for text in settings.bottleneck])
    links = all_or_none(
        comm,
        lambda: bottleneck.links(
            slow, comm.size, None if settings.link is None else parse_link(settings.link)
        ),
    )
    if links and settings.algorithm == "shared-memory":
        raise CollectiveError("--algorithm shared-memory sends no messages, so there is no link to emulate")
    with ExitStack() as stack:
        _write(comm, out, lambda: stack.enter_context(prepare(out)))
        world = CountingComm(EmulatedComm(comm, links) if links else comm)
        straggler = bottleneck.Straggler(slow, comm.rank, settings.seed)
        _train_and_save(comm, world, settings, averaging, straggler, before=before, out=out, draw=draw)


def _train_and_save(  # noqa: PLR0915 (a run from its model to its files)
    comm: MPI.Intracomm,
    world: CountingComm,
    settings: Settings,
    averaging: Averaging,
    straggler: bottleneck.Straggler,
    *,
    before: Mapping[str, Any],
    out: Path,
    draw: Draw,
) -> None:
    """Do what `run_training` says, alone in `out`."""
    shape = settings.recipe.shape
    dataset = SharedSet(comm, settings.data, shape, settings.samples)
    model = MODELS[settings.model](shape or dataset.features, dataset.outputs, settings.seed)
    optimizer: SGD | AdamW | None = None  # plain gradient descent needs no velocity
    if settings.optimizer == "adamw":
        optimizer = AdamW(model.params, weight_decay=settings.weight_decay)
    elif settings.momentum or settings.weight_decay:
        optimizer = SGD(model.params, settings.momentum, settings.weight_decay)

    about = {**record(comm, asdict(settings)), "command": f"{settings.command_line(comm.size)} {out}"}
    about["optimizer"] = repr(optimizer or SGD(model.params[:0]))
    about["started"] = before.get("started") or about["started"]
    preset = before.get("preset") if before.get("ranks") in (None, comm.size) else None
    if preset:
        about["preset"] = preset
    if isinstance(world, EmulatedComm):
        about["links"] = world.emulated
    if settings.shard == "weighted":
        few = min(SPEED_SAMPLES, len(dataset.targets) // comm.size)
        x, y = Batches.of(comm, dataset, "strided").epoch(1)[:2]
        about["speeds"] = bottleneck.speeds(comm, model, x[:few], y[:few], straggler)
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
    of_epochs = settings.epochs * batches.steps if settings.epochs else None
    steps = min(filter(None, (of_epochs, settings.iterations)))
    why = _unfit(before, settings, steps, comm.size)
    if why:
        raise CollectiveError(f"cannot resume: {why}")
    buckets = Buckets() if settings.overlap or settings.shard_state != "none" else None
    if settings.bucket_mb:
        largest = settings.bucket_mb * MIB
        buckets = Buckets(largest, min(largest, Buckets().first_bytes))
    if settings.algorithm == AUTO:
        averaging = _decided(world, model, averaging, buckets, settings.shard_state)
        about["auto"] = averaging.algorithm
    # Contributions cost two passes over the gradient in each step, and with buckets cannot be measured.
    contributions = buckets is None if settings.contributions is None else settings.contributions
    timeline, memory = Timeline(comm), Memory()
    with Printer(comm, steps, settings.log_every) as printer:
        figures, remarks = beside(preset, settings, comm.size, out) if preset else ({}, [])
        printer.note("\n".join([start_lines(settings, about, model.params.size, steps), *remarks]))
        rows = train(
            world,
            model,
            batches,
            epochs=-(-steps // batches.steps),
            iterations=None if steps == of_epochs else steps,
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
                settings.checkpoint_every or 0,
                "ranks" in before,
                {**asdict(settings), "started": about["started"], "preset": preset},
            ),
            callbacks=[
                straggler,
                *([Contributions()] if contributions else []),
                timeline,
                printer,
                memory,
            ],
        )
        total_s = timeline.total_s
    steps_of_ranks = timeline.gather()

    def save_weights() -> None:
        """Write the model first: it cannot be made again if the disk gets full."""
        with atomic_write(out / "model.npz") as file:
            save_model(model, file)

    _write(comm, out, save_weights)

    tested = evaluate(model, dataset)
    samples = sum(row.samples for row in rows)
    result = f"test loss {tested['test_loss']:.4f}"
    if tested["test_accuracy"] is not None:
        result += f", test accuracy {100 * tested['test_accuracy']:.2f} %"
    printer.say(f"{result}; trained for {total_s:.3g} s, {samples / total_s:,.0f} samples/s")
    about["ended"] = comm.gather(
        {
            "rank": comm.rank,
            **tested,
            "total_s": total_s,
            "samples": samples,
            "local_batch": max(part.stop - part.start for part in batches.epoch(1).slices),
            "parameters_hash": hash_of(model.params),
            "buffers_hash": hash_of(model.buffers),
        }
    )
    about["bytes_sent_per_step"] = _sent(world, steps - before.get("steps", 0), printer)
    about["memory"] = memory.most
    kinds = ", ".join(f"{kind} {most / model.params.size:.3g}" for kind, most in memory.most.items())
    printer.note(f"rank 0, bytes/parameter: {kinds}")
    rows = gather(comm, rows)
    if preset and comm.rank == 0:
        table = iterations(steps_of_ranks, comm.size)
        compared = compare(preset, rows, table, about["ended"], settings.log_every, figures=figures)
        about["comparison"] = compared
        printer.note(as_text(preset, compared, remarks, table["loss"].mean(axis=0)))

    def save() -> None:
        """Write all other results; the figures, which can be drawn again, come last."""
        save_measurements(out, model, rows, steps_of_ranks, about)
        draw(out, rows, steps_of_ranks, about)
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        save_record(out, model, rows, {**about, "finished": finished})

    _write(comm, out, save)
    printer.note(f"The results are in {out}.")


def _decided(
    comm: MPI.Intracomm, model: Model, auto: Averaging, buckets: Buckets | None, shard_state: str
) -> Averaging:
    """Return what `auto` stands for in this run, as `train` would decide. Collective."""
    if shard_state != "none":
        return replace(auto, algorithm="mpi")
    n, dtype = model.grads.size, model.grads.dtype
    decided, _ = auto.prepare(comm, n, dtype, buckets.largest(n, dtype.itemsize) if buckets else n)
    return decided


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


def _stored(comm: MPI.Intracomm, out: Path) -> dict[str, Any]:
    """Return the settings in a run's checkpoint, and what else it says. Collective.

    It says when the run was "started", on which "preset" and on how many "ranks", and how many "steps" are
    done. Raise CollectiveError on every rank if there is none, or if it is damaged.
    """

    def read() -> dict[str, Any] | None:
        if comm.rank:
            return None
        description, _ = read_checkpoint(out / CHECKPOINT)
        stored = description["settings"]
        try:
            check_fields(Settings, stored)
            for name in "started", "preset":
                check_type(name, stored.get(name), str, type(None))
            if stored.get("preset") not in (None, *PRESETS):
                raise ValueError(f"there is no preset {stored['preset']!r}")
        except ValueError as error:
            raise ValueError(f"{out / CHECKPOINT} makes no sense: {error}") from None
        return description

    about: dict[str, Any] = comm.bcast(all_or_none(comm, read))
    return {**about["settings"], "ranks": len(about["progress"]), "steps": about["progress"][0]["done"]}


def _preset(comm: MPI.Intracomm, name: str | None) -> dict[str, Any]:
    """Return the settings of a preset with its name; none for None. Collective."""
    if name is None:
        return {}
    preset = PRESETS[name]
    there = comm.allreduce(preset.data not in data.SOURCES or data.is_cached(preset.data), MPI.LAND)
    return {**preset.on(preset.data if there else "digits"), "preset": name}


def _unfit(before: Mapping[str, Any], settings: Settings, steps: int, ranks: int) -> str | None:
    """Return why a run of so many steps cannot go on from what was before; None if it can.

    If there is nothing left to train, the results are those of the ranks and settings before the break.
    """
    done = before.get("steps", 0)
    if done > steps:
        return f"expected a run of at least {done} steps, which are done already, got {steps}"
    old = asdict(Settings.complete({}, before))
    changed = [f"{name} {value}" for name, value in asdict(settings).items() if value != old[name]]
    if done == steps and (changed or before["ranks"] != ranks):
        got = ", ".join([f"{ranks} ranks", *changed])
        return f"the training is complete; expected its {before['ranks']} ranks and its settings, got {got}"
    return None


def _finished(out: Path, before: Mapping[str, Any], settings: Settings) -> str | None:
    """Return when the run of a checkpoint was finished with these settings; None if it was not."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((out / "run.json").read_text())
        same = (
            stored["started"] == before["started"] and Settings.complete({}, stored["settings"]) == settings
        )
        return str(stored["finished"]) if same and all((out / name).exists() for name in RAW) else None
    return None


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
