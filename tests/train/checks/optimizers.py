"""Optimizers, learning-rate schedules and models with buffers in the training loop."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

from labkit.data import strided
from labkit.nn import SGD, Model, load_model, lr_schedules, softmax_regression
from labkit.nn.image_layers import BatchNorm, Conv2D
from labkit.nn.layers import Dense, Flatten
from labkit.nn.model import Classifier
from labkit.train import Batches, Callback, save, train


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n samples of 6 features, and the label that the largest of the first three has."""
    x = np.random.default_rng(5).uniform(0, 1, (n, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


def normalised(seed: int = 0) -> Model:
    """Return a classifier with batch normalisation, so with buffers."""
    layers = [("conv1", Conv2D(4, 1)), ("norm1", BatchNorm()), ("flat", Flatten()), ("dense1", Dense(3))]
    return Classifier("normalised", layers, (1, 2, 3), seed, np.float32)


def check_momentum_and_a_schedule_give_the_weights_of_a_loop_written_out(comm: MPI.Intracomm) -> None:
    x, y = samples(53)
    mine = strided(53, comm.rank, comm.size)
    schedule = lr_schedules.warm_up(4, lr_schedules.step_decay(0.3, every=5))
    model, twin = softmax_regression(6, 3), softmax_regression(6, 3)
    optimizer = SGD(model.params, momentum=0.9, weight_decay=1e-3)
    batches = Batches(comm, x[mine], y[mine], 20)
    train(comm, model, batches, epochs=3, lr=schedule, optimizer=optimizer)

    sgd, step = SGD(twin.params, momentum=0.9, weight_decay=1e-3), 0
    for _ in range(3):
        for start in range(0, 53, 20):
            twin.loss_and_gradient(x[start : start + 20], y[start : start + 20])
            sgd.step(twin.grads, schedule(step))
            step += 1
    scale = np.abs(twin.params).max()
    np.testing.assert_allclose(model.params, twin.params, rtol=0, atol=1e-5 * scale)


class FirstBuffers(Callback):
    """Keep the buffers that a rank has before its first step."""

    def __init__(self, model: Model) -> None:
        self.model, self.found = model, np.zeros(0)

    def before_step(self) -> None:
        if not self.found.size:
            self.found = self.model.buffers.copy()


def check_every_rank_starts_from_the_buffers_of_rank_0(comm: MPI.Intracomm) -> None:
    x, y = samples(40)
    mine = strided(40, comm.rank, comm.size)
    model = normalised()
    expected = model.buffers.copy()
    model.buffers += comm.rank
    first = FirstBuffers(model)
    batches = Batches(comm, x[mine].reshape(-1, 1, 2, 3), y[mine])
    train(comm, model, batches, epochs=1, lr=0.1, callbacks=[first])
    assert expected.size
    np.testing.assert_array_equal(first.found, expected)


def check_a_model_with_many_layers_and_buffers_is_saved(comm: MPI.Intracomm) -> None:
    if comm.rank:
        return
    x, y = samples(40)
    model, loaded = normalised(), normalised(seed=1)
    rows = train(
        MPI.COMM_SELF, model, Batches(MPI.COMM_SELF, x.reshape(-1, 1, 2, 3), y, 10), epochs=2, lr=0.1
    )
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), model, rows, {})
        written = {path.name for path in Path(folder).iterdir()}
        assert written == {"model.npz", "sync_times.csv", "run.json"}, written
        load_model(loaded, Path(folder, "model.npz"))
    np.testing.assert_array_equal(loaded.params, model.params)
    for name, buffer in model.named_buffers().items():
        np.testing.assert_array_equal(loaded.named_buffers()[name], buffer)
