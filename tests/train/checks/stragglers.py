"""Bottleneck nodes do not change the result, and the timeline shows which rank was slow, and how."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, EmulatedComm
from labkit.data import contiguous, linear, local_batches, strided
from labkit.nn import Model, linear_regression, mlp
from labkit.train import Batches, Callback, Step, Straggler, Timeline, local_sgd, speeds, train
from labkit.train.bottleneck import links, parse
from tests.raising import error_on_every_rank

EPOCHS = 3


def trained(comm: MPI.Intracomm, *amounts: str) -> tuple[np.ndarray, list[Step]]:
    """Return the weights after a few steps with bottlenecks on the last rank, and on rank 0 the timeline."""
    data = linear(n=40)
    mine = contiguous(40, comm.rank, comm.size)
    found = [parse(f"{comm.size - 1}:{amount}") for amount in amounts]
    emulated = links(found, comm.size)
    model, timeline = linear_regression(), Timeline(comm)
    train(
        EmulatedComm(comm, emulated) if emulated else comm,
        model,
        Batches(comm, data.x_train[mine], data.y_train[mine]),
        epochs=EPOCHS,
        lr=0.1,
        callbacks=[Straggler(found, comm.rank), timeline],
    )
    return model.params, timeline.gather()


def check_bottlenecks_do_not_change_the_weights_and_the_timeline_shows_each(comm: MPI.Intracomm) -> None:
    last = comm.size - 1
    expected, _ = trained(comm)
    for amount in "slow-processor=50", "slow-link=100kbit+5ms", "jitter=20ms", "pause=50ms@2":
        weights, steps = trained(comm, amount)
        np.testing.assert_array_equal(weights, expected)
        if comm.rank:
            assert steps == []
            continue
        assert [(s.number, s.rank) for s in steps] == [(e, r) for e in range(1, 4) for r in range(comm.size)]
        assert steps[0].epoch == 1 and steps[-1].epoch == EPOCHS and min(s.begin for s in steps) == 0
        for step in steps:
            assert step.begin <= step.ready <= step.start <= step.end <= step.done, step
        for number in range(1, EPOCHS + 1):  # no rank leaves a barrier before all have arrived
            together = [step for step in steps if step.number == number]
            assert max(s.ready for s in together) <= min(s.start for s in together) + 1e-4, together
        of_last = [step for step in steps if step.rank == last]
        if amount.startswith("slow-link") and comm.size > 1:
            assert all(s.end - s.start > 0.01 for s in steps), steps
        if amount.startswith("pause"):
            assert of_last[1].begin - of_last[0].done > 0.05
            assert all(s.start - s.ready > 0.02 for s in steps if s.number == 2 and s.rank != last), steps


def check_a_slow_processor_takes_factor_times_as_long_to_compute(comm: MPI.Intracomm) -> None:
    model = mlp(64, 10)
    x = np.random.default_rng(0).random((2000, 64), np.float32)
    y = np.arange(2000) % 10
    mine = strided(2000, comm.rank, comm.size)
    found = [parse(f"{comm.size - 1}:slow-processor=8.5")]
    straggler = Straggler(found, comm.rank)
    used, alone = [], []
    for _ in range(7):
        began = thread_time()
        model.loss_and_gradient(x[mine], y[mine])
        alone.append(thread_time() - began)
        began = thread_time()
        loss = straggler.compute(lambda: model.loss_and_gradient(x[mine], y[mine]))
        used.append(thread_time() - began)
    assert loss == model.loss_and_gradient(x[mine], y[mine])
    if comm.rank == comm.size - 1:
        # Wide, because other programs share the caches; without the straggler it would be about 1.
        assert 2.5 < np.median(used) / np.median(alone) < 25, (used, alone)
    assert straggler.factor == (8.5 if comm.rank == comm.size - 1 else 1)

    slow = [parse(f"{comm.size - 1}:slow-processor=20")]
    rates = speeds(comm, model, x[:20], y[:20], Straggler(slow, comm.rank))
    assert comm.size == 1 or rates[-1] < 0.5 * max(rates), rates
    assert comm.allgather(rates) == [rates] * comm.size and len(rates) == comm.size


class CountedCalls(Callback):
    """Note the calls of a local SGD, with which a straggler loses time."""

    seen = ""

    def before_step(self) -> None:
        self.seen += "b"

    def after_backward(self, model: Model, weight: float) -> None:
        self.seen += "a"


def check_local_sgd_equals_train_only_if_it_averages_after_each_step(comm: MPI.Intracomm) -> None:
    n = 12 * comm.size  # shards of one size: then the mean of the parameters is that of the gradients
    data = linear(n=n)
    mine = strided(n, comm.rank, comm.size)
    x, y = data.x_train[mine], data.y_train[mine]
    steps = local_batches(n, 4 * comm.size, comm.rank, comm.size)
    batches = Batches(comm, x, y, slices=steps)
    apart = linear_regression(seed=comm.rank)
    in_step, local = linear_regression(), linear_regression(seed=comm.rank)
    rows = train(comm, in_step, batches, epochs=EPOCHS, lr=0.1)
    calls = CountedCalls()
    losses = local_sgd(comm, local, batches, epochs=EPOCHS, lr=0.1, every=1, callbacks=[calls])
    assert calls.seen == 3 * EPOCHS * "ba", calls.seen
    np.testing.assert_allclose(local.params, in_step.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, [row.global_loss for row in rows], rtol=1e-4)

    losses = local_sgd(comm, apart, batches, epochs=EPOCHS, lr=0.1, every=2)
    assert losses[-1] < losses[0]
    for params in comm.allgather(apart.params):
        np.testing.assert_array_equal(params, apart.params)
    assert comm.size == 1 or np.abs(apart.params - in_step.params).max() > 1e-5
    wrong = partial(local_sgd, comm, apart, batches, epochs=1, lr=0.1, every=comm.rank)
    assert "every" in error_on_every_rank(comm, wrong)
    adding = partial(local_sgd, comm, apart, batches, epochs=1, lr=0.1, every=1)
    unfit: list[dict[str, Any]] = [{"aggregate": "sum"}, {"compress": "float16"}]
    for options in unfit:
        wrong = partial(adding, algorithm=replace(ALGORITHMS["mpi"], **options))
        assert "averages parameters" in error_on_every_rank(comm, wrong)


def check_jitter_is_seeded_and_bounded(comm: MPI.Intracomm) -> None:
    jitter = [parse(f"{comm.size - 1}:jitter=4ms")]

    def delays() -> list[float]:
        straggler = Straggler(jitter, comm.rank, seed=3)
        return [straggler.next_delay() for _ in range(100)]

    assert delays() == delays()
    if comm.rank == comm.size - 1:
        assert min(delays()) > 0 and 0.003 < max(delays()) < 0.004 and len(set(delays())) == 100
    else:
        assert set(delays()) == {0.0}


def check_the_timeline_has_one_clock_although_the_ranks_clocks_differ(comm: MPI.Intracomm) -> None:
    """The ranks' clocks are 100 s apart, and the last one runs 1.5 times as fast."""
    pace = 1.5 if comm.rank == comm.size - 1 else 1.0

    def clock() -> float:
        return pace * perf_counter() + 100 * comm.rank

    for _ in range(30):  # on a busy machine even the fastest ping-pong can take long
        timeline = Timeline(comm, clock)
        for number in 1, 2:
            sleep(0.05)  # for the clocks to run apart
            ready = clock()
            comm.Barrier()
            start = clock()
            times = ready, ready, start, start, start
            timeline.after_step(Step(1, number, comm.rank, *times))
        steps = timeline.gather()
        assert len(steps) == (0 if comm.rank else 2 * comm.size)
        together = [[step for step in steps if step.number == number] for number in (1, 2)]
        late = [max(s.ready for s in one) - min(s.start for s in one) for one in together if one]
        if comm.bcast(max(late, default=0.0) < 0.01):  # no rank leaves a barrier before all have arrived
            return
    raise AssertionError(late)
