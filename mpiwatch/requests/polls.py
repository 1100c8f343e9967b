"""Count polls without success: a rank that does nothing but poll waits for a message, but looks busy."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from time import process_time
from types import FrameType
from typing import Any

from mpi4py import MPI

from mpiwatch.flight_recorder.layout import CellState
from mpiwatch.flight_recorder.opcodes import OPERATIONS
from mpiwatch.message_wait import MessageWait
from mpiwatch.rendezvous import Channel, ChannelComm
from mpiwatch.requests import unreceived
from mpiwatch.requests.waits import RequestWait, watch_of
from mpiwatch.wait import Watch
from mpiwatch.wrapper import like_mpi4py

CERTAIN_S = 1.0  # of nothing but polls, before the rank counts as waiting
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
# A rank that computes or sleeps between its polls makes fewer, or spends more time on each.
LEAST_PER_S, LEAST_PER_SAMPLE, MOST_CPU_S = 2_000, 100, 20e-6


class ProbeWait(MessageWait):
    """Polling for a message in a loop of the caller's, which may end without one."""

    def announce(self) -> None:
        super().announce()
        self.watch.slot.message_number = 0  # no part of a circle

    def cannot_complete(self, patience_s: float) -> bool:
        return super().cannot_complete(self.deadline_s)


class TestingWait(ProbeWait, RequestWait):
    """Testing requests in such a loop."""


class Polls:
    """The polls of this process. The watchdog samples them; the polling thread looks whether it may go on."""

    def __init__(self) -> None:
        self.failed = self.successes = 0
        self.is_due = False  # whether the next poll without success has to call `look`
        self.wait: MessageWait | None = None
        self.since_s, self.failed_before = 0.0, 0  # when nothing but polls began
        self.sampled: tuple[float, float, int] = (
            0.0,
            0.0,
            0,
        )  # the time, CPU time and `failed` of the last sample
        self.activity: tuple[Any, ...] = ()  # differs if the rank has made another call

    def sample(self, watch: Watch, now: float) -> None:
        """Find out whether this rank has only polled since the last sample. Called by the watchdog."""
        (then, cpu_then, failed_then), activity = self.sampled, self.activity
        self.sampled = now, process_time(), self.failed
        last = unreceived.noted[-1] if unreceived.noted else None
        self.activity = id(last), watch.calls, unreceived.balance[0], self.successes, watch.epoch, last
        made, cpu_s = self.failed - failed_then, self.sampled[1] - cpu_then
        only_polls = (
            made >= LEAST_PER_SAMPLE
            and cpu_s < MOST_CPU_S * made
            and now - then < GAP_S
            and self.activity[:-1] == activity[:-1]
            and self.failed - self.failed_before > LEAST_PER_S * (now - self.since_s)
            and watch.slot.cell_state == CellState.RUNNING
            and not watch.waiting
            and not watch.is_threaded()
            and not math.isinf(watch.patience)  # a program may poll for as long as it likes
        )
        if not only_polls:
            self.since_s, self.failed_before, self.is_due = now, self.failed, False
            if self.wait is not None:
                watch.withdraw(self.wait)
                self.wait = None
        elif now - self.since_s > CERTAIN_S:
            self.is_due = True

    def look(self, watch: Watch | None, make: Callable[[Watch], MessageWait]) -> None:
        """Note in the slot that this rank waits; raise HangError if that is of no use any more."""
        self.is_due = False
        if watch is None or threading.current_thread() is not threading.main_thread():
            return
        if self.wait is None:
            self.wait = make(watch)
            self.wait.since_s = self.since_s
        wait, self.wait.failed_polls = self.wait, self.failed - self.failed_before
        watch.slot.message_polls = wait.failed_polls
        try:
            watch.look(wait, self.sampled[0] - self.since_s)
        except BaseException:
            self.wait = None
            raise


polls = Polls()


def counting_probe(name: str, probe: Callable[..., Any]) -> Callable[..., Any]:
    """Return a probe that counts its calls without success."""

    def counted(
        self: ChannelComm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        found = probe(self, source, tag, status)
        if found:
            polls.successes += 1
            return found
        polls.failed += 1
        if polls.is_due and isinstance(channel := self._channel, Channel):
            peer = channel.members[source] if 0 <= source < len(channel.members) else -1
            call, frame = OPERATIONS[name], sys._getframe(1)
            polls.look(
                channel.watch,
                lambda watch: ProbeWait(watch, channel.members, self.deadline_s, call, peer, tag, frame),
            )
        return found

    return like_mpi4py(counted, name)


_FLAGS = {"testall": 0, "Testany": 1, "testany": 1, "testsome": 0}  # where results have them; else they are


def count_tests(requests: type[MPI.Request]) -> None:
    """Let a class of requests count its tests without success."""
    for name in "Test", "test":
        setattr(requests, name, like_mpi4py(_counting_test(getattr(requests, name)), name, MPI.Request))
    for name in "Testall", "testall", "Testany", "testany", "Testsome", "testsome":
        counted = _counting_tests(getattr(requests, name), _FLAGS.get(name))
        setattr(requests, name, classmethod(like_mpi4py(counted, name, MPI.Request)))


def _counting_test(test: Callable[..., Any]) -> Callable[..., Any]:
    def counted(self: MPI.Request, status: MPI.Status | None = None) -> Any:
        result = test(self, status)
        if result is True or (result and result[0]):
            polls.successes += 1
        else:
            polls.failed += 1
            if polls.is_due:
                _look([self], sys._getframe(1), needs_all=True)
        return result

    return counted


def _counting_tests(test: Callable[..., Any], index: int | None) -> Callable[..., Any]:
    def counted(_: Any, requests: Sequence[MPI.Request], *rest: Any, **named: Any) -> Any:
        result = test(requests, *rest, **named)
        flag = result if index is None else result[index]
        if flag or flag is None:  # None: no request is active
            polls.successes += 1
        else:
            polls.failed += 1
            if polls.is_due:
                _look(requests, sys._getframe(1), needs_all=index != 1)
        return result

    return counted


def _look(requests: Sequence[MPI.Request], frame: FrameType, needs_all: bool) -> None:
    watch, deadline_s = watch_of(requests)
    polls.look(watch, lambda watch: TestingWait(watch, deadline_s, requests, frame, needs_all))
