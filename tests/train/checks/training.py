"""The training loop: any number of ranks gets the result of one rank, and measures it correctly."""

from __future__ import annotations

from time import sleep
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import Averaging
from labkit.data import contiguous, linear, strided
from labkit.nn import SGD, Model, linear_regression, softmax_regression
from labkit.train import Batches, Callback, Contributions, gather, train
from tests.raising import error_on_every_rank
from tests.train.models import labelled

SETTINGS: dict[str, Any] = {"epochs": 4, "lr": 0.1}


def assert_same_weights(model: Model, twin: Model) -> None:
    scale = np.abs(twin.params).max()
    np.testing.assert_allclose(model.params, twin.params, rtol=0, atol=1e-5 * scale)


def check_a_sum_multiplies_the_learning_rate_by_the_number_of_ranks(comm: MPI.Intracomm) -> None:
    data = linear(n=20 * comm.size)  # shards of one size: the mean is the weighted one
    mine = contiguous(20 * comm.size, comm.rank, comm.size)
    batches = Batches(comm, data.x_train[mine], data.y_train[mine])
    summed, twin = linear_regression(), linear_regression()
    lr = 0.1 / comm.size
    callbacks = [Contributions()]
    by_sum = Averaging("ring", "sum")
    rows = train(comm, summed, batches, epochs=3, lr=lr, algorithm=by_sum, callbacks=callbacks)
    averaged = train(comm, twin, batches, epochs=3, lr=0.1, callbacks=callbacks)
    assert_same_weights(summed, twin)
    for row, one in zip(rows, averaged, strict=True):
        assert one.contribution.keys() == {"W", "b"}
        for name, part in one.contribution.items():
            np.testing.assert_allclose(row.contribution[name], part, rtol=1e-3)
            np.testing.assert_allclose(row.gradient_mean[name], one.gradient_mean[name], rtol=1e-3, atol=1e-6)


def check_losses_gradients_and_contributions_are_those_of_the_shards(comm: MPI.Intracomm) -> None:
    data = linear(n=53)
    shards = [contiguous(53, r, comm.size) for r in range(comm.size)]
    mine = shards[comm.rank]
    batches = Batches(comm, data.x_train[mine], data.y_train[mine])
    own_rows = train(comm, linear_regression(), batches, callbacks=[Contributions()], **SETTINGS)
    first, second = train(comm, linear_regression(), batches, epochs=2, lr=1e-9, callbacks=[Contributions()])
    assert first.gradient_mean == pytest.approx(second.gradient_mean, rel=1e-4)
    rows = gather(comm, own_rows)
    if comm.rank:
        assert rows == []
        return
    assert [(row.epoch, row.rank) for row in rows] == [(e, r) for e in range(1, 5) for r in range(comm.size)]
    model = linear_regression()
    losses, sums = [], []
    for shard in shards:
        losses.append(model.loss_and_gradient(data.x_train[shard], data.y_train[shard]))
        sums.append({name: len(shard) * g for name, g in model.named_gradients().items()})
    sizes = [len(shard) for shard in shards]
    for rank, row in enumerate(rows[: comm.size]):  # the first epoch, before any step
        np.testing.assert_allclose(row.local_loss, losses[rank], rtol=1e-6)
        np.testing.assert_allclose(row.global_loss, np.average(losses, weights=sizes), rtol=1e-5)
        for name, part in sums[rank].items():
            np.testing.assert_allclose(row.gradient_mean[name], part.mean() / sizes[rank], rtol=1e-4)
            whole = np.linalg.norm(np.sum([each[name] for each in sums], axis=0))
            np.testing.assert_allclose(row.contribution[name], np.linalg.norm(part) / whole, rtol=1e-4)


def error_of(comm: MPI.Intracomm, model: Model, x: np.ndarray, y: np.ndarray, **settings: Any) -> str:
    """Train with wrong arguments; return the message of the CollectiveError that every rank must raise."""
    global_batch = settings.pop("global_batch", None)
    return error_on_every_rank(
        comm, lambda: train(comm, model, Batches(comm, x, y, global_batch), **settings)
    )


def check_iterations_end_a_run_within_an_epoch_or_before_the_last(comm: MPI.Intracomm) -> None:
    x, y = (array[strided(30, comm.rank, comm.size)] for array in labelled(30))
    for iterations, epochs in (4, [1, 2]), (3, [1]), (99, [1, 2, 3, 4]):
        rows = train(
            comm, softmax_regression(6, 3), Batches(comm, x, y, 10), iterations=iterations, **SETTINGS
        )
        assert [row.epoch for row in rows] == epochs
        assert comm.allreduce(sum(row.samples for row in rows)) == min(10 * iterations, 30 * 4)


class SlowToBegin(Callback):
    """Take 0.05 s before the first step."""

    def begin(self, model: Model, held: object) -> None:
        sleep(0.05)


def check_what_comes_before_the_first_step_is_a_wait_of_epoch_1(comm: MPI.Intracomm) -> None:
    x, y = labelled(40)
    mine = strided(40, comm.rank, comm.size)
    batches, slow = Batches(comm, x[mine], y[mine]), SlowToBegin()
    first, _ = train(comm, softmax_regression(6, 3), batches, epochs=2, lr=0.1, callbacks=[slow])
    assert first.wait_s >= 0.05


def check_every_rank_raises_if_one_rank_has_wrong_arguments(comm: MPI.Intracomm) -> None:
    x, y = labelled(30)
    last = comm.rank == comm.size - 1
    mine = strided(30, comm.rank, comm.size)
    x, y = x[mine], y[mine]
    settings = {"epochs": 2, "lr": 0.1, "global_batch": 10}
    cases = [
        (x[:, :5] if last else x, y, settings, "layer 'softmax': x has shape"),
        (x.astype(np.float64) if last else x, y, settings, "float64"),
        (x, y + 7 if last else y, settings, "labels span"),
        (x, y, {**settings, "epochs": 0 if last else 2}, "expected epochs ≥ 1"),
        (x, y, {**settings, "iterations": 0}, "expected iterations ≥ 1 or None, got 0"),
        (x, y, {**settings, "lr": float("nan")}, "a learning rate lr > 0, got nan"),
        (x, y, {**settings, "lr": 0.0}, "lr > 0, got 0.0"),
        (x, y, {**settings, "lr": lambda step: -1.0}, "lr > 0, got -1.0"),
        (x, y, {**settings, "optimizer": SGD(np.zeros(21, np.float32))}, "an optimizer of the parameters"),
        (x, y, {**settings, "global_batch": 0}, "expected a global batch of at least 1 sample, got 0"),
    ]
    if comm.size > 1:
        cases += [
            (x[:-2] if last else x, y[:-2] if last else y, settings, "expected a shard of"),
            (x[:0] if last else x, y[:0] if last else y, settings, "expected a shard of"),
            (x, y, {**settings, "lr": 0.2 if last else 0.1}, "expected lr = 0.1 as on rank 0, got 0.2"),
            (x, y, {**settings, "global_batch": 9 if last else 10}, "expected a global batch of 10 as on"),
        ]
    for bad_x, bad_y, bad, words in cases:
        model = softmax_regression(6, 3)
        before = model.params.copy()
        message = error_of(comm, model, bad_x, bad_y, **bad)
        assert words in message, message
        np.testing.assert_array_equal(model.params, before)
        assert comm.allreduce(1) == comm.size
