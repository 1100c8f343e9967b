"""Emulated processors: ranks that sleep for the time that computing would take."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from mpi4py import MPI

from labkit import nn
from labkit.comm import Link
from labkit.nn.layers import Dense, ReLU
from labkit.train.emulated import (
    ListingComm,
    Processor,
    SleepingModel,
    StepClock,
    TimedModel,
    timed_step,
)


def check_a_gradient_takes_its_time_per_sample(comm: MPI.Intracomm) -> None:
    processor = Processor(0.02)
    processor.before_step()
    begin = perf_counter()
    processor.after_backward(nn.mlp(), 3)
    assert perf_counter() - begin > 0.05


def check_the_shortest_step_counts(comm: MPI.Intracomm) -> None:
    clock = StepClock()
    clock.times = [0.0, 3.0, 4.0, 6.0]
    assert clock.s_per_step() == 1.0
    with pytest.raises(ValueError, match="expected at least two steps, got 0"):
        StepClock().s_per_step()


def check_a_sleeping_model_notes_its_layers_as_the_model_does(comm: MPI.Intracomm) -> None:
    layers = [("first", Dense(5)), ("relu", ReLU()), ("last", Dense(3))]
    model = TimedModel("small", layers, (4,), 0, np.float32)
    x, y, starts = np.ones((2, 4), np.float32), np.array([0, 1]), list[int]()
    model.loss_and_gradient(x, y, starts.append)
    assert starts == [25, 25, 0] == [start for start, _ in model.complete]
    assert len(model.layer_seconds()) == 3 and (model.layer_seconds() >= 0).all()

    sleeping, said = SleepingModel(model.grads.copy(), starts, 0.01, [0.03, 0.0, 0.01]), list[int]()
    sleeping.loss_and_gradient(x, y, said.append)
    assert said == starts and np.array_equal(sleeping.grads, model.grads)
    after = [time - sleeping.began for _, time in sleeping.complete]
    assert after[0] > 0.0099 and after[2] > 0.0399
    with pytest.raises(ValueError, match="a time for each of 3 layers, got 1"):
        SleepingModel(model.grads, starts, 0, [0.1])


def check_a_step_has_its_passes_and_transfers(comm: MPI.Intracomm) -> None:
    net = ListingComm(comm, Link(1e9, 1e-3))
    model = SleepingModel(np.ones(6, np.float32), [2, 0], 0.01, [0.01, 0.02])

    def step() -> None:
        model.loss_and_gradient(np.empty(0), np.empty(0))
        net.Iallreduce(MPI.IN_PLACE, model.grads).Wait()

    times = timed_step(net, model, step)
    assert len(times.layers) == 2 and len(times.transfers) == 1
    assert (times.transfer_s > 0) == (comm.size > 1)
    assert times.backward_s > 0.029 and times.whole_s > 0.039
    again = timed_step(net, model, step)
    assert len(again.transfers) == 1, "only those of the last step"
