"""Checkpoints: a run that ends and is resumed gets the weights of an unbroken run."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averaging, SharedSet
from labkit.data import Augmentation
from labkit.nn import SGD, AdamW, Model, lr_schedules
from labkit.train import Batches, Buckets, Callback, Checkpoints, Epoch, Step, train
from labkit.train.callbacks import Timeline
from labkit.train.checkpoints import read_checkpoint
from labkit.train.loop import end_epoch
from tests.raising import error_on_every_rank
from tests.train.models import convolutional, normalised

MEASURED = {"wait_s", "transfer_s", "time_s"}


@contextmanager
def folder(comm: MPI.Intracomm) -> Iterator[Path]:
    """Give all ranks the path of a directory of rank 0's, and remove it when all are done with it."""
    parent = os.environ.get("IPYTHONDIR")  # that of a run that is killed is removed by the next run
    with tempfile.TemporaryDirectory(prefix="labkit-resuming-", dir=parent) as own:
        yield Path(comm.bcast(own))
        comm.Barrier()


class Stop(Exception):
    """The end of a run that is cut short."""


class StopAfter(Callback):
    """End the run after so many steps, as if the ranks were killed there; or do something else."""

    def __init__(self, step: int, act: Callable[[], None] | None = None) -> None:
        self.step, self.act = step, act

    def after_step(self, step: Step) -> None:
        if step.number == self.step:
            if self.act is None:
                raise Stop
            self.act()


class Run:
    """Runs of the same kind, on batches of 300 of the digits, so with 5 steps in an epoch."""

    def __init__(self, comm: MPI.Intracomm, file: Path, **settings: Any) -> None:
        self.comm, self.file, self.settings = comm, file, settings
        self.make = settings.pop("make", partial(normalised, (1, 8, 8), 10))
        self.plain, self.adamw = settings.pop("plain", False), settings.pop("adamw", False)
        self.shard = settings.pop("shard", "shuffled")
        self.has_timeline = settings.pop("has_timeline", False)
        digits = SharedSet(comm, "digits", (1, 8, 8))
        self.batches = Batches.of(comm, digits, self.shard, 300, seed=3, augmentation=Augmentation(1))

    def __call__(
        self, resume: bool = False, stop: Callback | None = None, **checkpoints: Any
    ) -> tuple[Model, list[Epoch]]:
        """Train for two epochs; return the model and the records."""
        model = self.make()
        optimizer: Any = None if self.plain else SGD(model.params, momentum=0.9, weight_decay=1e-3)
        if self.adamw:
            optimizer = AdamW(model.params)
        saves = Checkpoints(self.file, resume=resume, settings={"lr": "cosine"}, **checkpoints)
        rows = train(
            self.comm,
            model,
            self.batches,
            epochs=2,
            lr=lr_schedules.cosine(0.1, 10),
            optimizer=optimizer,
            checkpoints=saves if resume or checkpoints else None,
            callbacks=[*([stop] if stop else []), *([Timeline(self.comm)] if self.has_timeline else [])],
            **self.settings,
        )
        return model, rows

    def stopped(self, step: int, **checkpoints: Any) -> None:
        with pytest.raises(Stop):
            self(stop=StopAfter(step), **checkpoints)


def assert_same(resumed: tuple[Model, list[Epoch]], unbroken: tuple[Model, list[Epoch]]) -> None:
    """Compare the weights, the buffers and all records except times, bit for bit."""
    np.testing.assert_array_equal(resumed[0].params, unbroken[0].params)
    np.testing.assert_array_equal(resumed[0].buffers, unbroken[0].buffers)
    records = [
        [{k: v for k, v in asdict(row).items() if k not in MEASURED} for row in rows]
        for rows in (resumed[1], unbroken[1])
    ]
    assert records[0] == records[1]
    assert all(row.time_s > 0 for row in resumed[1])


def check_a_resumed_run_gets_the_same_weights_bit_for_bit(comm: MPI.Intracomm) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"buffers": "leave", "algorithm": ALGORITHMS["ring"], "accumulate": 2},
        {"average_after_step": True, "buffers": "broadcast", "plain": True},
        {"adamw": True},
        {"algorithm": Averaging("mpi", compress="top-k"), "buffers": "leave"},
        {"algorithm": Averaging("ring", compress="float16"), "buckets": Buckets(500, 100)},
    ]
    with folder(comm) as path:
        for number, kind in enumerate(kinds):
            run = Run(comm, path / "new" / f"{number}.npz", **kind)
            unbroken = run()
            for stop, every in (4, {"every_steps": 3}), (8, {"every_steps": 3}):
                run.stopped(stop, **every)
                assert_same(run(resume=True), unbroken)


def check_signals_write_a_checkpoint_and_sigterm_ends_the_run(comm: MPI.Intracomm) -> None:
    last = comm.size - 1

    def to_last_rank(number: int) -> Callable[[], None]:
        return lambda: os.kill(os.getpid(), number) if comm.rank == last else None

    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]
    with folder(comm) as path:
        run = Run(comm, path / "checkpoint.npz")
        unbroken = run()
        assert_same(run(stop=StopAfter(7, to_last_rank(signal.SIGUSR1)), every_steps=100), unbroken)
        assert_same(run(resume=True), unbroken)
        run.file.unlink(missing_ok=True)
        message = error_on_every_rank(
            comm, lambda: run(stop=StopAfter(5, to_last_rank(signal.SIGTERM)), every_steps=100)
        )
        assert message == (
            f"rank {last} received SIGTERM, so the run ends after epoch 1; resume it from {run.file}"
        )
        assert_same(run(resume=True), unbroken)
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)] == handlers


def on_other_ranks(
    comm: MPI.Intracomm, begin: Callable[[Run], None], end: Callable[[Run], None], **kind: Any
) -> None:
    """Let all ranks begin a run and rank 0 end it alone, and the other way round."""
    for first, second in (comm, MPI.COMM_SELF), (MPI.COMM_SELF, comm):
        with folder(comm) as path:
            if first is comm or comm.rank == 0:
                begin(Run(first, path / "run.npz", make=convolutional, **kind))
            comm.Barrier()
            if second is comm or comm.rank == 0:
                end(Run(second, path / "run.npz", make=convolutional, **kind))


def check_another_number_of_ranks_resumes_a_run_to_rounding(comm: MPI.Intracomm) -> None:
    with folder(comm) as path:
        unbroken, rows = Run(comm, path / "unbroken.npz", make=convolutional)()

    def end(run: Run) -> None:
        about, _ = read_checkpoint(run.file)
        ranks = len(about["progress"])
        assert about["settings"] == {"lr": "cosine"} and about["progress"][0]["done"] == 7
        with pytest.raises(Stop):  # it is killed once more, after a checkpoint of these ranks
            run(resume=True, stop=StopAfter(9), every_steps=1)
        about, _ = read_checkpoint(run.file)
        assert (len(about["progress"]), about["progress"][0]["done"]) == (run.comm.size, 8)
        resumed, found = run(resume=True)
        if comm.rank == 0:
            scale = np.abs(unbroken.params).max()
            np.testing.assert_allclose(resumed.params, unbroken.params, rtol=0, atol=1e-5 * scale)
            np.testing.assert_allclose(found[-1].global_loss, rows[-1].global_loss, rtol=1e-5)
            assert found[-1].global_accuracy == rows[-1].global_accuracy
            assert [row.rank for row in found if row.epoch == 1] == [*range(0, ranks, run.comm.size)]

    on_other_ranks(comm, lambda run: run.stopped(8, every_steps=7), end, has_timeline=True)


def check_buffers_count_by_what_these_ranks_hold(comm: MPI.Intracomm) -> None:
    """The samples that a rank took over from a run on other ranks do not count."""
    model, row = normalised(), Epoch(1, comm.rank, samples=100 if comm.rank == 0 else 1, loss_sum=1.0)
    model.buffers[...] = comm.rank
    settings = {"buffers": "average", "average_after_step": False, "check_weights": True}
    end_epoch(comm, model, row, 5, {**settings, "shard_state": "none"})
    np.testing.assert_array_equal(model.buffers, (comm.size - 1) / 2)


class StopWith(Callback):
    """End the run before its first step, and keep what it would begin with."""

    def begin(self, model: Model, held: Mapping[str, Sequence[np.ndarray]]) -> None:
        self.buffers, self.residual = model.buffers.copy(), held.get("residual", [model.grads])[0].copy()
        raise Stop


def check_another_number_of_ranks_takes_over_what_was_not_sent(comm: MPI.Intracomm) -> None:
    def end(run: Run) -> None:
        stop = StopWith()
        with pytest.raises(Stop):
            run(resume=True, stop=stop)
        _, arrays = read_checkpoint(run.file)
        left = sum(arrays[name] for name in arrays if name.endswith("/residual"))
        assert np.abs(left).max() > 0
        np.testing.assert_allclose(stop.residual, left / run.comm.size, rtol=1e-5, atol=1e-9)

    averaging = Averaging("ring", compress="top-k=0.2")
    on_other_ranks(comm, lambda run: run.stopped(4, every_steps=3), end, algorithm=averaging)


def check_another_number_of_ranks_takes_over_buffers_or_is_refused(comm: MPI.Intracomm) -> None:
    with folder(comm) as path:
        kinds = {
            "average": {"buffers": "average"},
            "broadcast": {"buffers": "broadcast"},
            "by-label": {"shard": "by-label"},
            "leave": {"buffers": "leave"},
            "drift": {"average_after_step": True},
        }
        for name, kind in kinds.items():
            Run(comm, path / f"{name}.npz", **kind).stopped(3, every_steps=2)
        if comm.rank or comm.size == 1:
            return
        for name, kind in kinds.items():
            alone = Run(MPI.COMM_SELF, path / f"{name}.npz", **kind)
            if kind.get("buffers", "leave") == "leave":
                message = error_on_every_rank(MPI.COMM_SELF, partial(alone, resume=True))
                assert f"cannot resume: expected {comm.size} ranks, as when" in message, message
                why = "with these shards" if name == "by-label" else "each rank has"
                assert f"got 1: {why}" in message, message
                continue
            begun = StopWith()
            with pytest.raises(Stop):
                alone(resume=True, stop=begun)
            about, arrays = read_checkpoint(alone.file)
            of_ranks = [arrays[f"rank {rank}/buffers"] for rank in range(comm.size)]
            counted = about["samples"] if name == "average" else [1] + [0] * (comm.size - 1)
            expected = np.average(of_ranks, axis=0, weights=counted)
            np.testing.assert_array_equal(begun.buffers, expected.astype(begun.buffers.dtype))
            assert len(alone(resume=True)[1]) == 2


def check_unfit_checkpoints_are_refused_before_training(comm: MPI.Intracomm) -> None:
    with folder(comm) as path:
        run = Run(comm, path / "run.npz")
        run.stopped(2, every_steps=1)

        def error(name: str = "run.npz", **other: Any) -> str:
            return error_on_every_rank(comm, partial(Run(comm, path / name, **other), resume=True))

        assert "with accumulate 2, as in this run, found one with 1" in error(accumulate=2)
        assert "with optimizer None, as in this run, found one with SGD(" in error(plain=True)
        assert "with optimizer AdamW(" in error(adamw=True)
        assert "with shard strided" in error(shard="strided")
        compress = Averaging(compress="top-k")
        assert "with compress top-k, as in this run, found one with none" in error(algorithm=compress)
        model = error(make=convolutional)
        assert "with model convolutional, as in this run, found one with normalised" in model
        assert "found no such file" in error("missing.npz")


def check_a_checkpoint_that_cannot_be_written_leaves_the_one_before(comm: MPI.Intracomm) -> None:
    """A disk is full when rank 0 flushes the checkpoint to it."""
    with folder(comm) as path, pytest.MonkeyPatch.context() as patched:
        run = Run(comm, path / "run.npz")
        unbroken = run()
        run.stopped(2, every_steps=1)
        kept = run.file.read_bytes()

        def fill() -> None:
            if comm.rank == 0:
                patched.setattr(os, "fsync", full_disk)

        assert_same(run(resume=True, stop=StopAfter(4, fill), every_steps=4), unbroken)
        assert run.file.read_bytes() == kept
        ended = StopAfter(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        message = error_on_every_rank(comm, lambda: run(resume=True, stop=ended, every_steps=100))
        assert "received SIGTERM" in message and "no checkpoint was written" in message, message
        assert "the last one is that after step 1 of epoch 1" in message, message


def full_disk(file: int) -> None:
    """Fail as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_a_run_that_diverges_keeps_its_last_checkpoint(comm: MPI.Intracomm) -> None:
    with folder(comm) as path:
        run = Run(comm, path / "run.npz")
        run.stopped(3, every_steps=2)
        kept = run.file.read_bytes()
        poisoned = Run(comm, run.file, algorithm=poison)
        assert "diverges" in error_on_every_rank(comm, lambda: poisoned(every_steps=2))
        assert run.file.read_bytes() == kept


def poison(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Make the averaged gradient infinite."""
    gradient[...] = np.inf
