"""Averaging bucket by bucket during the backward pass trains the same model as averaging after it."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import Averaging
from labkit.data import strided
from labkit.nn import SGD, Model, mlp
from labkit.train import Batches, Buckets, Contributions, Step, Straggler, train
from labkit.train.overlap import Overlapped
from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError
from tests.raising import error_on_every_rank
from tests.train.models import labelled

SMALL = Buckets(bytes=1000, first_bytes=100)


def trained(comm: MPI.Intracomm, **settings: Any) -> Model:
    """Return a model after six steps on this rank's shard of 47 samples; 4 in a batch leave ranks idle."""
    (x, y), mine = labelled(47), strided(47, comm.rank, comm.size)
    model = mlp(6, 3)
    batches = Batches(comm, x[mine], y[mine], settings.pop("batch", 8))
    train(comm, model, batches, epochs=1, lr=0.1, optimizer=SGD(model.params, momentum=0.9), **settings)
    return model


def of_gradient(grads: np.ndarray) -> Any:
    """Return what is enough of a model to average its gradient."""
    return SimpleNamespace(grads=grads, params=np.zeros_like(grads))


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "labkit overlap"]


def check_buckets_are_averaged_in_order_while_the_rank_computes(comm: MPI.Intracomm) -> None:
    """The helper thread finishes the first buckets although this rank makes no call of MPI."""
    grads = np.full(1000, comm.rank, np.float32)
    overlapped = Overlapped(comm, of_gradient(grads), Averaging("ring", "sum"), Buckets(800, 400))
    step = Step(1, 1, comm.rank, global_batch=1)
    overlapped.begin_step(step)
    overlapped.finished(510)  # the third bucket, from 500 to 700, is not complete yet
    assert overlapped.plan[:3] == [(900, 1000), (700, 900), (500, 700)]
    assert overlapped._complete == 2
    while comm.size > 1 and len(overlapped._transfers) < 2:
        threading.Event().wait(1e-4)
    assert comm.size == 1 or (grads[700:] == sum(range(comm.size))).all()
    assert (grads[:500] == comm.rank).all()
    overlapped.finished(0)
    overlapped.finish()
    assert (grads == sum(range(comm.size))).all()
    transfers = step.transfers
    assert [each.bucket for each in transfers] == list(range(len(overlapped.plan)))
    for before, each in pairwise(transfers):
        assert before.end <= each.begin <= each.end and each.complete <= each.begin
    assert step.end >= transfers[-1].end and step.ready >= transfers[0].complete
    overlapped.close(failed=False)


def check_without_threads_buckets_are_averaged_after_the_backward_pass(comm: MPI.Intracomm) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
        model = trained(comm, algorithm=Averaging("ring"), buckets=SMALL)
    np.testing.assert_allclose(model.params, trained(comm).params, rtol=0, atol=2e-6)


def check_compressed_buckets_train_the_same_model(comm: MPI.Intracomm) -> None:
    """Also over micro-batches and with ranks without samples; every epoch compares the ranks' weights."""
    plain, start = trained(comm, batch=3).params, mlp(6, 3).params
    for settings in {}, {"buckets": SMALL}, {"buckets": SMALL, "accumulate": 2}:
        for name, compress, tolerance in (
            ("mpi", "top-k=1", 2e-6),
            ("ring", "float16", 2e-3),
            ("mpi", "float16", 2e-3),
        ):
            averaging = Averaging(name, "weighted", compress)
            model = trained(comm, batch=3, algorithm=averaging, **settings)
            np.testing.assert_allclose(model.params, plain, rtol=0, atol=tolerance)
        few = trained(comm, batch=3, algorithm=Averaging("ring", "weighted", "top-k"), **settings)
        assert 0.1 < np.abs(few.params - start).max() / np.abs(plain - start).max() < 2


def check_each_bucket_has_its_own_part_of_the_residual(comm: MPI.Intracomm) -> None:
    averaging, step = Averaging("ring", "mean", "top-k=0.3"), Step(1, 1, comm.rank, 1, global_batch=1)
    grads, residual = np.zeros(120, np.float32), np.zeros(120, np.float32)
    overlapped = Overlapped(comm, of_gradient(grads), averaging, Buckets(200, 100))
    for seed in range(3):
        own = np.random.default_rng([seed, comm.rank]).normal(size=120).astype(np.float32)
        grads[...] = own
        overlapped.begin_step(step)
        overlapped.finished(0)
        overlapped.finish()
        for bucket in (slice(*bounds) for bounds in overlapped.plan):
            replace(averaging, residual=residual[bucket])(comm, own[bucket], 1.0)
        np.testing.assert_array_equal(grads, own)
        np.testing.assert_array_equal(overlapped.residual, residual)
    overlapped.close(failed=False)


class Raises(Straggler):
    """Raise an error on one rank, before the second step."""

    def __init__(self) -> None:
        super().__init__([], 0)
        self.steps = 0

    def before_step(self) -> None:
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("no second step")


def check_a_rank_that_raises_ends_its_helper_and_is_reported_with_the_bucket(comm: MPI.Intracomm) -> None:
    world, last = watch(), comm.rank == comm.size - 1
    deadline, world.deadline_s = world.deadline_s, 0.5
    for name in "ring", "shared-memory":
        if comm.size == 1:
            continue
        own = world.Dup()
        expected: Any = pytest.raises(RuntimeError) if last else pytest.raises(HangError, match="bucket 1 of")
        with expected as error:
            trained(own, algorithm=Averaging(name), buckets=SMALL, callbacks=[Raises()] if last else [])
        assert last or f"rank {comm.size - 1} " in str(error.value)
        assert helpers() == []
        MPI.COMM_WORLD.Barrier()
        resume()
        MPI.COMM_WORLD.Barrier()
        trained(own, algorithm=Averaging(name), buckets=SMALL)
    world.deadline_s = deadline


def check_what_cannot_overlap_is_refused(comm: MPI.Intracomm) -> None:
    for settings, said in (
        ({"callbacks": [Contributions()]}, "Contributions, which reads each rank's own gradient"),
        ({"average_after_step": True}, "average_after_step"),
        ({"algorithm": lambda comm, gradient, weight: None}, "labkit.comm.Averaging"),
        ({"shard_state": "everything"}, "expected shard_state to be one of none, optimizer"),
        (
            {"shard_state": "optimizer", "algorithm": Averaging("tree")},
            "expected the algorithm mpi or ring with shard_state optimizer",
        ),
        (
            {"shard_state": "optimizer", "algorithm": Averaging("ring", "mean", "top-k")},
            "the compression none, got ring and top-k",
        ),
    ):
        assert said in error_on_every_rank(comm, lambda: trained(comm, buckets=SMALL, **settings))  # noqa: B023
    if comm.size > 1:
        differ = Buckets(1000 + comm.rank)
        assert "expected buckets = " in error_on_every_rank(comm, lambda: trained(comm, buckets=differ))
