"""Sharded training (ZeRO): each rank keeps, and updates, only its own part of the model's state.

An all-reduce is a reduce-scatter followed by an all-gather. Between the two, rank r needs only chunk r of
each bucket: its own part of the averaged gradient, which updates its own part of the parameters with its own
part of the optimiser's state. So the state of the optimiser (ZeRO-1) is divided by the number of ranks, and
the traffic stays that of an all-reduce.

The gradient stays one flat array, too, whatever is sharded. Once a bucket has been reduce-scattered, its
pages go back to the system (ZeRO-2), which gives the array new ones when the next backward pass writes there.
So do those of the parameters between two uses (ZeRO-3, as in PyTorch's FSDP): before a layer's forward pass,
and again before its backward pass, the ranks gather the buckets that hold its parameters. Each of the two
gathers costs as much as the reduce-scatter, so the traffic is up to 3/2 of an all-reduce's.

Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm import Averaging
from labkit.comm.algorithms import allgather, reduce_scatter
from labkit.comm.running import Steps
from labkit.nn import Model, flat, sgd_step
from labkit.schedules import chunk_bounds
from labkit.train.callbacks import Optimizer
from labkit.train.memory import release
from labkit.train.overlap import Buckets, Overlapped
from labkit.train.steps import Step

AHEAD = 2  # buckets of the gradient that may wait to be averaged: on a slow link, all of them would


class Part(NamedTuple):
    """A bucket and the rank's own part of it: where both lie in the flat arrays, and the part's state.

    Shapes: params and grads (n,), the values of `mine`.
    """

    bucket: slice
    mine: slice
    params: np.ndarray
    grads: np.ndarray
    update: Callable[[np.ndarray, float], None]
    state: dict[str, np.ndarray]


class Sharded(Overlapped):
    """Average each bucket into its parts, update this rank's parts, and gather the parameters.

    With `shard_state` "optimizer", each rank has the whole gradient and all parameters, and the optimiser's
    state of its own parts. With "gradients", it keeps of the gradient its own parts only: a bucket of
    `model.grads` has content from the backward pass until the ranks have averaged it. With "parameters", a
    bucket of `model.params` has content only while a layer needs it or the next one will, and again when the
    run has ended. `optimizer` gives the settings; its own state is not used, and its memory given back.
    """

    def __init__(  # noqa: PLR0917
        self,
        comm: MPI.Intracomm,
        model: Model,
        averaging: Averaging,
        buckets: Buckets,
        optimizer: Optimizer | None,
        shard_state: str,
        accumulate: int,
    ) -> None:
        super().__init__(comm, model, averaging, buckets, optimizer)
        self._keeps_grads = shard_state == "optimizer"
        self._keeps_params = shard_state != "parameters"
        self._accumulate = accumulate
        self._gathered: dict[int, int] = {}  # the buckets of parameters with content: by which job
        self._parts = [self._part(*bucket) for bucket in self.plan]
        for array in optimizer.state().values() if optimizer else ():
            release(array)
        if not self._keeps_grads:
            release(model.grads)
        if not self._keeps_params:
            stops = np.cumsum([flat.size(layer.parameters()) for layer in model.layers]).tolist()
            self._needed = [  # which buckets hold parameters of each layer
                [
                    number
                    for number, (first, last) in enumerate(self.plan)
                    if max(first, start) < min(last, stop)
                ]
                for start, stop in pairwise([0, *stops])
            ]
            release(model.params)
            model.before_layer = self._before_layer

    def _part(self, start: int, stop: int) -> Part:
        first, last = (start + chunk_bounds(stop - start, self._comm.size)[self._comm.rank :][:2]).tolist()
        mine = slice(first, last)
        params = self._model.params[mine] if self._keeps_params else self._model.params[mine].copy()
        own_optimizer = self._optimizer.on(params) if self._optimizer else None
        update, state = (
            (own_optimizer.step, own_optimizer.state()) if own_optimizer else (partial(sgd_step, params), {})
        )
        state = {"parameters": params, **state}
        return Part(slice(start, stop), mine, params, np.zeros_like(params), update, state)

    def held(self) -> dict[str, list[np.ndarray]]:
        held = super().held()
        for part in self._parts:
            held["parameters"] += [] if self._keeps_params else [part.params]
            held["gradient"].append(part.grads)
            held["optimizer"] += [array for name, array in part.state.items() if name != "parameters"]
        return held

    def update(self, lr: float) -> None:
        """Update this rank's parts with their averaged gradients, and gather all others. Collective."""
        for part in self._parts:
            part.update(part.grads, lr)
        if self._keeps_params:
            self._gather_all()
        else:  # what was gathered is out of date
            self._release([*self._gathered])

    def _gather_all(self) -> None:
        began = perf_counter()
        for bucket in range(len(self._parts)):
            self._enqueue(bucket, partial(self._gather, bucket))
        self._queue.finish()
        self._step.gathered(began, perf_counter())
        self._step.transfers = tuple(self._transfers)

    def _average(self, bucket: int) -> Steps:
        """Leave the average of this rank's part of a bucket in `Part.grads`."""
        part, factor = self._parts[bucket], self._averaging.factor(self._step.fraction, self._comm.size)
        grads = self._grads[part.bucket]
        yield from reduce_scatter(self._averaging.algorithm, self._comm, grads, factor, part.grads)
        if not self._keeps_grads:
            release(grads)

    def _gather(self, bucket: int) -> Steps:
        part, params = self._parts[bucket], self._model.params
        if not self._keeps_params:
            params[part.mine] = part.params
        return allgather(self._averaging.algorithm, self._comm, params[part.bucket])

    def _before_layer(self, number: int, forward: bool) -> None:
        """Wait for the parameters of a layer; release those behind it, and begin to gather those ahead."""
        following = self._needed[number + 1 :] if forward else self._needed[:number][::-1]
        wanted = {*self._needed[number], *next(filter(None, following), [])}
        self._release(self._gathered.keys() - wanted)
        for bucket in sorted(wanted - self._gathered.keys(), reverse=forward):
            self._gathered[bucket] = self._enqueue(bucket, partial(self._gather, bucket))
        self._wait_in_pass(max((self._gathered[bucket] for bucket in self._needed[number]), default=0))

    def _wait_in_pass(self, job: int) -> None:
        """Wait within a pass until a job is done: this communication is exposed."""
        if not self._queue.is_done(job):
            began = perf_counter()
            self._queue.wait_for(job)
            self._step.gathered(began, perf_counter())

    def _release(self, buckets: Iterable[int]) -> None:
        """Give back the memory of these buckets of the parameters."""
        for bucket in buckets:
            self._queue.wait_for(self._gathered.pop(bucket))
            release(self._model.params[self._parts[bucket].bucket])

    def begin_step(self, step: Step) -> None:
        self._release([*self._gathered])  # by passes between two steps
        super().begin_step(step)
        if not self._keeps_params:  # ranks with fewer micro-batches gather as often as the others
            for _ in range(self._accumulate - max(1, min(step.local_batch, self._accumulate))):
                self._pass_without_samples()

    def finished(self, start: int) -> None:
        if self._step.local_batch or self._keeps_params:
            super().finished(start)
            if not self._keeps_grads:
                self._wait_in_pass(self._queue.added - AHEAD)
        else:
            self._pass_without_samples(super().finished)

    def _pass_without_samples(self, finished: Callable[[int], None] = lambda start: None) -> None:
        """Take part in what other ranks gather, and average, in a forward and a backward pass."""
        sizes = [flat.size(layer.parameters()) for layer in self._model.layers]
        for number in range(len(sizes)):
            self._before_layer(number, True)
        for number in reversed(range(len(sizes))):
            self._before_layer(number, False)
            finished(sum(sizes[:number]))

    def close(self, failed: bool) -> None:
        self._model.before_layer = None
        if not failed and not self._keeps_params:
            self.begin_step(Step(0, 0, self._comm.rank, local_batch=self._accumulate))
            self._gather_all()
        super().close(failed)

    def whole_state(self) -> dict[str, np.ndarray]:
        """Return the parts of all ranks together on rank 0; nothing elsewhere. Collective.

        Arrays without axes, such as the number of steps, are the same on all ranks.
        """
        whole: dict[str, np.ndarray] = {}
        for parts in self._comm.gather([(part.mine, part.state) for part in self._parts]) or []:
            for mine, state in parts:
                for name, own_part in state.items():
                    shape = self._grads.shape if own_part.ndim else ()
                    whole.setdefault(name, np.empty(shape, own_part.dtype))[mine if own_part.ndim else ()] = (
                        own_part
                    )
        return whole

    def restore(self, whole: Mapping[str, np.ndarray]) -> None:
        for name, like in self._parts[0].state.items():
            array = np.empty(self._grads.shape if like.ndim else (), like.dtype)
            if self._comm.rank == 0:
                array[...] = whole[name]
            self._comm.Bcast(array)
            for part in self._parts:
                part.state[name][...] = array[part.mine] if like.ndim else array
            if name == "parameters" and self._keeps_params:
                self._model.params[...] = array
