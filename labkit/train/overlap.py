"""Averaging that overlaps with the backward pass: bucket by bucket, while the pass goes on.

The backward pass is the producer: it completes the gradient from its end to its start. A helper thread is the
consumer: it takes one complete bucket after the other and drives its averaging, a little every few
milliseconds. It runs while the main thread computes, because NumPy and BLAS hold no lock of Python's inside
their functions.

The lab uses a thread because going on only between layers measured worse. VGG-11, 4 hosts × 64 at 1 Gbit/s,
on two cores: after the backward pass averaging takes 0.47 s. With the thread 0.02 to 0.12 s of it is exposed,
between layers 0.66 s: a layer takes much longer than a segment, so the link is idle most of the time. The
thread's transfers still cost processor time, for which four ranks on two cores compete with computing. So the
step gets shorter by less than the communication that is hidden. For the same reason overlap gains nothing in
shared memory when each core has more than one rank: averaging is then processor time itself.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, sleep

import numpy as np
from mpi4py import MPI

from labkit.comm import Averages, Averaging
from labkit.comm.running import Steps, Wait
from labkit.train.buckets import Buckets
from labkit.train.callbacks import Callback
from labkit.train.gradients import StepAveraging
from labkit.train.steps import BucketTimes, Step
from mpiwatch.messages import Pending, wait_for_pending

# A thread that waits sleeps between bursts of polls. In one poll, MPICH takes about 64 KiB from a connection,
# and at 1 Gbit/s twice as much arrives in a millisecond: single polls would let the sleeps set the pace. Each
# sleep of the helper thread is twice as long as the last one until a segment arrives, up to MOST_S: each time
# it wakes up, it takes the core from a rank that computes.
NAP_S, MOST_S, POLLS = 5e-4, 4e-3, 6
# The main thread has nothing to compute: it begins to sleep only when a bucket takes long, and briefly.
BURSTS_AWAKE, MAIN_NAP_S = 30, 1e-4


class Overlapped(StepAveraging):
    """Average each bucket as soon as the backward pass has completed it.

    The buckets are averaged on a communicator of their own, so that no message of the caller's own is taken
    for one of theirs. Before the main thread waits, the helper thread hands over to it (see `BucketQueue`).

    Shapes: grads (n,), which is averaged in place. Making one is collective.
    """

    def __init__(
        self, comm: MPI.Intracomm, grads: np.ndarray, averaging: Averaging, buckets: Buckets
    ) -> None:
        super().__init__(comm, grads, averaging)
        self.plan = buckets.plan(grads.size, grads.itemsize)
        largest = max((stop - start for start, stop in self.plan), default=0)
        self._averaging = averaging.for_size(comm, largest * grads.itemsize)
        # Between the ranks of a node, shared memory needs no messages, and between nodes it has communicators
        # of its own; and its buffers belong to the communicator that they were made with.
        needs_none = comm.size == 1 or self._averaging.algorithm == "shared-memory"
        self._own = None if needs_none else comm.Dup()
        self._comm = self._own or comm
        self._queue = BucketQueue(comm)

    def begin(self, step: Step) -> None:
        self._step = step
        self._complete = 0  # how many buckets the backward pass has completed
        self._layers: list[tuple[int, float]] = []  # what `finished` was told in this step, and when
        self._transfers: list[BucketTimes] = []  # of the jobs of this step that are done, in their order

    def finished(self, start: int) -> None:
        self._layers.append((start, perf_counter()))
        while self._complete < len(self.plan) and self.plan[self._complete][0] >= start:
            self._begin(self._complete, partial(self._average, self._complete))
            self._complete += 1

    def finish(self) -> None:
        step = self._step
        step.ready = step.start = perf_counter()
        self._queue.finish()
        step.end = perf_counter()
        step.layers, step.transfers = tuple(self._layers), tuple(self._transfers)

    def close(self, failed: bool) -> None:
        self._queue.close()
        if self._own is not None and not failed:  # else its messages may still be under way
            self._own.Free()

    def _average(self, bucket: int) -> Steps:
        part, averaging = slice(*self.plan[bucket]), self._averaging
        if self.residual is not None:
            averaging = replace(averaging, residual=self.residual[part])
        return averaging.steps(self._comm, self._grads[part], self._step.fraction)

    def _begin(self, bucket: int, job: Callable[[], Steps]) -> int:
        """Begin a job, which communicates for a bucket, when those before it are done; return its number."""
        return self._queue.put(
            f"bucket {bucket + 1} of {len(self.plan)}", self._timed(bucket, perf_counter(), job)
        )

    def _timed(self, bucket: int, complete: float, job: Callable[[], Steps]) -> Steps:
        """Do a job for a bucket that was complete at that time (s)."""
        began = perf_counter()
        yield from job()
        self._transfers.append(BucketTimes(bucket, complete, began, perf_counter()))


def why_no_overlap(
    buckets: Buckets | None, algorithm: Averages, average_after_step: bool, callbacks: Sequence[Callback]
) -> str | None:
    """Return why a run with these settings cannot average bucket by bucket; None if it can, or need not."""
    if buckets is None:
        return None
    readers = sorted({type(each).__name__ for each in callbacks if each.reads_gradients})
    if readers:
        return (
            f"expected no buckets with {', '.join(readers)}, which reads each rank's own gradient: with "
            "buckets it is averaged during the backward pass"
        )
    if average_after_step:
        return "expected no buckets with average_after_step: they average before each rank's own step"
    if not isinstance(algorithm, Averaging):
        return f"expected an algorithm of labkit.comm (a labkit.comm.Averaging) with buckets, got {algorithm}"
    return None


class BucketQueue:
    """Drive jobs that communicate for buckets, first in, first out: so all ranks do them in the same order.

    A helper thread does it until somebody waits for a job; then the waiting thread does it, so that errors
    are raised and hangs reported where its code is. If the MPI library does not allow calls from two threads
    (MPI_THREAD_MULTIPLE), there is no helper: jobs then go on only in `put`, and a warning says so.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._jobs: deque[tuple[str, Steps]] = deque()  # those that are not done
        self._waits_for: Wait | None = None  # of the first job
        self.added = 0  # how many jobs
        self._bursts = 0
        self._nap_s = NAP_S
        self._helper = None
        if comm.size > 1:
            if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                self._helper = Helper(self._go_on, self._nap)
            elif comm.rank == 0:
                warnings.warn(
                    "The MPI library allows calls from one thread only, so averaging goes on only between "
                    "layers and overlaps less.",
                    stacklevel=2,
                )

    def put(self, name: str, job: Steps) -> int:
        """Add a job, which begins when those before it are done; return its number, from 1 on. Local.

        `name` tells a hang report which bucket it is.
        """
        self._jobs.append((name, job))
        self.added += 1
        if self._helper is None:
            self._go_on()
        else:
            self._helper.wake()
        return self.added

    def is_done(self, number: int) -> bool:
        """Return whether the job with this number is done."""
        return self.added - len(self._jobs) >= number

    def wait_for(self, number: int) -> None:
        """Return when the job with this number is done; raise the error of one that failed."""
        if self._helper is not None:
            self._helper.hand_over()
        while not self.is_done(number) and self._go_on():
            wait_for_pending(self._over, self._pending)
        if self._helper is not None and self._jobs:
            self._helper.wake()

    def finish(self) -> None:
        """Return when all jobs are done; raise the error of one that failed."""
        self.wait_for(self.added)

    def close(self) -> None:
        """End the helper thread, and the jobs that are under way after an error."""
        if self._helper is not None:
            self._helper.end()
        for _, job in self._jobs:
            job.close()

    def _go_on(self) -> bool:
        """Go on as far as possible without waiting; tell if a job is under way."""
        while self._jobs:
            if not self._arrived():
                return True
            self._nap_s = NAP_S
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
            sleep(MAIN_NAP_S)
        return self._arrived()

    def _nap(self) -> None:
        sleep(self._nap_s)
        self._nap_s = min(2 * self._nap_s, MOST_S)

    def _pending(self) -> Pending:
        """Return what the first job waits for."""
        assert self._waits_for is not None
        missing = self._waits_for[1]()
        return missing._replace(operation=f"{missing.operation} ({self._jobs[0][0]})")


class Helper:
    """A thread that, once woken, calls `go_on` while it returns True, and `nap` in between."""

    def __init__(self, go_on: Callable[[], bool], nap: Callable[[], None]) -> None:
        self._go_on, self._nap = go_on, nap
        # Held while `go_on` runs. Of a thread that waits for a Lock, mpiwatch could not see that it waits.
        self._lock = threading.Semaphore()
        self._awake = threading.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="labkit overlap", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin to call `go_on`; local."""
        self._awake.set()

    def hand_over(self) -> None:
        """Stop calling `go_on`, so that the caller can; raise the error that it has raised, if any."""
        with self._lock:
            self._awake.clear()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        while self._awake.wait() and not self._ended:
            busy = False
            with self._lock:
                if self._awake.is_set():
                    # Cleared first: what wakes this thread from now on is not lost.
                    self._awake.clear()
                    try:
                        busy = self._go_on()
                    except BaseException as error:  # raised by `hand_over`
                        self._error = error
                    if busy:
                        self._awake.set()
            if busy:
                self._nap()
