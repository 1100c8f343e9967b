"""Averaging that can be started, continued and waited for, so that it goes on while the rank computes.

Here an algorithm is a generator function `steps(comm, gradient, weight)`. It does what the algorithm of the
same name in algorithms.py does, but yields wherever that one would wait for another rank. What it yields is a
function that tells what it waits for. `Started` drives such a generator.

The results are equal to the bit, except for the MPI library's own: its Iallreduce may add in another order
than its Allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from time import sleep

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import add_up
from labkit.comm.averaging.algorithms import ALGORITHMS, Averaging
from labkit.comm.averaging.allgather import kept_rows
from labkit.comm.averaging.allreduce import Algorithm
from labkit.comm.averaging.shared_memory import SharedMemory, shared_memory
from labkit.comm.running import executor
from labkit.comm.tuning.auto import auto, choose
from labkit.schedules import ALLREDUCE, ring_allgather
from mpiwatch import waiting
from mpiwatch.waiting import Pending, Waits

Steps = Callable[[MPI.Intracomm, np.ndarray, float], Iterator[Waits]]

POLLS_AWAKE = 200  # before `wait` sleeps between polls, and leaves its core to ranks that still compute
NAP_S = 1e-4


def mpi(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
    """Average by the Iallreduce of the MPI library, which hides which rank is missing."""
    gradient *= gradient.dtype.type(weight)
    yield from _library(comm, "Iallreduce", comm.Iallreduce(MPI.IN_PLACE, gradient))


def mpi_allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
    """Average by the Iallgather of the MPI library. Keeps memory for p gradients."""
    rows = kept_rows(comm, gradient)
    np.multiply(gradient, gradient.dtype.type(weight), out=rows[comm.rank])
    yield from _library(comm, "Iallgather", comm.Iallgather(MPI.IN_PLACE, rows))
    add_up(rows, np.ones(comm.size, gradient.dtype), gradient)


def allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
    """Send every gradient to every rank along a ring, then average. Keeps memory for p gradients."""
    rows = kept_rows(comm, gradient)
    np.multiply(gradient, gradient.dtype.type(weight), out=rows[comm.rank])
    yield from executor.steps(comm, ring_allgather(comm.size), rows.reshape(-1))
    add_up(rows, np.ones(comm.size, gradient.dtype), gradient)


def _library(comm: MPI.Intracomm, operation: str, request: MPI.Request) -> Iterator[Waits]:
    while not request.Test():
        yield lambda: Pending(comm, operation, [], [])


def _scheduled(name: str) -> Steps:
    def steps(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
        gradient *= gradient.dtype.type(weight)
        yield from executor.steps(comm, ALLREDUCE[name](comm.size), gradient)

    return steps


def _auto(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
    """Choose first, which waits for the other ranks; `fixed` does so once for many gradients."""
    yield from STARTABLE[choose(comm, gradient.nbytes).name](comm, gradient, weight)


STARTABLE: dict[str, Steps] = {
    "mpi": mpi,
    "mpi-allgather": mpi_allgather,
    "allgather": allgather,
    **{name: _scheduled(name) for name in ALLREDUCE},
    "shared-memory": shared_memory.steps,
    "auto": _auto,
}


def startable(algorithm: Algorithm) -> Steps:
    """Return the generator function that does the same as `algorithm`.

    Raise ValueError if there is none: a function of your own, or an aggregate such as the median.
    """
    if isinstance(algorithm, SharedMemory):
        return algorithm.steps
    if isinstance(algorithm, Averaging) and algorithm.is_linear and algorithm.algorithm in STARTABLE:
        steps = STARTABLE[algorithm.algorithm]
        return lambda comm, gradient, weight: steps(comm, gradient, algorithm.factor(weight, comm.size))
    for name, steps in STARTABLE.items():
        if algorithm is ALGORITHMS[name]:
            return steps
    raise ValueError(
        f"expected an algorithm that can be started, one of {', '.join(STARTABLE)}, with a sum or a mean; "
        f"got {algorithm}"
    )


def fixed(algorithm: Algorithm, comm: MPI.Intracomm, nbytes: int) -> Algorithm:
    """Return the algorithm that `auto` chooses for `nbytes` bytes, or any other as it is. Collective."""
    if algorithm is auto:
        return ALGORITHMS[choose(comm, nbytes).name]
    if isinstance(algorithm, Averaging) and algorithm.algorithm == "auto":
        return Averaging(choose(comm, nbytes).name, algorithm.aggregate)
    return algorithm


class Started:
    """The averaging of one gradient, started by making this object; every rank makes it.

    Several can be in flight on a communicator. All ranks start them in the same order, and they are served
    first in, first out: each begins when the one before it has ended on this rank. Nothing goes on by itself,
    only inside `test` and `wait`. Leave the gradient alone until its averaging has ended.

    `label` says in error messages which one it is, such as "bucket 2 of 7".
    """

    def __init__(
        self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float, steps: Steps = mpi, label: str = ""
    ) -> None:
        before = comm.Get_attr(_last_started())
        comm.Set_attr(_last_started(), self)
        self._before: Started | None = before if isinstance(before, Started) and not before.ended else None
        self._steps: Iterator[Waits] | None = steps(comm, gradient, weight)
        self._waits: Waits | None = None
        self._label = label
        self.test()

    @property
    def ended(self) -> bool:
        """Return whether the gradient is averaged (or `cancel` has been called)."""
        return self._steps is None

    def test(self) -> bool:
        """Go on as far as possible without waiting; return whether the gradient is averaged."""
        if self._before is not None:
            if not self._before.test():
                return False
            self._before = None
        if self._steps is not None:
            self._waits = next(self._steps, None)
            if self._waits is None:
                self._steps = None
        return self._steps is None

    def wait(self) -> None:
        """Go on until the gradient is averaged.

        If a rank is missing, raise a HangError on a watched communicator, otherwise a TimeoutError after
        `mpiwatch.waiting.DEADLINE_S` seconds. Both name the algorithm, the label and the missing rank.
        """
        polls = 0

        def over() -> bool:
            nonlocal polls
            polls += 1
            if polls > POLLS_AWAKE:
                sleep(NAP_S)
            return self.test()

        try:
            if not self.test():
                waiting.wait(over, self.pending)
        except BaseException:
            self.cancel()
            raise

    def pending(self) -> Pending:
        """Return what this one, or one started before it, waits for."""
        if self._before is not None and not self._before.ended:
            return self._before.pending()
        assert self._waits is not None
        missing = self._waits()
        label = f" ({self._label})" if self._label else ""
        return missing._replace(operation=missing.operation + label)

    def cancel(self) -> None:
        """Give up, and leave the gradient as it is. Messages may still be under way on the communicator."""
        steps, self._steps, self._before = self._steps, None, None
        if steps is not None:
            steps.close()  # type: ignore[attr-defined]


@cache
def _last_started() -> int:
    """Return the key under which a communicator keeps what was started last."""
    return MPI.Comm.Create_keyval()
