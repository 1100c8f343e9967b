"""Sharded training (ZeRO) gets the weights of plain training, and checkpoints fit both."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from mmap import PAGESIZE
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averaging, CountingComm, EmulatedComm, Link
from labkit.data import strided
from labkit.nn import SGD, AdamW, Model, flat, lenet5
from labkit.nn.layers import Dense, ReLU
from labkit.nn.model import Classifier
from labkit.train import Batches, Buckets, sharding, train
from labkit.train.memory import Memory, resident
from labkit.train.settings import SHARD_STATES
from tests.train.checks.resuming import Run, assert_same, folder, on_other_ranks
from tests.train.models import convolutional, labelled, normalised

SHARDED = [each for each in SHARD_STATES if each != "none"]
OPTIMIZERS = partial(SGD, momentum=0.9, weight_decay=1e-3), AdamW, None
SMALL = Buckets(bytes=1000, first_bytes=100)


def deep(width: int = 24) -> Model:
    """Return an MLP of equal layers: 3 to 5 buckets in each, and buckets that cut a layer in two."""
    pairs = [((f"dense{i}", Dense(width, gain=2)), (f"relu{i}", ReLU())) for i in range(5)]
    return Classifier("deep", [*chain(*pairs), ("last", Dense(3))], (6,), 0, np.float32)


def images(n: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, 3, n)


def trained(comm: MPI.Intracomm, make: Any = deep, optimizer: Any = AdamW, **settings: Any) -> Model:
    """Return a model after a few steps on its own samples; one rank of several has none in a step."""
    model = make()
    x, y = labelled(23) if make is deep else images(23, model.input_shape)
    mine = strided(23, comm.rank, comm.size)
    batches = Batches(comm, x[mine], y[mine], settings.pop("batch", max(1, comm.size - 1)))
    made = optimizer(model.params) if optimizer else None
    train(comm, model, batches, **{"epochs": 1, "lr": 0.01, "optimizer": made, **settings})
    return model


def check_sharded_weights_are_plain_ones_bit_for_bit(comm: MPI.Intracomm) -> None:
    """The ring adds in the same order if the buckets are the same; the MPI library may not.

    The library's collectives run on emulated links, which delay what shards send, too.
    """
    emulated = EmulatedComm(comm, Link(1e9))
    kinds: list[dict[str, Any]] = [
        *({"optimizer": optimizer} for optimizer in OPTIMIZERS),
        {"batch": 23, "accumulate": 3, "epochs": 1},
        {"make": partial(normalised, (2, 4, 3), 3), "optimizer": OPTIMIZERS[0]},
        {"make": lenet5, "epochs": 1, "batch": 12, "buckets": Buckets(60_000, 10_000)},
        {"algorithm": Averaging("ring", "sum"), "lr": 0.001, "buckets": Buckets(1e9, 1e9)},
    ]
    for kind in kinds:
        settings = {"algorithm": ALGORITHMS["ring"], "buckets": SMALL, **kind}
        expected = trained(comm, **settings)
        # Links are emulated for the optimizer with most state, and for a network with buffers.
        is_emulated = kind.get("optimizer") is AdamW or {"make", "optimizer"} <= kind.keys()
        for state in SHARDED:
            found = trained(comm, **settings, shard_state=state)
            np.testing.assert_array_equal(found.params, expected.params, err_msg=f"{state} {kind}")
            np.testing.assert_array_equal(found.buffers, expected.buffers, err_msg=f"{state} {kind}")
            if is_emulated:
                near = trained(emulated, **{**settings, "algorithm": ALGORITHMS["mpi"]}, shard_state=state)
                np.testing.assert_allclose(near.params, expected.params, rtol=0, atol=2e-5)
    emulated.Free()


@contextmanager
def forgetting() -> Iterator[None]:
    """Fill with NaN what is released, to its last value and not only whole pages: nothing may read it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sharding, "release", lambda array: array.ndim and array.fill(np.nan))
        yield


def check_what_was_released_is_not_read(comm: MPI.Intracomm) -> None:
    for state in SHARDED[1:]:
        for kind in {"batch": 23, "accumulate": 3}, {}:
            settings: dict[str, Any] = {"algorithm": ALGORITHMS["ring"], "buckets": SMALL, **kind}
            with forgetting():
                found = trained(comm, **settings, shard_state=state)
            np.testing.assert_array_equal(found.params, trained(comm, **settings).params)


@contextmanager
def small_pages() -> Iterator[None]:
    """Let no array have huge pages, for which NumPy asks: they come and go as a whole."""
    set_huge_pages_off = partial(ctypes.CDLL(None).prctl, 41)  # PR_SET_THP_DISABLE
    set_huge_pages_off(1, 0, 0, 0)
    try:
        yield
    finally:
        set_huge_pages_off(0, 0, 0, 0)


@small_pages()
def check_memory_is_given_back(comm: MPI.Intracomm) -> None:
    for state in SHARD_STATES:
        model = deep(width=260)  # 1.1 MB, a quarter of it in each of four layers
        memory, batches = Memory(), Batches(comm, *labelled(4), 4 * comm.size)
        buckets, adamw = Buckets(100_000, 100_000), AdamW(model.params)
        train(
            comm, model, batches, epochs=3, lr=0.1, algorithm=ALGORITHMS["ring"], optimizer=adamw,
            buckets=buckets, shard_state=state, callbacks=[memory],
        )  # fmt: skip
        edges = (
            4 * PAGESIZE * len(buckets.plan(model.params.size))
        )  # pages that several arrays have a part in
        n = model.params.nbytes
        most = {"parameters": n, "gradient": n, "optimizer": 2 * n}  # AdamW's two moments
        if state != "none":
            most["optimizer"] = 2 * n / comm.size
            most["gradient"] = (n if state == "optimizer" else 0.6 * n) + n / comm.size
        if state == "parameters":
            most["parameters"] = 0.6 * n + n / comm.size  # two layers
        for name, found in memory.most.items():
            assert found <= most[name] + edges, (state, name)
        assert state == "parameters" or memory.most["parameters"] == n
        assert memory.most["optimizer"] >= most["optimizer"] - edges
        assert resident(model.grads) < n / 2 or state in ("none", "optimizer")
        assert np.count_nonzero(model.params) > 0.9 * model.params.size


def check_the_traffic_is_that_of_an_all_reduce_or_half_as_much_again(comm: MPI.Intracomm) -> None:
    """Without two ranks nothing is sent. The last layer's parameters, still there, are not gathered again."""
    for state in SHARD_STATES:
        counting = CountingComm(comm)
        model = trained(
            counting, batch=23, epochs=4, algorithm=ALGORITHMS["ring"], buckets=SMALL, shard_state=state
        )
        sent = sum(row.sent.sum() for row in counting.traffic() if row.name.startswith("ring"))
        n, last = model.params.size, flat.size(model.layers[-1].parameters())
        expected = 4 * 2 * n
        if state == "parameters":
            kept = sum(stop - start for start, stop in SMALL.plan(n) if stop > n - last)
            expected = 4 * (3 * n - kept) + n  # at the end, everything is gathered
        assert sent == expected * (comm.size - 1) * model.params.itemsize, state


def check_checkpoints_of_sharded_runs_fit_any_run(comm: MPI.Intracomm) -> None:
    """On the same ranks the bits are the same, also if the state is then sharded in another way."""
    states = [*SHARD_STATES, "none"]
    with folder(comm) as path:
        for number, (first, second) in enumerate(pairwise(states)):
            kind = {"adamw": number % 2 == 0, "algorithm": ALGORITHMS["ring"], "buckets": SMALL}
            unbroken = Run(comm, path / "unbroken.npz", **kind)()
            for state in first, second:
                Run(comm, path / f"{number}.npz", **kind, shard_state=first).stopped(7, every_steps=3)
                run = Run(comm, path / f"{number}.npz", **kind, shard_state=state)
                assert_same(run(resume=True), unbroken)


def check_another_number_of_ranks_resumes_a_sharded_run(comm: MPI.Intracomm) -> None:
    for state in SHARDED:
        kind = {"adamw": True, "shard_state": state, "buckets": SMALL}
        with folder(comm) as path:
            expected, _ = Run(comm, path / "unbroken.npz", make=convolutional, **kind)()

        def end(run: Run, expected: Model = expected) -> None:
            resumed, _ = run(resume=True)
            if comm.rank == 0:
                np.testing.assert_allclose(resumed.params, expected.params, rtol=0, atol=1e-4)

        on_other_ranks(comm, lambda run: run.stopped(8, every_steps=7), end, **kind)
