"""Waiting for other ranks with a deadline, so that a missing rank is an error and not a hang.

A wait starts as a loop that polls MPI and yields its core to any rank that needs it. Most messages arrive
during this loop, which rarely reads the clock. A rank that has waited for much longer than a message takes
hands over to `on_wait`; if no such function is installed, it goes on polling until the deadline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import NamedTuple

from mpi4py import MPI

from mpiwatch.wording import ranks_phrase

DEADLINE_S = 20.0
HAND_OVER_S = 0.05  # much longer than a segment takes between two ranks of one machine
POLLS = range(256)  # between two readings of the clock

yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))


class Pending(NamedTuple):
    """What this rank waits for: messages of `operation` on `comm`.

    `receives` lists the ranks of `comm` whose messages have not arrived, `sends` the ranks that have not
    received ours. Both are empty in a collective of the MPI library, which hides which rank is missing.
    """

    comm: MPI.Intracomm
    operation: str
    receives: list[int]
    sends: list[int]

    def __str__(self) -> str:
        """Return a phrase to follow "waited for"."""
        parts = []
        if self.receives:
            parts.append(f"a message from {ranks_phrase(sorted(set(self.receives)))}")
        if self.sends:
            parts.append(f"{ranks_phrase(sorted(set(self.sends)))} to receive a message")
        return " and ".join(parts) or "the other ranks"


Over = Callable[[], bool]
Waits = Callable[[], Pending]  # yielded by a generator that waits for messages, as a running schedule
OnWait = Callable[[Over, Callable[[], Pending]], None]

# A better way to wait, for all communicators of this process. It returns when its first argument returns
# True, or raises; its second argument describes what this rank waits for. `mpiwatch` installs one whose
# error is a hang report.
on_wait: OnWait | None = None

# A number that is the same on all ranks and changes after each hang that `on_wait` reports. Schedules add it
# to their tag, so that messages left over from a hang are never received.
attempt: Callable[[], int] = int


def wait(over: Over, pending: Callable[[], Pending]) -> None:
    """Return when `over()` is True; raise a TimeoutError that names the missing rank after DEADLINE_S.

    `pending` is called only for the report.
    """
    began = monotonic()
    while True:
        for _ in POLLS:
            if over():
                return
            yield_core()
        if monotonic() - began > HAND_OVER_S:
            (on_wait or wait_until_deadline)(over, pending)
            return


def complete(steps: Iterator[Waits]) -> None:
    """Carry out all steps of a generator that yields what it waits for, giving the core away meanwhile."""
    waits: Waits | None = None

    def over() -> bool:
        nonlocal waits
        waits = next(steps, None)
        return waits is None

    def pending() -> Pending:
        assert waits is not None
        return waits()

    if not over():
        wait(over, pending)


def wait_until_deadline(over: Over, pending: Callable[[], Pending]) -> None:
    """Go on polling; raise a TimeoutError when DEADLINE_S have passed.

    Time in which this process did not run (a laptop's sleep) does not count.
    """
    waited, last = HAND_OVER_S, monotonic()
    while waited < DEADLINE_S:
        for _ in POLLS:
            if over():
                return
            yield_core()
        now = monotonic()
        waited += min(now - last, 1.0)
        last = now
    missing = pending()
    raise TimeoutError(
        f"rank {missing.comm.rank} waited {DEADLINE_S:g} s in {missing.operation} for {missing}. Expected "
        f"the same call on all {missing.comm.size} ranks: a rank never made it, or gave another schedule or "
        "array size. Messages may still be under way on this communicator: make a new one before you go on."
    )


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait until all ranks have called this, asleep between polls (1 ms). Collective.

    MPI's own Barrier polls as fast as it can. That is right for microseconds, but takes the core from a rank
    that works for seconds, say rank 0 while it loads a data set.
    """
    request = comm.Ibarrier()
    while not request.Test():
        sleep(0.001)
