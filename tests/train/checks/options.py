"""Options of the training loop: optimisers, accumulation, augmentation, buffers, check of replicas, drift."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import labkit
from labkit import data, nn
from labkit.comm import ALGORITHMS, Averaging, CountingComm, SharedSet
from labkit.data import Augmentation, strided
from labkit.nn import SGD, Model, lr_schedules, mlp, softmax_regression
from labkit.train import Batches, Buckets, Callback, Epoch, Timeline, gather, train
from tests.raising import error_on_every_rank
from tests.train.models import convolutional, labelled, normalised


def check_p_ranks_equal_one_rank_over_20_steps_by_every_algorithm(comm: MPI.Intracomm) -> None:
    """With and without gradient accumulation and buckets."""
    x, y = labelled(20 * 13)
    mine = strided(len(x), comm.rank, comm.size)

    def trained(comm: MPI.Intracomm, batches: Batches, **settings: object) -> Model:
        model = mlp(6, 3, hidden=8)
        optimizer = SGD(model.params, momentum=0.9, weight_decay=1e-3)
        before = model.grads
        train(comm, model, batches, epochs=1, lr=0.1, optimizer=optimizer, **settings)  # type: ignore[arg-type]
        assert model.grads is before and np.abs(before).max() > 0
        return model

    alone = trained(MPI.COMM_SELF, Batches(MPI.COMM_SELF, x, y, 13))
    scale = np.abs(alone.params).max()
    assert np.abs(alone.params - mlp(6, 3, hidden=8).params).max() > 0.1 * scale
    own = comm.Dup()
    for name in sorted(ALGORITHMS):
        kinds = [(1, None), (3, Buckets(128, 64))]
        for accumulate, buckets in [*kinds, (1, Buckets(128, 64)), (14, None)] if name == "mpi" else kinds:
            settings = {"algorithm": ALGORITHMS[name], "accumulate": accumulate, "buckets": buckets}
            model = trained(own, Batches(own, x[mine], y[mine], 13), **settings)
            np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=3e-6 * scale)
    own.Free()


def check_notebook_04_compresses_as_the_lab_does(comm: MPI.Intracomm) -> None:
    """The function that notebook 04 writes out, on a part of the digits, and `train` with top-k."""
    notebook = Path(labkit.__file__).parent.parent / "notebooks" / "04_averaging_gradients.ipynb"
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]}
    digits, n = data.digits(), 60 * comm.size
    names: dict[str, Any] = {"comm": comm, "rank": comm.rank, "size": comm.size, "n_train": n}
    names |= {"np": np, "nn": nn, "data": data, "digits": digits, "MPI": MPI}
    [function] = [
        each
        for each in ast.parse(cells["compress"].removeprefix("%%px")).body
        if isinstance(each, ast.FunctionDef) and each.name == "train_compressed"
    ]
    exec(ast.unparse(function), names)
    written = names["train_compressed"](0.02, steps=30)
    lossy = names["train_compressed"](0.02, feedback=False, steps=30)
    sends = 8 * int(0.02 * mlp().grads.size)  # pairs of index and value
    mine = strided(n, comm.rank, comm.size)
    batches = Batches(comm, digits.x_train[mine], digits.y_train[mine], n)
    for name in "mpi", "ring":
        counting, model = CountingComm(comm), mlp()
        averaging = Averaging(name, "mean", "top-k=0.02")
        rows = train(counting, model, batches, epochs=30, lr=0.2, algorithm=averaging)
        np.testing.assert_allclose([row.global_loss for row in rows], written, rtol=1e-3)
        counted = sum(row.sent.sum() for row in counting.traffic() if row.sent is not None)
        assert name == "mpi" or counted == 30 * comm.size * (comm.size - 1) * sends
    assert lossy[-1] > 1.02 * written[-1]


def check_losses_and_accuracies_are_those_of_the_forward_passes(comm: MPI.Intracomm) -> None:
    x, y = labelled(41)
    mine = strided(41, comm.rank, comm.size)
    model, twin, seen = softmax_regression(6, 3), softmax_regression(6, 3), Timeline(comm)
    batches = Batches(comm, x[mine], y[mine], 20)
    rows = train(comm, model, batches, epochs=2, lr=0.5, accumulate=2, callbacks=[seen])
    assert [(s.epoch, s.number, s.global_batch) for s in seen.steps] == [
        (1, 1, 20), (1, 2, 20), (1, 3, 1), (2, 4, 20), (2, 5, 20), (2, 6, 1)
    ]  # fmt: skip
    for step in seen.steps:
        assert step.begin <= step.ready <= step.start <= step.end <= step.done and step.lr == 0.5
    right, number = [], 0
    for _ in range(2):
        for part in np.split(np.arange(41), [20, 40]):
            own, step = part[np.isin(part, mine)], seen.steps[number]
            assert step.local_batch == len(own)
            np.testing.assert_allclose(step.loss, twin.loss(x[own], y[own]) if len(own) else 0, rtol=1e-5)
            right.append(twin.predict(x[part]) == y[part])
            twin.loss_and_gradient(x[part], y[part])
            twin.params -= np.float32(0.5) * twin.grads
            number += 1
    for row, correct in zip(rows, np.split(np.concatenate(right), 2), strict=True):
        assert row.samples == len(mine) and row.time_s > 0
        assert row.local_accuracy == correct[mine].mean() and row.global_accuracy == correct.mean()


def check_augmentation_does_not_depend_on_the_number_of_ranks(comm: MPI.Intracomm) -> None:
    def trained(comm: MPI.Intracomm, augmentation: Augmentation | None) -> np.ndarray:
        model = convolutional()
        digits = SharedSet(comm, "digits", (1, 8, 8))
        batches = Batches.of(comm, digits, "shuffled", 400, seed=4, augmentation=augmentation)
        train(comm, model, batches, epochs=2, lr=0.1)
        return model.params

    changed = Augmentation(1, flip=True)
    ours, alone = trained(comm, changed), trained(MPI.COMM_SELF, changed)
    plain = trained(MPI.COMM_SELF, None)
    np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-5 * np.abs(alone).max())
    assert np.abs(ours - plain).max() > 1e-3 * np.abs(alone).max()


def check_buffers_are_averaged_broadcast_or_left_alone(comm: MPI.Intracomm) -> None:
    x, y = labelled(37)
    mine = strided(37, comm.rank, comm.size)
    batches = Batches(comm, x[mine].reshape(-1, 1, 2, 3), y[mine], 37)
    found = {}
    for how in ("leave", "broadcast", "average"):
        model = normalised()
        train(comm, model, batches, epochs=1, lr=0.1, buffers=how)
        found[how] = comm.allgather(model.buffers)
    left = np.array(found["leave"])
    assert comm.size == 1 or np.abs(left - left[0]).max() > 1e-4
    weights = [len(strided(37, rank, comm.size)) for rank in range(comm.size)]
    for rank in range(comm.size):
        np.testing.assert_array_equal(found["broadcast"][rank], left[0])
        np.testing.assert_array_equal(found["average"][rank], found["average"][0])
    np.testing.assert_allclose(found["average"][0], np.average(left, axis=0, weights=weights), rtol=1e-5)


class Meddler(Callback):
    """Change a value of the model on one rank, once the first step is done."""

    def __init__(self, rank: int, array: str) -> None:
        self.rank, self.array = rank, array

    def after_average(self, model: Model, global_batch: int) -> None:
        if MPI.COMM_WORLD.rank == self.rank:
            getattr(model, self.array)[-1] += np.float32(1e-3)


def check_replicas_that_differ_end_the_run_on_every_rank(comm: MPI.Intracomm) -> None:
    x, y = labelled(40)
    mine = strided(40, comm.rank, comm.size)
    batches = Batches(comm, x[mine].reshape(-1, 1, 2, 3), y[mine], 10)
    last = comm.size - 1

    def run(array: str, **settings: object) -> list[Epoch]:
        meddler = Meddler(last, array)
        return train(comm, normalised(), batches, epochs=2, lr=0.1, callbacks=[meddler], **settings)  # type: ignore[arg-type]

    if comm.size == 1:
        assert len(run("params")) == 2
        return
    message = error_on_every_rank(comm, lambda: run("params"))
    assert message.startswith(f"after epoch 1, rank {last}: the parameters of 'normalised' have"), message
    assert " as on rank" in message and "check_weights=False" in message, message
    assert len(run("params", check_weights=False)) == 2
    assert len(run("buffers", buffers="leave")) == len(run("buffers")) == 2


def check_averaging_after_the_step_lets_the_weights_drift_apart(comm: MPI.Intracomm) -> None:
    x, y = labelled(40)
    mine = strided(40, comm.rank, comm.size)
    x, y = x[mine], y[mine]
    model, twin = softmax_regression(6, 3), softmax_regression(6, 3)
    rows = train(comm, model, Batches(comm, x, y, 20), epochs=3, lr=0.5, average_after_step=True)
    for part in 3 * np.array_split(np.arange(len(x)), [len(range(comm.rank, 20, comm.size))]):
        twin.loss_and_gradient(x[part], y[part])
        twin.params -= np.float32(0.5) * twin.grads
    np.testing.assert_allclose(model.params, twin.params, rtol=1e-5, atol=1e-6)
    weights = np.array(comm.allgather(model.params))
    apart = np.linalg.norm(weights - weights[0], axis=1).max() / np.linalg.norm(weights[0])
    np.testing.assert_allclose(rows[-1].drift, apart, rtol=1e-4, atol=1e-7)
    assert comm.size == 1 or rows[0].drift < rows[1].drift < rows[2].drift, rows
    right = train(comm, softmax_regression(6, 3), Batches(comm, x, y, 20), epochs=1, lr=0.5)
    assert right[0].drift is None and len(gather(comm, right)) == (0 if comm.rank else comm.size)


def check_momentum_and_a_schedule_give_the_weights_of_a_loop_written_out(comm: MPI.Intracomm) -> None:
    n = 53  # no p above 1 divides it
    x, y = labelled(n)
    mine = strided(n, comm.rank, comm.size)
    schedule = lr_schedules.linear_scaling(3, 4, lr_schedules.step_decay(0.1, every=5))
    for size in (3, 20, 500, None):  # 3 leaves ranks without a sample; the last two take all in one step
        model, twin = softmax_regression(6, 3), softmax_regression(6, 3)
        optimizer = SGD(model.params, momentum=0.9, weight_decay=1e-3)
        batches = Batches(comm, x[mine], y[mine], size)
        train(comm, model, batches, epochs=3, lr=schedule, optimizer=optimizer)

        sgd, step = SGD(twin.params, momentum=0.9, weight_decay=1e-3), 0
        for _ in range(3):
            for part in np.split(np.arange(n), range(size or n, n, size or n)):
                twin.loss_and_gradient(x[part], y[part])
                sgd.step(twin.grads, schedule(step))
                step += 1
        scale = np.abs(twin.params).max()
        np.testing.assert_allclose(model.params, twin.params, rtol=0, atol=1e-5 * scale)


class First(Callback):
    """Keep what a rank has before its first step."""

    def begin(self, model: Model, held: object) -> None:
        self.found = np.concatenate([model.params, model.buffers])


def check_every_rank_starts_from_the_weights_and_buffers_of_rank_0(comm: MPI.Intracomm) -> None:
    x, y = labelled(40)
    mine = strided(40, comm.rank, comm.size)
    model, first = normalised(), First()
    expected = np.concatenate([model.params, model.buffers])
    model.params += comm.rank
    model.buffers += comm.rank
    batches = Batches(comm, x[mine].reshape(-1, 1, 2, 3), y[mine])
    train(comm, model, batches, epochs=1, lr=0.1, callbacks=[first])
    assert model.buffers.size
    np.testing.assert_array_equal(first.found, expected)
