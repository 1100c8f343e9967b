"""The network of notebook 07b: all ranks train one model, and rings do what MPI's collectives do."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.schedules import chunk_bounds
from labkit.train.stages import LAYER, LAYERS, WIDTH, PlainTraining, RingsComm


def check_rings_complete_the_collectives_inside_the_call(comm: MPI.Intracomm) -> None:
    rings, n = RingsComm(comm), 7
    bounds = chunk_bounds(n, comm.size)
    counts = np.diff(bounds).tolist()
    mine = slice(bounds[comm.rank], bounds[comm.rank + 1])
    array = np.arange(n) + 10.0 * comm.rank
    total = comm.allreduce(array)

    whole = array.copy()
    rings.Iallreduce(MPI.IN_PLACE, whole).Wait()
    np.testing.assert_array_equal(whole, total)

    chunk = np.empty(counts[comm.rank])
    rings.Ireduce_scatter(array.copy(), chunk, counts).Wait()
    np.testing.assert_array_equal(chunk, total[mine])

    for sent in (chunk, MPI.IN_PLACE):
        gathered = np.zeros(n)
        gathered[mine] = chunk
        rings.Iallgatherv(sent, [gathered, counts]).Wait()
        np.testing.assert_array_equal(gathered, total)
    assert comm.size == 1 or sum(row.calls for row in rings.traffic()) > 0


def check_all_ranks_step_with_the_mean_gradient_and_free_the_activations(comm: MPI.Intracomm) -> None:
    training = PlainTraining(comm)
    before = [layer.copy() for layer in training.own]
    random = np.random.default_rng(comm.rank)
    losses = [
        training.step(random.normal(size=(4, WIDTH)).astype(np.float32), np.arange(4)) for _ in range(2)
    ]
    assert np.isfinite(losses).all() and training.inputs == []
    assert len(training.own) == LAYERS and training.own[0].shape == (LAYER,)
    assert not any(np.array_equal(*pair) for pair in zip(before, training.own, strict=True))
    for layer in training.own:
        np.testing.assert_array_equal(layer, comm.bcast(layer))
