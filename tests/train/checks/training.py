"""The training loop: p ranks learn what one rank learns, and measure what they say."""

from __future__ import annotations

from time import sleep

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, CollectiveError, algorithm
from labkit.data import contiguous, linear, strided
from labkit.nn import Model, linear_regression, softmax_regression
from labkit.train import gather, train

SETTINGS = {"epochs": 4, "lr": 0.1}


def labelled(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n samples of 6 features, and the label that the largest of the first three has."""
    x = np.random.default_rng(5).uniform(0, 1, (n, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


def assert_same_weights(model: Model, twin: Model) -> None:
    scale = np.abs(twin.params).max()
    np.testing.assert_allclose(model.params, twin.params, rtol=0, atol=1e-5 * scale)


def check_ranks_learn_what_one_rank_learns_from_all_samples(comm: MPI.Intracomm) -> None:
    data = linear(n=103)  # no p above 1 divides it
    mine = contiguous(103, comm.rank, comm.size)
    model, twin = linear_regression(), linear_regression()
    start = model.params.copy()
    rows = train(comm, model, data.x_train[mine], data.y_train[mine], **SETTINGS)
    alone = train(MPI.COMM_SELF, twin, data.x_train, data.y_train, **SETTINGS)
    assert_same_weights(model, twin)
    assert np.abs(model.params - start).max() > 0.1
    for row, one in zip(rows, alone, strict=True):
        np.testing.assert_allclose(row.global_loss, one.local_loss, rtol=1e-5)


def check_ranks_learn_what_one_rank_learns_from_minibatches(comm: MPI.Intracomm) -> None:
    x, y = labelled(103)
    mine = strided(103, comm.rank, comm.size)
    for batch in (3, 10, 500):  # 3 leaves ranks without a sample, 500 is more than there are
        model, twin = softmax_regression(6, 3), softmax_regression(6, 3)
        rows = train(comm, model, x[mine], y[mine], batch=batch, **SETTINGS)
        alone = train(MPI.COMM_SELF, twin, x, y, batch=batch, **SETTINGS)
        assert_same_weights(model, twin)
        np.testing.assert_allclose([r.global_loss for r in rows], [r.local_loss for r in alone], rtol=1e-4)


def check_ranks_learn_what_one_rank_learns_by_every_way(comm: MPI.Intracomm) -> None:
    x, y = labelled(103)
    mine = strided(103, comm.rank, comm.size)
    twin = softmax_regression(6, 3)
    alone = train(MPI.COMM_SELF, twin, x, y, batch=40, **SETTINGS)
    for each in ALGORITHMS.values():
        model = softmax_regression(6, 3)
        before = model.grads
        rows = train(comm, model, x[mine], y[mine], batch=40, algorithm=each, **SETTINGS)
        assert_same_weights(model, twin)
        np.testing.assert_allclose([r.global_loss for r in rows], [r.local_loss for r in alone], rtol=1e-4)
        assert model.grads is before and np.abs(before).max() > 0


def check_a_sum_multiplies_the_learning_rate_by_the_number_of_ranks(comm: MPI.Intracomm) -> None:
    data = linear(n=20 * comm.size)  # shards of one size: the mean is the weighted one
    mine = contiguous(20 * comm.size, comm.rank, comm.size)
    summed, twin = linear_regression(), linear_regression()
    rows = train(
        comm,
        summed,
        data.x_train[mine],
        data.y_train[mine],
        epochs=3,
        lr=0.1 / comm.size,
        algorithm=algorithm("ring", "sum"),
    )
    alone = train(comm, twin, data.x_train[mine], data.y_train[mine], epochs=3, lr=0.1)
    assert_same_weights(summed, twin)
    for row, one in zip(rows, alone, strict=True):
        for name, part in one.contribution.items():
            np.testing.assert_allclose(row.contribution[name], part, rtol=1e-3)
            np.testing.assert_allclose(row.gradient_mean[name], one.gradient_mean[name], rtol=1e-3, atol=1e-6)


def check_every_rank_starts_from_the_weights_of_rank_0(comm: MPI.Intracomm) -> None:
    x, y = labelled(40)
    mine = contiguous(40, comm.rank, comm.size)
    model, twin = softmax_regression(6, 3, seed=comm.rank), softmax_regression(6, 3, seed=0)
    train(comm, model, x[mine], y[mine], **SETTINGS)
    train(MPI.COMM_SELF, twin, x, y, **SETTINGS)
    assert_same_weights(model, twin)


def check_losses_gradients_and_contributions_are_those_of_the_shards(comm: MPI.Intracomm) -> None:
    data = linear(n=53)
    shards = [contiguous(53, r, comm.size) for r in range(comm.size)]
    mine = shards[comm.rank]
    rows = gather(comm, train(comm, linear_regression(), data.x_train[mine], data.y_train[mine], **SETTINGS))
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
    for rank, row in enumerate(rows[: comm.size]):  # the first epoch: nobody has made a step yet
        np.testing.assert_allclose(row.local_loss, losses[rank], rtol=1e-6)
        np.testing.assert_allclose(row.global_loss, np.average(losses, weights=sizes), rtol=1e-5)
        for name, part in sums[rank].items():
            np.testing.assert_allclose(row.gradient_mean[name], part.mean() / sizes[rank], rtol=1e-4)
            whole = np.linalg.norm(np.sum([each[name] for each in sums], axis=0))
            np.testing.assert_allclose(row.contribution[name], np.linalg.norm(part) / whole, rtol=1e-4)


def check_report_a_a_local_loss_rises_while_the_global_loss_falls(comm: MPI.Intracomm) -> None:
    if comm.size != 4:
        return
    data = linear(n=400, seed=23, outlying=contiguous(400, 2, 4))
    mine = contiguous(400, comm.rank, 4)
    rows = gather(
        comm,
        train(comm, linear_regression(), data.x_train[mine], data.y_train[mine], epochs=10, lr=0.01),
    )
    if comm.rank == 0:
        assert np.all(np.diff([row.global_loss for row in rows if row.rank == 0]) < 0)
        assert np.all(np.diff([row.local_loss for row in rows if row.rank == 0]) > 0)
        assert all(part > 1 for part in rows[2].contribution.values())


def check_waiting_is_measured_apart_from_transferring(comm: MPI.Intracomm) -> None:
    late = comm.size - 1
    model = linear_regression()
    computing = model.loss_and_gradient

    def slow(x: np.ndarray, y: np.ndarray) -> float:
        sleep(0.2)  # a slow rank is the subject here
        return computing(x, y)

    if comm.rank == late:
        model.loss_and_gradient = slow  # type: ignore[method-assign]
    data = linear(n=20)
    mine = contiguous(20, comm.rank, comm.size)
    rows = train(comm, model, data.x_train[mine], data.y_train[mine], epochs=3, lr=0.1)
    for row in rows[1:]:
        if comm.rank != late:
            assert row.wait_s > 0.1, row
            assert row.transfer_s < row.wait_s, row


def check_train_refuses_on_every_rank_what_one_rank_got_wrong(comm: MPI.Intracomm) -> None:
    x, y = labelled(30)
    last = comm.rank == comm.size - 1
    mine = strided(30, comm.rank, comm.size)
    x, y = x[mine], y[mine]
    good = {"epochs": 2, "lr": 0.1, "batch": 10}
    cases = [
        (x[:, :5] if last else x, y, good, "layer 'softmax': x has shape"),
        (x.astype(np.float64) if last else x, y, good, "float64"),
        (x, y + 7 if last else y, good, "labels span"),
        (x[:0] if last else x, y[:0] if last else y, good, "batch ≥ 1"),
        (x, y, {**good, "epochs": 0 if last else 2}, "epochs"),
        (x, y, {**good, "lr": float("nan")}, "lr > 0"),
        (x, y, {**good, "batch": 0}, "batch ≥ 1"),
    ]
    if comm.size > 1:
        cases.append((x[:-2] if last else x, y[:-2] if last else y, good, "expected a shard of"))
    for bad_x, bad_y, settings, words in cases:
        model = softmax_regression(6, 3)
        before = model.params.copy()
        try:
            train(comm, model, bad_x, bad_y, **settings)
        except CollectiveError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no error where one must say {words!r}")
        np.testing.assert_array_equal(model.params, before)
        assert comm.allreduce(1) == comm.size


def check_a_training_that_diverges_ends_on_every_rank(comm: MPI.Intracomm) -> None:
    data = linear(n=50)
    mine = contiguous(50, comm.rank, comm.size)
    try:
        train(comm, linear_regression(), data.x_train[mine], data.y_train[mine], epochs=100, lr=1e6)
    except CollectiveError as error:
        assert "in epoch" in str(error) and "learning rate" in str(error), error
        assert f"on rank {comm.size - 1}" in str(error), error
    else:
        raise AssertionError("no error")
    assert comm.allreduce(1) == comm.size
