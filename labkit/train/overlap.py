"""Averaging the gradient of each step: at once, or bucket by bucket while the backward pass goes on.

With buckets, the backward pass is the producer: it completes the gradient from its end to its start. A helper
thread is the consumer: it takes one complete bucket after the other and drives its averaging, a little every
few milliseconds. It runs while the main thread computes, because NumPy and BLAS hold no lock of Python's
inside their functions.

The lab uses a thread because going on only between layers measured worse. VGG-11, 4 hosts × 64 at 1 Gbit/s,
on two cores: after the backward pass averaging takes 0.47 s. With the thread 0.02 to 0.12 s of it is exposed,
between layers 0.66 s: a layer takes much longer than a segment, so the link is idle most of the time. The
thread's transfers still cost processor time, for which four ranks on two cores compete with computing. So the
step gets shorter by less than the communication that is hidden. For the same reason overlap gains nothing in
shared memory when each core has more than one rank: averaging is then processor time itself.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import perf_counter, sleep

import numpy as np
from mpi4py import MPI

from labkit.comm import Averages, Averaging
from labkit.comm.running import Steps, Wait
from labkit.nn import Model, sgd_step
from labkit.train.callbacks import Optimizer
from labkit.train.steps import BucketTimes, Step
from labkit.units import MIB
from mpiwatch.layers import Pending, wait_for_pending

# A thread that waits sleeps between bursts of polls. In one poll, MPICH takes about 64 KiB from a connection,
# and at 1 Gbit/s twice as much arrives in a millisecond: single polls would let the sleeps set the pace. Each
# sleep of the helper thread is twice as long as the last one until a segment arrives, up to MOST_S: each time
# it wakes up, it takes the core from a rank that computes.
NAP_S, MOST_S, POLLS = 5e-4, 4e-3, 6
# The main thread has nothing to compute, so it begins to sleep only when a bucket takes long, and briefly.
# Other ranks may need the core: each sleep is a quarter longer than the last one until a segment arrives, up
# to MAIN_MOST_S. For 27 MB on 4 hosts at 1 Gbit/s this lowered the processor time of all ranks from 199 to
# 138 ms; the time until the sum was there stayed the same.
BURSTS_AWAKE, MAIN_NAP_S, MAIN_MOST_S = 30, 1e-4, 1e-3


@dataclass(frozen=True)
class Buckets:
    """How to cut a gradient: into buckets of at most `bytes` bytes, the first and the last of `first_bytes`.

    A small first bucket lets communication start early, a small last one leaves little to communicate after
    the backward pass. In PyTorch's DDP, `bytes` is `bucket_cap_mb` (25 MiB); its first bucket has 1 MiB.

    The backward pass fills the flat gradient from its end to its start, so the buckets are cut from its end.
    They may cut a layer in two. (PyTorch's DDP does not cut a parameter. A large layer then becomes one large
    bucket: nothing of it arrives before all of it does, and one of the first layers is exposed as a whole.)
    """

    bytes: float = 4 * MIB
    first_bytes: float = MIB // 2

    def __post_init__(self) -> None:
        if not (0 < self.first_bytes < math.inf and 0 < self.bytes < math.inf):
            raise ValueError(
                f"expected buckets of more than 0 bytes, got bytes={self.bytes:g}, "
                f"first_bytes={self.first_bytes:g}"
            )

    def plan(self, n: int, itemsize: int = 4) -> list[tuple[int, int]]:
        """Return start and stop of each bucket of a gradient of n values, in the order of averaging.

        The first bucket ends at the gradient's end, the last one starts at 0.
        """
        most = max(1, int(self.bytes) // itemsize)
        small = min(most, max(1, int(self.first_bytes) // itemsize))
        stops = [n]
        while stops[-1] > 0:
            left = stops[-1]
            values = small if left == n or left <= small else min(most, left - small)
            stops.append(max(0, left - values))
        return [(start, stop) for stop, start in pairwise(stops)]

    def largest(self, n: int, itemsize: int = 4) -> int:
        """Return how many values the largest bucket of a gradient of n values has."""
        return max((stop - start for start, stop in self.plan(n, itemsize)), default=0)


class StepAveraging:
    """Average the gradient of each step, then update: at once, when the backward pass is over.

    `train` enters one such object for a whole run. In each step, it calls `begin_step`, then the backward
    pass calls `finished` again and again, then `train` calls `finish` and `update`. With gradient
    accumulation, only the step's last micro-batch calls `finished`: each rank averages once per step.

    The gradients lie in the memory that the algorithm asks for (`labkit.comm.Averaging.prepare`), and are
    averaged in place. All ranks make the same calls, in the same order, but a rank whose local batch is empty
    calls `finished` only once, with 0: its gradient is zero.

    `residual` holds the part of the gradient that compression has not sent yet: an array of the gradient's
    shape and dtype, or None without compression.
    """

    _step: Step
    _averaging: Averaging
    residual: np.ndarray | None = None

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        algorithm: Averages,
        optimizer: Optimizer | None = None,
        at_once: int | None = None,  # values of a bucket
    ) -> None:
        self._comm = comm
        self._model = model
        self._algorithm = algorithm
        self._optimizer = optimizer
        self._update = optimizer.step if optimizer else partial(sgd_step, model.params)
        self._grads = self._grads_before = model.grads
        if isinstance(algorithm, Averaging):
            averaging, memory = algorithm.prepare(comm, model.grads.size, model.grads.dtype, at_once)
            if memory is not None:
                model.move_gradients(memory)
                self._grads = memory
            if averaging.compress != "none":
                self.residual = np.zeros_like(self._grads)
                averaging = replace(averaging, residual=self.residual)
            self._averaging = averaging
            self._algorithm = averaging.quick()

    def __enter__(self) -> StepAveraging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(failed=kind is not None)
        self._model.move_gradients(self._grads_before)

    def begin_step(self, step: Step) -> None:
        """Begin a step, whose batches are known. Send nothing yet."""
        self._step = step

    def finished(self, start: int) -> None:
        """Learn that `grads[start:]` is complete; `start` falls from call to call until it is 0."""

    def finish(self) -> None:
        """Return when `grads` holds the average and the step its times. Collective.

        A barrier parts the time of waiting for the last rank from the time of averaging.
        """
        step = self._step
        step.ready = perf_counter()
        self._comm.Barrier()
        step.start = perf_counter()
        self._algorithm(self._comm, self._grads, step.fraction)
        step.end = perf_counter()

    def update(self, lr: float) -> None:
        """Update the parameters with the gradient."""
        self._update(self._grads, lr)

    def held(self) -> dict[str, list[np.ndarray]]:
        """Return the arrays that hold this rank's state, by kind."""
        state = [*self._optimizer.state().values()] if self._optimizer else []
        held = {"parameters": [self._model.params], "gradient": [self._grads], "optimizer": state}
        return held if self.residual is None else {**held, "residual": [self.residual]}

    def whole_state(self) -> dict[str, np.ndarray]:
        """Return parameters and optimiser state, by name, at least on rank 0. Collective."""
        return {"parameters": self._model.params, **(self._optimizer.state() if self._optimizer else {})}

    def restore(self, whole: Mapping[str, np.ndarray]) -> None:
        """Take from rank 0's `whole` what `whole_state` returned, perhaps on other ranks. Collective."""
        for name, array in self.whole_state().items():
            if self._comm.rank == 0:
                array[...] = whole[name]
            self._comm.Bcast(array)

    def close(self, failed: bool) -> None:
        """Release what the object holds, such as a thread. Collective, unless the run has `failed`."""


class Overlapped(StepAveraging):
    """Average each bucket as soon as the backward pass has completed it.

    The buckets are averaged on a communicator of their own, so that no message of the caller's own is taken
    for one of theirs. Before the main thread waits, the helper thread hands over to it (see `BucketQueue`).
    Making one is collective.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        averaging: Averaging,
        buckets: Buckets,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.plan = buckets.plan(model.grads.size, model.grads.itemsize)
        at_once = buckets.largest(model.grads.size, model.grads.itemsize)
        super().__init__(comm, model, averaging, optimizer, at_once)
        # Between the ranks of a node, shared memory needs no messages, and between nodes it has communicators
        # of its own; and its buffers belong to the communicator that they were made with.
        needs_none = comm.size == 1 or self._averaging.algorithm == "shared-memory"
        self._private_comm = None if needs_none else comm.Dup()
        self._comm = self._private_comm or comm
        self._queue = BucketQueue(comm)

    def begin_step(self, step: Step) -> None:
        self._step = step
        self._complete = 0  # how many buckets the backward pass has completed
        self._layers: list[tuple[int, float]] = []  # what `finished` was told in this step, and when
        self._transfers: list[BucketTimes] = []  # of the jobs of this step that are done, in their order

    def finished(self, start: int) -> None:
        self._layers.append((start, perf_counter()))
        while self._complete < len(self.plan) and self.plan[self._complete][0] >= start:
            self._enqueue(self._complete, partial(self._average, self._complete))
            self._complete += 1

    def finish(self) -> None:
        step = self._step
        step.ready = step.start = perf_counter()
        self._queue.finish()
        step.end = perf_counter()
        step.layers = tuple(self._layers)
        step.transfers = tuple(self._transfers)

    def close(self, failed: bool) -> None:
        self._queue.close()
        if self._private_comm is not None and not failed:  # else its messages may still be under way
            self._private_comm.Free()

    def _average(self, bucket: int) -> Steps:
        part, averaging = slice(*self.plan[bucket]), self._averaging
        if self.residual is not None:
            averaging = replace(averaging, residual=self.residual[part])
        return averaging.steps(self._comm, self._grads[part], self._step.fraction)

    def _enqueue(self, bucket: int, job: Callable[[], Steps]) -> int:
        """Add a job, which communicates for a bucket, to the queue; return its number."""
        complete = perf_counter()

        def timed() -> Steps:
            began = perf_counter()
            yield from job()
            self._transfers.append(BucketTimes(bucket, complete, began, perf_counter()))

        return self._queue.put(f"bucket {bucket + 1} of {len(self.plan)}", timed())


class BucketQueue:
    """Drive jobs that communicate for buckets, first in, first out: so all ranks do them in the same order.

    A helper thread does it until somebody waits for a job; then the waiting thread does it, so that errors
    are raised and hangs reported where its code is. If the MPI library does not allow calls from two threads
    (MPI_THREAD_MULTIPLE), there is no helper, and jobs go on only while somebody waits.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._jobs: deque[tuple[str, Steps]] = deque()  # those that are not done
        self._waits_for: Wait | None = None  # of the first job
        self.added = 0  # how many jobs
        self._bursts = 0
        self._nap_s = NAP_S
        self._main_nap_s = MAIN_NAP_S
        # Held while the helper goes on; a Lock would hide from mpiwatch that a thread waits for it.
        self._lock = threading.Semaphore()
        self._awake = threading.Event()
        self._ended = False
        self._error: BaseException | None = None  # of the helper
        self._helper: threading.Thread | None = None
        if comm.size > 1 and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._helper = threading.Thread(target=self._help, name="labkit overlap", daemon=True)
            self._helper.start()

    def put(self, name: str, job: Steps) -> int:
        """Add a job, which begins when those before it are done; return its number, from 1 on. Local.

        `name` tells a hang report which bucket it is.
        """
        self._jobs.append((name, job))
        self.added += 1
        self._awake.set()
        return self.added

    def is_done(self, number: int) -> bool:
        """Return whether the job with this number is done."""
        return self.added - len(self._jobs) >= number

    def wait_for(self, number: int) -> None:
        """Return when the job with this number is done; raise the error of one that failed."""
        with self._lock:
            self._awake.clear()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while not self.is_done(number) and self._go_on():
            wait_for_pending(self._over, self._pending)
        if self._jobs:
            self._awake.set()

    def finish(self) -> None:
        """Return when all jobs are done; raise the error of one that failed."""
        self.wait_for(self.added)

    def close(self) -> None:
        """End the helper thread, and the jobs that are under way after an error."""
        if self._helper is not None:
            self._ended = True
            self._awake.set()
            self._helper.join()
        for _, job in self._jobs:
            job.close()

    def _help(self) -> None:
        """Go on whenever this thread is woken, with naps while a job is under way."""
        while self._awake.wait() and not self._ended:
            busy = False
            with self._lock:
                if self._awake.is_set():
                    self._awake.clear()  # before going on, so that no later wake-up is lost
                    try:
                        busy = self._go_on()
                    except BaseException as error:  # `wait_for` raises it; no job may go on until then
                        self._error = error
                        return
                    if busy:
                        self._awake.set()
            if busy:
                sleep(self._nap_s)
                self._nap_s = min(2 * self._nap_s, MOST_S)

    def _go_on(self) -> bool:
        """Go on as far as possible without waiting; tell if a job is under way."""
        while self._jobs:
            if not self._arrived():
                return True
            self._nap_s = NAP_S
            self._main_nap_s = MAIN_NAP_S
            self._waits_for = next(self._jobs[0][1], None)
            if self._waits_for is None:
                self._jobs.popleft()
                self._bursts = 0
        return False

    def _arrived(self) -> bool:
        """Return whether the first job can go on, after a burst of polls."""
        return self._waits_for is None or any(self._waits_for[0]() for _ in range(POLLS))

    def _over(self) -> bool:
        """Return whether the first job can go on; leave the core to ranks that still compute."""
        self._bursts += 1
        if self._bursts > BURSTS_AWAKE:
            sleep(self._main_nap_s)
            self._main_nap_s = min(1.25 * self._main_nap_s, MAIN_MOST_S)
        return self._arrived()

    def _pending(self) -> Pending:
        """Return what the first job waits for."""
        assert self._waits_for is not None
        missing = self._waits_for[1]()
        return missing._replace(operation=f"{missing.operation} ({self._jobs[0][0]})")
