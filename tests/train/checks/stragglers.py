"""Bottleneck nodes learn what the others learn, and the timeline shows who was slow, and how."""

from __future__ import annotations

from time import perf_counter, sleep, thread_time

import numpy as np
from mpi4py import MPI

from labkit.comm import CollectiveError, EmulatedComm
from labkit.data import contiguous, dealt, linear, strided
from labkit.nn import linear_regression, mlp
from labkit.train import Step, Straggler, Timeline, local_sgd, speeds, train
from labkit.train.bottleneck import links, parse

EPOCHS = 3


def trained(comm: MPI.Intracomm, *troubles: str) -> tuple[np.ndarray, list[Step]]:
    """Return the weights after a few steps with bottlenecks on the last rank, and the steps (on rank 0)."""
    data = linear(n=40)
    mine = contiguous(40, comm.rank, comm.size)
    found = [parse(f"{comm.size - 1}:{trouble}") for trouble in troubles]
    emulated = links(found, comm.size)
    model, timeline = linear_regression(), Timeline(comm)
    train(
        EmulatedComm(comm, emulated) if emulated else comm,
        model,
        data.x_train[mine],
        data.y_train[mine],
        epochs=EPOCHS,
        lr=0.1,
        straggler=Straggler(found, comm.rank, comm.size),
        timeline=timeline,
    )
    return model.params, timeline.gather()


def check_no_bottleneck_changes_what_is_learnt_and_the_timeline_shows_each(comm: MPI.Intracomm) -> None:
    last = comm.size - 1
    expected, _ = trained(comm)
    for trouble in "slow-processor=50", "slow-link=100kbit+5ms", "jitter=20ms", "pause=50ms@2":
        weights, steps = trained(comm, trouble)
        np.testing.assert_array_equal(weights, expected)
        if comm.rank:
            assert steps == []
            continue
        assert [(s.step, s.rank) for s in steps] == [(e, r) for e in range(1, 4) for r in range(comm.size)]
        assert steps[0].epoch == 1 and steps[-1].epoch == EPOCHS and min(s.begin for s in steps) == 0
        for step in steps:
            assert list(step[3:]) == sorted(step[3:]), step
        for number in range(1, EPOCHS + 1):  # one clock: no barrier is left before the last rank has come
            together = [step for step in steps if step.step == number]
            assert max(s.ready for s in together) <= min(s.start for s in together) + 1e-4, together
        of_last = [step for step in steps if step.rank == last]
        if trouble.startswith("slow-link") and comm.size > 1:
            assert all(s.end - s.start > 0.01 for s in steps), steps
        if trouble.startswith("pause"):
            assert of_last[1].begin - of_last[0].done > 0.05
            assert all(s.start - s.ready > 0.02 for s in steps if s.step == 2 and s.rank != last), steps


def check_a_slow_processor_computes_so_many_times_longer(comm: MPI.Intracomm) -> None:
    model = mlp(64, 10)
    x = np.random.default_rng(0).random((400, 64), np.float32)
    y = np.arange(400) % 10
    mine = strided(400, comm.rank, comm.size)
    found = [parse(f"{comm.size - 1}:slow-processor=8.5")]
    straggler = Straggler(found, comm.rank, comm.size)
    used, alone = [], []
    for _ in range(7):
        began = thread_time()
        model.loss_and_gradient(x[mine], y[mine])
        alone.append(thread_time() - began)
        began = thread_time()
        gradient_of = straggler.compute(model.loss_and_gradient, x[mine], y[mine])
        used.append(thread_time() - began)
    assert gradient_of == model.loss_and_gradient(x[mine], y[mine])
    if comm.rank == comm.size - 1:
        assert 4 < np.median(used) / np.median(alone) < 17, (used, alone)
    assert straggler.factor == (8.5 if comm.rank == comm.size - 1 else 1)

    slow = [parse(f"{comm.size - 1}:slow-processor=20")]
    rates = speeds(comm, model, x[:20], y[:20], Straggler(slow, comm.rank, comm.size))
    assert comm.size == 1 or rates[-1] < 0.5 * max(rates), rates


def check_local_sgd_is_training_in_step_if_it_averages_each_step_and_else_is_not(comm: MPI.Intracomm) -> None:
    n = 12 * comm.size  # shards of one size: then the mean of the parameters is that of the gradients
    data = linear(n=n)
    mine = strided(n, comm.rank, comm.size)
    x, y = data.x_train[mine], data.y_train[mine]
    steps = dealt(n, 4 * comm.size, comm.rank, comm.size)
    apart = linear_regression(seed=comm.rank)
    in_step, meeting = linear_regression(), linear_regression(seed=comm.rank)
    rows = train(comm, in_step, x, y, epochs=EPOCHS, lr=0.1, batch=steps)
    losses = local_sgd(comm, meeting, x, y, epochs=EPOCHS, lr=0.1, batch=steps, every=1)
    np.testing.assert_allclose(meeting.params, in_step.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, [row.global_loss for row in rows], rtol=1e-4)

    losses = local_sgd(comm, apart, x, y, epochs=EPOCHS, lr=0.1, batch=steps, every=2)
    assert losses[-1] < losses[0]
    for params in comm.allgather(apart.params):
        np.testing.assert_array_equal(params, apart.params)
    assert comm.size == 1 or np.abs(apart.params - in_step.params).max() > 1e-5
    try:
        local_sgd(comm, apart, x, y, epochs=1, lr=0.1, batch=steps, every=comm.rank)
    except CollectiveError as error:
        assert "every" in str(error), error
    else:
        raise AssertionError("no error")


def check_jitter_is_seeded_and_bounded(comm: MPI.Intracomm) -> None:
    trouble = [parse(f"{comm.size - 1}:jitter=4ms")]

    def lost() -> list[float]:
        straggler = Straggler(trouble, comm.rank, comm.size, seed=3)
        return [straggler.lost() for _ in range(100)]

    assert lost() == lost()
    if comm.rank == comm.size - 1:
        assert min(lost()) > 0 and 0.003 < max(lost()) < 0.004 and len(set(lost())) == 100
    else:
        assert set(lost()) == {0.0}


def check_the_timeline_is_on_one_clock_also_where_the_ranks_are_not(comm: MPI.Intracomm) -> None:
    """Clocks that are 100 s apart, and the last of which runs half as fast again."""
    pace = 1.5 if comm.rank == comm.size - 1 else 1.0

    def clock() -> float:
        return pace * perf_counter() + 100 * comm.rank

    for _ in range(30):  # on a busy machine even the quickest ping-pong can take long
        timeline = Timeline(comm, most=2, clock=clock)
        for _ in range(3):
            sleep(0.05)  # for the clocks to run apart
            ready = clock()
            comm.Barrier()
            start = clock()
            timeline.add(1, ready, ready, start, start, start)
        steps = timeline.gather()
        assert timeline.seen == 3 and len(steps) == (0 if comm.rank else 2 * comm.size)
        together = [[step for step in steps if step.step == number] for number in (1, 2)]
        late = [max(s.ready for s in one) - min(s.start for s in one) for one in together if one]
        if comm.bcast(max(late, default=0.0) < 0.01):  # nobody leaves a barrier before all have come
            return
    raise AssertionError(late)
