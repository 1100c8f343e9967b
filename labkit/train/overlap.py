"""Averaging that overlaps with the backward pass: bucket by bucket, while the pass goes on.

The backward pass is the producer: it completes the gradient from its end to its start. A helper thread is the
consumer: it takes one complete bucket after the other and drives its averaging, a little every
millisecond. It runs while the main thread computes, because NumPy and BLAS hold no lock of Python's inside
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
from collections.abc import Callable, Sequence
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
from mpiwatch import waiting

# The helper thread naps between bursts of polls. In one poll, MPICH takes about 64 KiB from a connection, and
# at 1 Gbit/s twice as much arrives in a millisecond: with one poll per nap, the naps would set the pace.
NAP_S, POLLS = 1e-3, 16
POLLS_AWAKE, POLL_S = 200, 1e-4  # of the main thread, which naps between polls when a bucket takes long


class Overlapped(StepAveraging):
    """Average each bucket as soon as the backward pass has completed it.

    Buckets are served first in, first out, on a communicator of their own, so that all ranks average them in
    the same order and no message of the caller's own is taken for one of theirs.

    Before the main thread waits, the helper thread hands over to it. So errors are raised and hangs reported
    where the caller's code is. If the MPI library does not allow calls from two threads
    (MPI_THREAD_MULTIPLE), there is no helper: averaging then goes on only between two layers of the backward
    pass, and a warning says so.

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
        self._current: Steps | None = None  # averages a bucket
        self._waits_for: Wait | None = None
        self._helper = None
        if comm.size > 1:
            if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                self._helper = Helper(self._go_on)
            elif comm.rank == 0:
                warnings.warn(
                    "The MPI library allows calls from one thread only, so averaging goes on only between "
                    "layers and overlaps less.",
                    stacklevel=2,
                )

    def begin(self, step: Step) -> None:
        self._step = step
        self._complete = 0  # how many buckets the backward pass has completed
        self._jobs: list[tuple[int, float, Callable[[], Steps]]] = []  # bucket, since when, and what to do
        self._layers: list[tuple[int, float]] = []  # what `finished` was told in this step, and when
        self._transfers: list[BucketTimes] = []  # of the jobs of this step that are done, in their order

    def finished(self, start: int) -> None:
        self._layers.append((start, perf_counter()))
        while self._complete < len(self.plan) and self.plan[self._complete][0] >= start:
            self._begin(self._complete, partial(self._average, self._complete))
            self._complete += 1
        if self._helper is None:
            self._go_on()

    def finish(self) -> None:
        step = self._step
        step.ready = step.start = perf_counter()
        self._wait_for(len(self._jobs))
        step.end = perf_counter()
        step.layers, step.transfers = tuple(self._layers), tuple(self._transfers)

    def close(self, failed: bool) -> None:
        if self._helper is not None:
            self._helper.end()
        if self._current is not None:
            self._current.close()
        if self._own is not None and not failed:  # else its messages may still be under way
            self._own.Free()

    def _average(self, bucket: int) -> Steps:
        part = self._grads[slice(*self.plan[bucket])]
        return self._averaging.steps(self._comm, part, self._step.fraction)

    def _begin(self, bucket: int, job: Callable[[], Steps]) -> None:
        """Begin a job, which communicates for a bucket, when those before it are done."""
        self._jobs.append((bucket, perf_counter(), job))
        if self._helper is not None:
            self._helper.wake()

    def _wait_for(self, jobs: int) -> None:
        """Wait until so many of the step's jobs are done."""
        if self._helper is not None:
            self._helper.hand_over()
        while len(self._transfers) < jobs and self._go_on():
            waiting.wait(self._over, self._pending)
        if self._helper is not None and len(self._transfers) < len(self._jobs):
            self._helper.wake()

    def _go_on(self) -> bool:
        """Do what has begun, as far as possible without waiting; tell if a job is under way."""
        while True:
            number = len(self._transfers)
            if self._current is None:
                if number == len(self._jobs):
                    return False
                self._began = perf_counter()
                self._current = self._jobs[number][2]()
                self._polls = 0
            if self._waits_for is not None and not self._waits_for[0]():
                return True
            self._waits_for = next(self._current, None)
            if self._waits_for is None:
                bucket, complete, _ = self._jobs[number]
                self._transfers.append(BucketTimes(bucket, complete, self._began, perf_counter()))
                self._current = None

    def _over(self) -> bool:
        """Return whether the current bucket can go on; leave the core to ranks that still compute."""
        self._polls += 1
        if self._polls > POLLS_AWAKE:
            sleep(POLL_S)
        return self._waits_for is None or self._waits_for[0]()

    def _pending(self) -> waiting.Pending:
        """Return what the current bucket waits for."""
        assert self._waits_for is not None
        missing, number = self._waits_for[1](), self._jobs[len(self._transfers)][0] + 1
        return missing._replace(operation=f"{missing.operation} (bucket {number} of {len(self.plan)})")


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


class Helper:
    """A thread that calls `go_on` again and again while it returns True, once `wake` has been called."""

    def __init__(self, go_on: Callable[[], bool]) -> None:
        self._go_on = go_on
        self._lock = threading.Lock()  # held while `go_on` runs
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
                        for _ in range(POLLS):
                            busy = self._go_on()
                            if not busy:
                                break
                    except BaseException as error:  # raised by `hand_over`
                        self._error = error
                    if busy:
                        self._awake.set()
            if busy:
                sleep(NAP_S)
