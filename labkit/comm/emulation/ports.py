"""The ports of emulated links: the time at which each message completes, by the ranks' clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset, one_machine
from labkit.comm.emulation.links import Link
from mpiwatch.waiting import yield_core
from mpiwatch.wrapper import CommWrapper

POLL_S = 1e-4  # between polls for a message
PROGRESS_S = 1e-3  # the longest sleep: MPI makes progress on other messages only when it is called
YIELD_S = 2e-4  # the end of a wait in which this rank only yields, since sleep() sleeps too long


class EmulatedRequest(MPI.Request):
    """A message on an emulated link. It completes at `due` (seconds, on rank 0's clock), not before."""

    def __new__(cls, request: MPI.Request, ports: Ports, *envelope: Any) -> EmulatedRequest:
        """Take over the request of the message itself, which is sent without delay."""
        return super().__new__(cls, request)

    def __init__(
        self, request: MPI.Request, ports: Ports, source: int = -1, tag: int = -1, due: float | None = None
    ) -> None:
        self.ports, self.source, self.tag, self.due = ports, source, tag, due

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait, asleep, until the message completes."""
        while not self.has_due_time():
            sleep(POLL_S)
        assert self.due is not None
        self.ports.sleep_until(self.due)
        while not super().Test(status):
            sleep(POLL_S)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the message has completed."""
        return self.has_due_time() and self.due <= self.ports.now() and super().Test(status)  # type: ignore[operator]

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the message has completed, and keep the request."""
        return self.has_due_time() and self.due <= self.ports.now() and super().Get_status(status)  # type: ignore[operator]

    def has_due_time(self) -> bool:
        """Return whether it is known when the message completes."""
        if self.due is None:
            self.ports.update()
        return self.due is not None

    def has_arrived(self) -> bool:
        """Return whether the message itself, without its delay, has arrived."""
        if not self:  # MPI's own Waitall has completed it
            return True
        status = MPI.Status()
        if not super().Get_status(status):
            return False
        self.source, self.tag = status.Get_source(), status.Get_tag()
        return True


class EmulatedCollective(EmulatedRequest):
    """A non-blocking collective of the MPI library, which takes `seconds` from when all ranks have called it.

    `called`: an Iallreduce of the latest time at which a rank called it, or could begin because its ports
    were free. `before`: the collective that was started before this one, or None.
    """

    def __init__(
        self,
        request: MPI.Request,
        ports: Ports,
        called: tuple[MPI.Request, np.ndarray],
        seconds: float,
        before: EmulatedCollective | None,
    ) -> None:
        super().__init__(request, ports)
        self.called, self.time = called
        self.seconds, self.before = seconds, before

    def has_due_time(self) -> bool:
        """Return whether all ranks have called it."""
        if self.due is not None:
            return True
        if self.before is not None and not self.before.has_due_time():
            return False
        if not self.called.Test():
            return False
        began = self.time[0] if self.before is None else max(self.time[0], self.before.due)
        self.due, self.before = self.ports.occupy(float(began) + self.seconds), None
        return True


class Ports:
    """The two ports of a rank, one to send and one to receive. Making them is collective."""

    def __init__(self, comm: MPI.Intracomm, links: Sequence[Link]) -> None:
        self.rank, self.links = comm.rank, links
        self._timestamps = MPI.Intracomm(comm).Dup()  # a plain one, which does not count timestamps
        self._offset = 0.0 if one_machine(self._timestamps) else offset(self._timestamps)
        self._sending_timestamps: list[tuple[MPI.Request, np.ndarray]] = []
        self._forget()
        if isinstance(comm, CommWrapper):
            comm._renew_with(self._timestamps, self._forget)

    def _forget(self) -> None:
        """Forget all messages: both ports are free, and the timestamps still to be received are lost."""
        self._sending_until = self._receiving_until = -math.inf
        self._unknown: list[EmulatedRequest] = []  # receives whose due time is not known yet
        # Source, tag and due time of messages that are not matched to a receive yet.
        self._due: list[tuple[int, int, float]] = []
        self._arrived: list[EmulatedRequest] = []  # receives whose message has arrived, not waited for yet
        self._last_collective: EmulatedCollective | None = None

    def send(self, request: MPI.Request, size: float, dest: int, tag: int) -> MPI.Request:
        """Start to send a message of `size` bytes; return the request that completes when it is sent."""
        if dest == MPI.PROC_NULL:
            return request
        began = max(self.now(), self._sending_until)
        self._sending_until = began + self._takes(dest, size)
        stamp = np.array([began, size])
        unsent = [pair for pair in self._sending_timestamps if not pair[0].Test()]
        self._sending_timestamps = [*unsent, (self._timestamps.Isend(stamp, dest, tag), stamp)]
        return EmulatedRequest(request, self, dest, tag, self._sending_until)

    def receive(self, request: MPI.Request, source: int, tag: int) -> MPI.Request:
        """Return the request that completes when the message has arrived."""
        if source == MPI.PROC_NULL:
            return request
        self._unknown.append(EmulatedRequest(request, self, source, tag))
        return self._unknown[-1]

    def collective(self, request: MPI.Request, seconds: float) -> MPI.Request:
        """Return the request that completes `seconds` after all ranks have called this collective."""
        time = np.array([max(self.now(), self._sending_until, self._receiving_until)])
        called = self._timestamps.Iallreduce(MPI.IN_PLACE, time, MPI.MAX), time
        before = self._last_collective
        self._last_collective = EmulatedCollective(request, self, called, seconds, before)
        return self._last_collective

    def occupy(self, until: float) -> float:
        """Keep both ports busy until then."""
        self._sending_until = max(self._sending_until, until)
        self._receiving_until = max(self._receiving_until, until)
        return until

    def free(self) -> None:
        """Free the communicator of the timestamps."""
        self._timestamps.Free()

    def now(self) -> float:
        """Return the time (s) on rank 0's clock."""
        return perf_counter() + self._offset

    def sleep_until(self, due: float) -> None:
        """Sleep until `due`, and let MPI make progress on messages meanwhile."""
        while (left := due - self.now()) > 0:
            if left > YIELD_S:
                sleep(min(left - YIELD_S / 2, PROGRESS_S))
                self._timestamps.Iprobe()
            else:
                yield_core()

    def update(self) -> None:
        """Set the due times of the receives whose messages have arrived."""
        self._receive_timestamps()
        arrived = [request for request in self._unknown if request.has_arrived()]
        for request in arrived:
            while (due := self._claim(request)) is None:  # it was sent right after the message
                self._receive_timestamps()
            request.due = due
        self._unknown = [request for request in self._unknown if request.due is None]
        self._arrived += arrived

    def _receive_timestamps(self) -> None:
        """Compute the due times of messages, also of those without a receive, in the order of sending."""
        status, sent = MPI.Status(), []
        while self._timestamps.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            stamp, source, tag = np.empty(2), status.Get_source(), status.Get_tag()
            self._timestamps.Recv(stamp, source, tag)
            sent.append((*stamp.tolist(), source, tag))
        for began, size, source, tag in sorted(sent):
            self._receiving_until = max(began, self._receiving_until) + self._takes(source, size)
            self._due.append((source, tag, self._receiving_until))

    def _claim(self, request: EmulatedRequest) -> float | None:
        """Return when the message that a request received is due; None if its timestamp has not arrived."""
        for index, (source, tag, due) in enumerate(self._due):
            if request.source in {source, MPI.ANY_SOURCE} and request.tag in {tag, MPI.ANY_TAG}:
                del self._due[index]
                return due
        return None

    def _takes(self, peer: int, size: float) -> float:
        """Return for how long (s) a message keeps both ports busy: α + βn, each of the slower end."""
        if peer == self.rank:
            return 0.0
        ends = self.links[self.rank], self.links[peer]
        return max(end.latency_s for end in ends) + size * max(end.s_per_byte for end in ends)

    def catch_up(self) -> None:
        """Wait until the messages have arrived that MPI.Request.Waitall and the like completed too early."""
        if self._unknown:
            self.update()
        if self._arrived:
            completed = [request for request in self._arrived if not request]
            self._arrived = [request for request in self._arrived if request]
            for request in completed:
                assert request.due is not None
                self.sleep_until(request.due)
