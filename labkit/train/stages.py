"""A small network to shard, stage by stage: what notebook 07b trains plainly, and with ZeRO-1, 2 and 3.

`PlainTraining` keeps everything on every rank. A sharded stage derives from it and replaces `shard`, `visit`,
`average` or `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm, run
from labkit.nn import AdamW
from labkit.nn.ops import softmax_cross_entropy, softmax_cross_entropy_backward
from labkit.schedules import chunk_bounds, ring_allgather, ring_allreduce, ring_reduce_scatter
from labkit.train.memory import PeakNotes

LAYERS, WIDTH, LR = 8, 256, 1e-3
LAYER = WIDTH * WIDTH  # values

Gradients = dict[int, np.ndarray]


class PlainTraining:
    """Data-parallel training of a network of LAYERS equal layers; each turns x into relu(x) W.

    `own` holds, for each layer, the parameters that this rank updates: here all of them. `computing_s` is the
    time (s) that each layer's forward pass sleeps, as if the network were larger; its backward pass sleeps
    twice as long.
    """

    params: list[np.ndarray] | None
    own: list[np.ndarray]

    def __init__(self, comm: MPI.Intracomm, computing_s: float = 0.0) -> None:
        self.comm, self.computing_s = comm, computing_s
        scale = (2 / WIDTH) ** 0.5
        random = np.random.default_rng(7)  # the same on all ranks
        self.params = [random.normal(0, scale, LAYER).astype(np.float32) for _ in range(LAYERS)]
        self.shard()
        self.optimisers = [AdamW(layer) for layer in self.own]

    def shard(self) -> None:
        """Choose what this rank updates: here everything."""
        assert self.params is not None
        self.own = self.params

    def visit(self, order: Iterable[int], use: Callable[[int, np.ndarray], object]) -> None:
        """Call use(k, params) with each layer's parameters."""
        assert self.params is not None
        for k in order:
            use(k, self.params[k])

    def average(self, backward: Callable[[Callable[[int, np.ndarray], object]], object]) -> Gradients:
        """Run the backward pass; return the mean gradient of what this rank updates, by layer."""
        gradients: Gradients = {}
        requests: list[MPI.Request] = []

        def ready(k: int, gradient: np.ndarray) -> None:
            gradient /= self.comm.size
            gradients[k] = gradient
            requests.append(self.comm.Iallreduce(MPI.IN_PLACE, gradient))
            for request in requests:
                request.Test()

        backward(ready)
        for request in requests:
            request.Wait()
        return gradients

    def update(self, gradients: Mapping[int, np.ndarray]) -> None:
        """Take AdamW's step."""
        for k in range(LAYERS):
            self.optimisers[k].step(gradients[k], LR)

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Take a training step; return the local loss. Shapes: x (N, WIDTH), labels (N,)."""
        self.x = x
        self.inputs: list[np.ndarray] = []  # the activations
        self.memory = PeakNotes()
        self.visit(range(LAYERS), self.forward)
        loss = softmax_cross_entropy(self.x, labels)
        self.dy = softmax_cross_entropy_backward(self.x, labels)
        gradients = self.average(self.backward)
        del self.x, self.dy
        self.memory.note()
        self.update(gradients)
        del gradients
        self.memory.note()  # the peak in the update
        self.memory.note()  # what stays
        return loss

    def forward(self, k: int, params: np.ndarray) -> None:
        """Do a layer's forward pass."""
        self.memory.note()
        self.inputs.append(self.x)
        self.x = np.maximum(self.x, 0) @ params.reshape(WIDTH, WIDTH)
        self.compute(self.computing_s)
        self.memory.note()

    def backward(self, ready: Callable[[int, np.ndarray], object]) -> None:
        """Call ready(k, gradient) for each layer, the last one first."""
        self.visit(reversed(range(LAYERS)), partial(self.backward_of_layer, ready))

    def backward_of_layer(
        self, ready: Callable[[int, np.ndarray], object], k: int, params: np.ndarray
    ) -> None:
        """Do a layer's backward pass."""
        self.memory.note()
        x = self.inputs.pop()
        gradient = np.maximum(x, 0).T @ self.dy
        self.dy = (self.dy @ params.reshape(WIDTH, WIDTH).T) * (x > 0)
        self.compute(2 * self.computing_s)
        self.memory.note()
        ready(k, gradient.reshape(-1))

    def compute(self, seconds: float) -> None:
        """Sleep as if a larger network computed, but let MPI make progress every millisecond."""
        end = perf_counter() + seconds
        while perf_counter() < end:
            sleep(min(max(end - perf_counter(), 0.0), 1e-3))
            MPI.COMM_WORLD.Iprobe()  # of any communicator: MPI then makes progress on all


class RingsComm(CountingComm):
    """A communicator that completes these collectives inside the call, by a ring, and counts messages."""

    def _chunk(self, n: int) -> slice:
        bounds = chunk_bounds(n, self.size)
        return slice(bounds[self.rank], bounds[self.rank + 1])

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        run(self, ring_allreduce(self.size), recvbuf)
        return MPI.REQUEST_NULL

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        run(self, ring_reduce_scatter(self.size), sendbuf)
        recvbuf[:] = sendbuf[self._chunk(len(sendbuf))]
        return MPI.REQUEST_NULL

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        whole = recvbuf[0]
        if sendbuf is not MPI.IN_PLACE:
            whole[self._chunk(len(whole))] = sendbuf
        run(self, ring_allgather(self.size), whole)
        return MPI.REQUEST_NULL
