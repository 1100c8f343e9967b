"""Emulated links: a communicator that delays messages as a slower network would.

It is for machines on which `labkit hosts` cannot make a real network, and for links that do not exist. As in
the simulator (`labkit.schedules.simulator`), a message of n bytes takes α + βn with the larger α and β of its
two ends. A rank's port carries one message at a time in each direction, so a second message that is sent or
received has to wait for the first. A message travels while its ranks compute. It starts when it is sent, even
if its receive is not posted yet, as on a network with enough buffers.

The sender lets a timestamp follow each message, on a communicator for timestamps only: the time at which its
port began to send. From the timestamps, in the order of sending, the receiver's port computes when each
message arrives, and the receive completes no earlier. Waiting ranks sleep until the last fraction of a
millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter, sleep
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset
from labkit.comm.counting import LIBRARY, SENDING, wrap
from labkit.units import format_bandwidth, format_time, parse_bandwidth, parse_time
from mpiwatch.layers import (
    SPIN_IN_SCHEDULE_S,
    CommWrapper,
    caller,
    has_mode,
    is_in_place,
    nbytes,
    note_wait,
    raise_together,
    wait_for,
    yield_core,
)

POLL_S = 1e-4  # between polls for a message
PROGRESS_S = 1e-3  # the longest sleep: MPI makes progress on other messages only when it is called
YIELD_S = 2e-4  # the end of a wait in which this rank only yields, since sleep() sleeps too long


@dataclass(frozen=True)
class Link:
    """A rank's link to all others: `bytes_per_s` in each direction, and `latency_s` (α) for every message.

    The default is a link without delay.
    """

    bytes_per_s: float = math.inf
    latency_s: float = 0.0

    @property
    def s_per_byte(self) -> float:
        """Return the inverse bandwidth β, in seconds per byte."""
        return 1 / self.bytes_per_s

    def slower(self, factor: float) -> Link:
        """Return a link with `factor` times the latency and 1/`factor` of the bandwidth."""
        return Link(self.bytes_per_s / factor, self.latency_s * factor)

    def __str__(self) -> str:
        """Return what `parse_link` reads: "1gbit+50us"; "no delay" for the default."""
        if self == Link():
            return "no delay"
        bandwidth = "" if self.bytes_per_s == math.inf else format_bandwidth(8 * self.bytes_per_s)
        return bandwidth + (f"+{format_time(self.latency_s)}" if self.latency_s else "")


def parse_link(text: str) -> Link:
    """Return the link in a text such as "1gbit", "100mbit+1ms" or "+50us"; raise ValueError for any other."""
    bandwidth, plus, latency = text.partition("+")
    try:
        bits_per_s = parse_bandwidth(bandwidth) if bandwidth or not plus else math.inf
        return Link(bits_per_s / 8, parse_time(latency) if plus else 0.0)
    except ValueError:
        raise ValueError(
            "expected a bandwidth such as 100mbit or 1gbit, or bandwidth and latency such as 1gbit+50us, "
            f"got {text!r}"
        ) from None


def describe(links: Sequence[Link]) -> str:
    """Return the links of all ranks in one phrase: "1gbit, rank 3 100mbit"."""
    usual = max(links, key=links.count)
    exceptions = [f"rank {rank} {link}" for rank, link in enumerate(links) if link != usual]
    return ", ".join([str(usual), *exceptions])


class EmulatedComm(CommWrapper):
    """A communicator around another one whose messages take time on emulated links.

    `links` is one link for all ranks, or a sequence with one link for each rank. Making one is collective.

    Send, Isend, Ssend, Issend, Recv, Irecv and Sendrecv are delayed, and with them schedules
    (`labkit.comm.run`). The MPI library sends the messages of its own collectives unseen. So these are done
    without delay, and then all ranks wait for as long as the best known algorithms would take from the moment
    the last rank joined: ⌈log₂ p⌉ latencies (twice as many for Allreduce), and the bytes that have to pass a
    port, at the slowest port. Of n bytes in the whole array these are 2(p-1)/p·n for Allreduce, (p-1)/p·n for
    Allgather, Alltoall and Reduce_scatter_block, n for Bcast and Reduce; for Gather and Scatter (p-1)/p·n at
    the root and n/p elsewhere. Non-blocking twins of these take as long (Iallgatherv as Allgather,
    Ireduce_scatter as Reduce_scatter_block), and one that is started before another has completed begins
    after it.

    Barriers and methods that pickle objects (lower case) take no emulated time, since in the lab they do
    bookkeeping. Methods that can neither be delayed nor count as bookkeeping raise NotImplementedError.

    `MPI.Request.Waitall` and similar functions bypass Python and do not wait for the link; the next call on
    the communicator waits instead. `request.Wait()` and `request.Test()` are exact.
    """

    copies_requests = True
    links: list[Link]
    _ports: Ports

    def __new__(cls, comm: MPI.Intracomm | None = None, links: Link | Sequence[Link] = ()) -> Any:
        """Put emulated links around `comm`; raise CollectiveError on every rank if they do not fit.

        In strict mode, raise NotImplementedError.
        """
        emulated = super().__new__(cls, comm)
        if comm is None:
            return emulated
        if has_mode():
            raise NotImplementedError(
                "there are no emulated links in strict mode, which delivers messages at times of its own: "
                "leave out `strict=True` or `--strict`"
            )
        emulated.links = [links] * comm.size if isinstance(links, Link) else list(links)
        costs = [(link.latency_s, link.bytes_per_s) for link in emulated.links]
        fault = None
        if len(costs) != comm.size:
            fault = f"expected a link for each of the {comm.size} ranks, got {len(costs)}"
        elif costs != MPI.Intracomm.bcast(comm, costs):
            fault = "expected the same links as on rank 0"
        raise_together(MPI.Intracomm(comm), fault)
        emulated._ports = Ports(emulated, emulated.links)
        return emulated

    @property
    def emulated(self) -> str:
        """Return the links in one phrase, to be shown with every measurement made on them."""
        return f"emulated links: {describe(self.links)}"

    def Barrier(self) -> None:
        """Wait, asleep, until all ranks have called this. Takes no emulated time."""
        self._ports.catch_up()
        request = super().Ibarrier()
        _wait_asleep(request.Test, request)

    def _seconds(self, name: str, kwargs: dict[str, Any]) -> float:
        """Return how long a collective with these arguments takes from when all ranks have called it."""
        p = self.size
        if p == 1:
            return 0.0
        latencies = (2 if "allreduce" in name.lower() else 1) * math.ceil(math.log2(p))
        name = name.removeprefix("I").capitalize()
        size = _through_a_port(name, p, kwargs)
        root = kwargs.get("root", 0) if name in ("Gather", "Scatter") else None
        at_ports = [
            size * (p - 1 if rank == root else 1) * link.s_per_byte for rank, link in enumerate(self.links)
        ]
        return latencies * max(link.latency_s for link in self.links) + max(at_ports)

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.links = [self.links[rank] for rank in MPI.Intracomm.allgather(new, self.rank)]
        new._ports = Ports(new, new.links)

    def Free(self) -> None:
        self._ports.timestamps.Free()
        super().Free()


@cache
def _request_class(base: type[MPI.Request]) -> Any:
    """Return the class of requests on emulated links, derived from the class that MPI.Request is now.

    mpiwatch replaces MPI.Request when it begins to watch. This module may have been imported before: a
    notebook's ranks are forked from a process that has imported it.
    """

    class EmulatedRequest(base):  # type: ignore[valid-type,misc]
        """A message or collective on emulated links: it completes at `due` (seconds, on rank 0's clock).

        While that time is not known, it is infinite. A collective takes `seconds` from when all ranks have
        called it.
        """

        seconds = 0.0
        # The names of the class that it stands for, so that help and completion find that class.
        __module__ = "mpi4py.MPI"
        __qualname__ = "Request"

        def __new__(cls, request: MPI.Request, ports: Ports, *envelope: Any) -> EmulatedRequest:
            """Take over the request of the message itself, which is sent without delay."""
            return super().__new__(cls, request)

        def __init__(
            self, request: MPI.Request, ports: Ports, source: int = -1, tag: int = -1, due: float = math.inf
        ) -> None:
            self.ports = ports
            self.source = source
            self.tag = tag
            self.due = due
            creation = getattr(request, "made", None)
            if creation:  # a hang report names the line outside this package
                frame = caller()
                place = frame.f_code, frame.f_lasti
                # A recording looks up requests by the tuple's id, so keep it if it already names this place.
                self.made = creation if creation[-2:] == place else (*creation[:-2], *place)

        def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
            """Wait, asleep, until the message completes."""
            _wait_asleep(self.has_due_time, self)
            self.ports.sleep_until(self.due)
            _wait_asleep(partial(super().Test, status), self)
            return True

        def Test(self, status: MPI.Status | None = None) -> bool:
            """Return whether the message has completed."""
            return self.has_due_time() and self.due <= self.ports.now() and super().Test(status)

        def Get_status(self, status: MPI.Status | None = None) -> bool:
            """Return whether the message has completed, and keep the request."""
            return self.has_due_time() and self.due <= self.ports.now() and super().Get_status(status)

        def has_due_time(self) -> bool:
            """Return whether it is known when the message completes."""
            if self.due == math.inf:
                self.ports.update()
            return self.due < math.inf

        def has_arrived(self) -> bool:
            """Return whether the message itself, without its delay, has arrived."""
            if not self:  # MPI's own Waitall has completed it
                return True
            status = MPI.Status()
            if not super().Get_status(status):
                return False
            if status.Is_cancelled():
                self.due = -math.inf  # neither a message nor its timestamp will arrive
                return False
            self.source = status.Get_source()
            self.tag = status.Get_tag()
            return True

        def Cancel(self) -> None:
            """Cancel a receive that no message has matched."""
            super().Cancel()
            self.has_arrived()

    return EmulatedRequest


def _wait_asleep(is_done: Callable[[], bool], request: MPI.Request) -> None:
    """Return when `is_done()`; raise HangError, in a watched process, if the request cannot complete."""

    def is_done_now() -> bool:
        if is_done():
            return True
        sleep(POLL_S)
        return False

    wait_for(is_done_now, [request], spin_s=SPIN_IN_SCHEDULE_S)


class Ports:
    """The two ports of a rank, one to send and one to receive. Making them is collective."""

    def __init__(self, comm: EmulatedComm, links: Sequence[Link]) -> None:
        self.rank = comm.rank
        self.links = links
        self.timestamps = MPI.Intracomm(comm).Dup()  # a plain one, which does not count timestamps
        self._offset = offset(self.timestamps)
        self._make_request = _request_class(MPI.Request)  # now: a recording notes which classes there are
        self._sending_timestamps: list[tuple[MPI.Request, np.ndarray]] = []
        self._forget()

    def _forget(self) -> None:
        """Forget all messages: both ports are free, and the timestamps still to be received are lost."""
        self._sending_until = self._receiving_until = self._collective_until = -math.inf
        self._receives: list[Any] = []  # in the order of their calls, until they have completed
        # Source, tag and due time of messages that are not matched to a receive yet.
        self._due: list[tuple[int, int, float]] = []
        # Of each collective that has begun: an Iallreduce of the latest time at which a rank called it, or
        # could begin because its ports were free; and that time.
        self._collectives: list[tuple[Any, MPI.Request, np.ndarray]] = []

    def send(self, request: MPI.Request, size: float, dest: int, tag: int) -> MPI.Request:
        """Start to send a message of `size` bytes; return the request that completes when it is sent."""
        if dest == MPI.PROC_NULL:
            return request
        began = max(self.now(), self._sending_until)
        self._sending_until = began + self._takes(dest, size)
        stamp = np.array([began, size])
        unsent = [pair for pair in self._sending_timestamps if not pair[0].Test()]
        self._sending_timestamps = [*unsent, (self.timestamps.Isend(stamp, dest, tag), stamp)]
        return self._make_request(request, self, dest, tag, self._sending_until)

    def receive(self, request: MPI.Request, source: int, tag: int) -> MPI.Request:
        """Return the request that completes when the message has arrived."""
        if source == MPI.PROC_NULL:
            return request
        self._receives.append(self._make_request(request, self, source, tag))
        return self._receives[-1]

    def collective(self, request: MPI.Request, seconds: float) -> MPI.Request:
        """Return the request that completes `seconds` after all ranks have called this collective."""
        time = np.array([max(self.now(), self._sending_until, self._receiving_until)])
        called = self.timestamps.Iallreduce(MPI.IN_PLACE, time, MPI.MAX)
        emulated = self._make_request(request, self)
        emulated.seconds = seconds
        self._collectives.append((emulated, called, time))
        return emulated

    def now(self) -> float:
        """Return the time (s) on rank 0's clock."""
        return perf_counter() + self._offset

    def sleep_until(self, due: float) -> None:
        """Sleep until `due`, and let MPI make progress on messages meanwhile."""
        while True:
            left = due - self.now()
            if left <= 0:
                return
            if left > YIELD_S:
                sleep(min(left - YIELD_S / 2, PROGRESS_S))
                self.timestamps.Iprobe()
            else:
                yield_core()

    def update(self) -> None:
        """Set the due times of messages that have arrived, and of collectives that all ranks have called."""
        while self._collectives and self._collectives[0][1].Test():
            request, _, began = self._collectives.pop(0)
            self._collective_until = request.due = max(began[0], self._collective_until) + request.seconds
            self._sending_until = max(self._sending_until, request.due)
            self._receiving_until = max(self._receiving_until, request.due)
        self._receive_timestamps()
        for request in self._receives:
            if request.due == math.inf and request.has_arrived():
                due = self._claim(request)
                while due is None:  # it was sent right after the message
                    self._receive_timestamps()
                    due = self._claim(request)
                request.due = due

    def _receive_timestamps(self) -> None:
        """Compute the due times of messages, also of those without a receive, in the order of sending."""
        status, sent = MPI.Status(), list[tuple[float, float, int, int]]()
        while self.timestamps.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            stamp, source, tag = np.empty(2), status.Get_source(), status.Get_tag()
            self.timestamps.Recv(stamp, source, tag)
            sent.append((float(stamp[0]), float(stamp[1]), source, tag))
        for began, size, source, tag in sorted(sent):
            self._receiving_until = max(began, self._receiving_until) + self._takes(source, size)
            self._due.append((source, tag, self._receiving_until))

    def _claim(self, request: Any) -> float | None:
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
        if self._receives:
            self.update()
        for request in self._receives:
            if not request:
                self.sleep_until(request.due)
        self._receives = [request for request in self._receives if request]


def _through_a_port(name: str, p: int, kwargs: dict[str, Any]) -> float:
    """Return how many bytes of a collective pass a rank's port; at a root, as many for each other rank."""
    sent, received, others = kwargs.get("sendbuf"), kwargs.get("recvbuf"), (p - 1) / p
    match name:
        case "Bcast":
            return nbytes(kwargs["buf"])
        case "Allreduce":
            return 2 * others * nbytes(received)
        case "Allgather" | "Allgatherv" | "Alltoall":
            return others * nbytes(kwargs["recvbuf"][0] if name == "Allgatherv" else received, p)
        case "Gather":
            return nbytes(received, p) / p if is_in_place(sent) else nbytes(sent)
        case "Scatter":
            return nbytes(sent, p) / p if is_in_place(received) else nbytes(received)
    whole = received if is_in_place(sent) else sent
    return others * nbytes(whole, p) if name.startswith("Reduce_scatter") else nbytes(whole)


def _send(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> MPI.Request:
    comm._ports.catch_up()
    return comm._ports.send(call(), nbytes(kwargs["buf"]), kwargs["dest"], kwargs["tag"])


def _receive(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> MPI.Request:
    comm._ports.catch_up()
    return comm._ports.receive(call(), kwargs["source"], kwargs["tag"])


def _start(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> MPI.Request:
    comm._ports.catch_up()
    return comm._ports.collective(call(), comm._seconds(name, kwargs))


def _wait(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    """Do a blocking send or receive by its non-blocking twin."""
    status = kwargs.pop("status", None)
    getattr(comm, f"I{name.lower()}")(**kwargs).Wait(status)


def _exchange(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    receiving = comm.Irecv(kwargs["recvbuf"], kwargs["source"], kwargs["recvtag"])
    comm.Send(kwargs["sendbuf"], kwargs["dest"], kwargs["sendtag"])
    receiving.Wait(kwargs["status"])


def _delay(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    comm.Barrier()
    due = comm._ports.now() + comm._seconds(name, kwargs)
    call()
    note_wait(comm, lambda: comm._ports.sleep_until(due))


def _refuse(comm: EmulatedComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    raise NotImplementedError(
        f"{name} cannot be delayed on an emulated link: expected {', '.join(sorted(DELAYED))}, "
        "or a schedule of the lab"
    )


_STARTED = "Iallreduce", "Iallgather", "Igather", "Iscatter", "Ireduce_scatter", "Iallgatherv"
_BLOCKING = "Allreduce", "Allgather", "Alltoall", "Bcast", "Reduce", "Gather", "Scatter"
wrap(EmulatedComm, ("Isend", "Issend"), _send)
wrap(EmulatedComm, ("Irecv",), _receive)
wrap(EmulatedComm, ("Send", "Ssend", "Recv"), _wait)
wrap(EmulatedComm, ("Sendrecv",), _exchange)
wrap(EmulatedComm, _STARTED, _start)
wrap(EmulatedComm, (*_BLOCKING, "Reduce_scatter_block"), _delay)
DELAYED = [name for name in vars(EmulatedComm) if name[0].isupper() and name != "Free"]
# All other methods that are not bookkeeping.
_REFUSED = [
    *("Mprobe", "Improbe", "Recv_init", "Precv_init", "Create_cart", "Create_graph", "Create_dist_graph"),
    *("Create_dist_graph_adjacent", "Idup", "Dup_with_info", "Idup_with_info"),
    *(name for name in SENDING + LIBRARY if name[0].isupper() and "arrier" not in name),
]
wrap(EmulatedComm, [name for name in _REFUSED if name not in DELAYED], _refuse)
