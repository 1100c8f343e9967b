"""The ports of emulated links: when each message is over, by the ranks' clocks."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset, one_machine
from labkit.comm.emulation.links import Link

NAP_S = 1e-4  # between looks whether a message has come
LOOK_S = 1e-3  # asleep at most, for MPI moves other messages only when it is called
YIELD_S = 2e-4  # the last bit, for sleep oversleeps


class EmulatedRequest(MPI.Request):
    """A message under way on an emulated link; over when `due` (s, on the clock of rank 0), not before."""

    def __new__(cls, request: MPI.Request, ports: Ports, *envelope: Any) -> EmulatedRequest:
        """Take over the request of the message itself."""
        return super().__new__(cls, request)

    def __init__(
        self, request: MPI.Request, ports: Ports, source: int = -1, tag: int = -1, due: float | None = None
    ) -> None:
        self.ports, self.source, self.tag, self.due = ports, source, tag, due

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait, asleep, until the message is over."""
        while not self.is_here():
            sleep(NAP_S)
        assert self.due is not None
        self.ports.sleep_until(self.due)
        while not super().Test(status):
            sleep(NAP_S)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the message is over."""
        return self.is_here() and self.due <= self.ports.now() and super().Test(status)  # type: ignore[operator]

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the message is over, and keep the request."""
        return self.is_here() and self.due <= self.ports.now() and super().Get_status(status)  # type: ignore[operator]

    def is_here(self) -> bool:
        """Tell whether it is known when the message is over."""
        if self.due is None:
            self.ports.take_in()
        return self.due is not None

    def has_come(self) -> bool:
        """Tell whether the message itself, without its delay, has come."""
        if not self:  # MPI's own Waitall has seen it
            return True
        status = MPI.Status()
        if not super().Get_status(status):
            return False
        self.source, self.tag = status.Get_source(), status.Get_tag()
        return True


class Ports:
    """The two ports of a rank, to send and to receive. Making them is collective."""

    def __init__(self, comm: MPI.Intracomm, links: Sequence[Link]) -> None:
        self.rank, self.links = comm.rank, links
        self._stamps = MPI.Intracomm(comm).Dup()  # next to the MPI library: nobody counts what is not there
        self._ahead = 0.0 if one_machine(self._stamps) else offset(self._stamps)
        self._sending_until = self._receiving_until = -math.inf
        self._coming: list[EmulatedRequest] = []  # nobody knows yet when they are due
        self._due: list[tuple[int, int, float]] = []  # source, tag and time of messages that no request has
        self._open: list[EmulatedRequest] = []  # has come, and is waited for by nobody yet
        self._stamping: list[tuple[MPI.Request, np.ndarray]] = []

    def send(self, request: MPI.Request, size: float, dest: int, tag: int) -> MPI.Request:
        """Put a message of `size` bytes on its way, and return the request that is over when it is sent."""
        if dest == MPI.PROC_NULL:
            return request
        began = max(self.now(), self._sending_until)
        self._sending_until = began + self._takes(dest, size)
        stamp = np.array([began, size])
        self._stamping = [one for one in self._stamping if not one[0].Test()]
        self._stamping.append((self._stamps.Isend(stamp, dest, tag), stamp))
        return EmulatedRequest(request, self, dest, tag, self._sending_until)

    def receive(self, request: MPI.Request, source: int, tag: int) -> MPI.Request:
        """Return the request that is over when the message is."""
        if source == MPI.PROC_NULL:
            return request
        self._coming.append(EmulatedRequest(request, self, source, tag))
        return self._coming[-1]

    def free(self) -> None:
        """Free the communicator of the stamps."""
        self._stamps.Free()

    def now(self) -> float:
        """Return the time (s) on rank 0's clock."""
        return perf_counter() + self._ahead

    def sleep_until(self, due: float) -> None:
        """Sleep until then, and let MPI move messages meanwhile."""
        while (left := due - self.now()) > 0:
            if left > YIELD_S:
                sleep(min(left - YIELD_S / 2, LOOK_S))
                self._stamps.Iprobe()
            else:
                os.sched_yield()

    def take_in(self) -> None:
        """Find out when the messages that have come, and are waited for, are due."""
        self._take_stamps()
        come = [request for request in self._coming if request.has_come()]
        for request in come:
            while (due := self._claim(request)) is None:  # sent right behind the message
                self._take_stamps()
            request.due = due
        self._coming = [request for request in self._coming if request.due is None]
        self._open += come

    def _take_stamps(self) -> None:
        """Work out when messages are due, also those that nobody waits for, in the order of sending."""
        status, sent = MPI.Status(), []
        while self._stamps.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            stamp, source, tag = np.empty(2), status.Get_source(), status.Get_tag()
            self._stamps.Recv(stamp, source, tag)
            sent.append((*stamp.tolist(), source, tag))
        for began, size, source, tag in sorted(sent):
            self._receiving_until = max(began, self._receiving_until) + self._takes(source, size)
            self._due.append((source, tag, self._receiving_until))

    def _claim(self, request: EmulatedRequest) -> float | None:
        """Return when the message that a request has received is due; None if its stamp is not here."""
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

    def make_up(self) -> None:
        """Wait for what MPI.Request.Waitall or the like have not waited for."""
        if self._coming:
            self.take_in()
        if self._open:
            over = [request for request in self._open if not request]
            self._open = [request for request in self._open if request]
            for request in over:
                assert request.due is not None
                self.sleep_until(request.due)
