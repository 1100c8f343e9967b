"""An emulated link: a communicator that holds messages back as a slower network would.

For machines where no network can be had (`labkit hosts`), and for links that nobody has. As in the simulator
(`labkit.schedules.simulate`), a message of n bytes takes α + βn, both of the slower of both ends, and a
rank's port carries one message at a time each way: of two that it sends, or that come to it, the second waits
for the first. A message is on its way while its ranks compute, from when it is sent: whether its receiver is
there already makes no difference, as with a network that has room for it.

Each message is followed by a stamp, on a communicator of its own, that says when the sender's port began to
send. The receiver's port works out from that, in the order in which the messages were sent, when each has
arrived, and a receive is over no earlier. Ranks that wait sleep, but for the last fraction of a millisecond.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from labkit.comm.buffers import byte_count, is_in_place
from labkit.comm.clock import offset, one_machine
from labkit.comm.errors import raise_together
from labkit.comm.links import Link, describe

NAP_S = 1e-4  # between looks whether a message has come
LOOK_S = 1e-3  # asleep at most, for MPI moves other messages only when it is called
YIELD_S = 2e-4  # the last bit, for sleep oversleeps

# Neither bookkeeping nor anything that could be held back here.
REFUSED = (
    *("Bsend", "Ibsend", "Rsend", "Irsend", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
    *("Mprobe", "Improbe", "Send_init", "Ssend_init", "Bsend_init", "Rsend_init", "Recv_init"),
    *("Psend_init", "Precv_init", "Scan", "Exscan", "Alltoallv", "Alltoallw", "Reduce_scatter"),
    *("Allgatherv", "Gatherv", "Scatterv"),
    *("Iallreduce", "Iallgather", "Iallgatherv", "Ialltoall", "Ialltoallv", "Ialltoallw", "Ibcast"),
    *("Ireduce", "Ireduce_scatter", "Ireduce_scatter_block", "Igather", "Igatherv", "Iscatter"),
    *("Iscatterv", "Iscan", "Iexscan", "Allreduce_init", "Allgather_init", "Bcast_init", "Reduce_init"),
    *("Split_type", "Create", "Create_group", "Create_cart", "Create_graph", "Create_dist_graph"),
    *("Create_dist_graph_adjacent", "Clone", "Idup", "Dup_with_info", "Idup_with_info"),
)


class EmulatedRequest(MPI.Request):
    """A message under way on an emulated link; over when `due` (s, on the clock of rank 0), not before."""

    def __new__(cls, request: MPI.Request, comm: EmulatedComm, *envelope: Any) -> EmulatedRequest:
        """Take over the request of the message itself."""
        return super().__new__(cls, request)

    def __init__(
        self,
        request: MPI.Request,
        comm: EmulatedComm,
        source: int = -1,
        tag: int = -1,
        due: float | None = None,
    ) -> None:
        self.comm, self.source, self.tag, self.due = comm, source, tag, due

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait, asleep, until the message is over."""
        while not self.is_here():
            sleep(NAP_S)
        assert self.due is not None
        self.comm.sleep_until(self.due)
        while not super().Test(status):
            sleep(NAP_S)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the message is over."""
        return self.is_here() and self.due <= self.comm.now() and super().Test(status)  # type: ignore[operator]

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the message is over, and keep the request."""
        return self.is_here() and self.due <= self.comm.now() and super().Get_status(status)  # type: ignore[operator]

    def is_here(self) -> bool:
        """Tell whether it is known when the message is over."""
        if self.due is None:
            self.comm.take_in()
        return self.due is not None

    def has_come(self) -> bool:
        """Tell whether the message itself, without its delay, has come."""
        return not self or super().Get_status()


class EmulatedComm(MPI.Intracomm):
    """Another communicator's ranks, joined by emulated links: mpi4py's names, and messages that take time.

    `links` is one for all ranks, or a sequence with one for each. Making one is collective.

    Held back: Send, Isend, Ssend, Issend, Recv, Irecv, Sendrecv, and with them schedules (`labkit.comm.run`).
    The MPI library's own collectives move messages that nobody sees. They are carried out, and all ranks
    leave when the best algorithms known would be done, counted from the last rank's coming: ⌈log₂ p⌉
    latencies (Allreduce twice as many) and the bytes that have to pass a rank's port, at the slowest port: of
    n bytes in the whole array 2(p-1)/p·n for Allreduce, (p-1)/p·n for Allgather, Alltoall and
    Reduce_scatter_block, n for Bcast and Reduce; of Gather and Scatter (p-1)/p·n at the root, n/p elsewhere.

    Barriers and methods that pickle objects (lower case) take no emulated time: in the lab they carry
    bookkeeping. What can be neither held back nor left alone is a NotImplementedError.

    `MPI.Request.Waitall` and its sisters look past Python, so they do not wait for the link; what they left
    out is made up for at the next call on the communicator. `request.Wait()` and `request.Test()` are exact.
    """

    def __new__(cls, comm: MPI.Intracomm, links: Link | Sequence[Link]) -> EmulatedComm:
        """Share the communicator's handle."""
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm, links: Link | Sequence[Link]) -> None:
        self.links = [links] * comm.size if isinstance(links, Link) else list(links)
        given = [(link.latency_s, link.bytes_per_s) for link in self.links]
        fault = None
        if len(given) != comm.size:
            fault = f"expected a link for each of the {comm.size} ranks, got {len(given)}"
        elif given != comm.bcast(given):
            fault = "expected the same links as on rank 0"
        raise_together(comm, fault)
        self._comm = comm
        self._stamps = MPI.Intracomm(comm).Dup()
        self._ahead = 0.0 if one_machine(comm) else offset(comm)
        self._sending_until = self._receiving_until = -math.inf
        self._coming: list[EmulatedRequest] = []  # nobody knows yet when they are due
        self._open: list[EmulatedRequest] = []  # has come, and is waited for by nobody yet
        self._stamping: list[tuple[MPI.Request, np.ndarray]] = []

    @property
    def emulated(self) -> str:
        """The links in a few words, to be shown with whatever was measured here."""
        return f"emulated links: {describe(self.links)}"

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
        """Work out when the messages that have come are due: the port takes them in the order of sending."""
        come = [request for request in self._coming if request.has_come()]
        arrived = []
        for request in come:
            stamp, status = np.empty(2), MPI.Status()
            # Sent right behind the message, so it is here as well.
            self._stamps.Recv(stamp, request.source, request.tag, status)
            arrived.append((*stamp.tolist(), status.Get_source(), request))
        for began, size, source, request in sorted(arrived, key=lambda one: one[0]):
            self._receiving_until = max(began, self._receiving_until) + self._takes(source, size)
            request.due = self._receiving_until
        if come:
            self._coming = [request for request in self._coming if request.due is None]
            self._open += come

    def _takes(self, peer: int, size: float) -> float:
        """Return for how long (s) a message keeps both ports busy: α + βn, each of the slower end."""
        if peer == self.rank:
            return 0.0
        ends = self.links[self.rank], self.links[peer]
        return max(end.latency_s for end in ends) + size * max(end.s_per_byte for end in ends)

    def _make_up(self) -> None:
        """Wait for what MPI.Request.Waitall or the like have not waited for."""
        if self._coming:
            self.take_in()
        if self._open:
            over = [request for request in self._open if not request]
            self._open = [request for request in self._open if request]
            for request in over:
                assert request.due is not None
                self.sleep_until(request.due)

    def _start(self, send: Callable[..., MPI.Request], buf: Any, dest: int, tag: int) -> MPI.Request:
        self._make_up()
        request = send(buf, dest, tag)
        if dest == MPI.PROC_NULL:
            return request
        size = byte_count(buf)
        began = max(self.now(), self._sending_until)
        self._sending_until = began + self._takes(dest, size)
        stamp = np.array([began, size])
        self._stamping = [one for one in self._stamping if not one[0].Test()]
        self._stamping.append((self._stamps.Isend(stamp, dest, tag), stamp))
        return EmulatedRequest(request, self, dest, tag, self._sending_until)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        return self._start(self._comm.Isend, buf, dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        return self._start(self._comm.Issend, buf, dest, tag)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Issend(buf, dest, tag).Wait()

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        self._make_up()
        request = self._comm.Irecv(buf, source, tag)
        if source == MPI.PROC_NULL:
            return request
        self._coming.append(EmulatedRequest(request, self, source, tag))
        return self._coming[-1]

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        self.Irecv(buf, source, tag).Wait(status)

    def Sendrecv(  # noqa: PLR0917 (mpi4py's own)
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        coming = self.Irecv(recvbuf, source, recvtag)
        going = self.Isend(sendbuf, dest, sendtag)
        coming.Wait(status)
        going.Wait()

    def Barrier(self) -> None:
        """Wait, asleep, until all ranks have come here; it takes no emulated time."""
        self._make_up()
        here = self._comm.Ibarrier()
        while not here.Test():
            sleep(NAP_S)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        size = 2 * self._part * byte_count(recvbuf)
        self._hold(lambda: self._comm.Allreduce(sendbuf, recvbuf, op), size, latencies=2)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        whole = recvbuf if is_in_place(sendbuf) else sendbuf
        size = self._part * byte_count(whole)
        self._hold(lambda: self._comm.Reduce_scatter_block(sendbuf, recvbuf, op), size)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._hold(lambda: self._comm.Allgather(sendbuf, recvbuf), self._part * byte_count(recvbuf))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._hold(lambda: self._comm.Alltoall(sendbuf, recvbuf), self._part * byte_count(recvbuf))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self._hold(lambda: self._comm.Bcast(buf, root), byte_count(buf))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        size = byte_count(recvbuf if is_in_place(sendbuf) else sendbuf)
        self._hold(lambda: self._comm.Reduce(sendbuf, recvbuf, op, root), size)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        size = byte_count(recvbuf) / self.size if is_in_place(sendbuf) else byte_count(sendbuf)
        self._hold(lambda: self._comm.Gather(sendbuf, recvbuf, root), size, root=root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        size = byte_count(sendbuf) / self.size if is_in_place(recvbuf) else byte_count(recvbuf)
        self._hold(lambda: self._comm.Scatter(sendbuf, recvbuf, root), size, root=root)

    @property
    def _part(self) -> float:
        return (self.size - 1) / self.size

    def _hold(
        self, collective: Callable[[], object], size: float, *, latencies: int = 1, root: int | None = None
    ) -> None:
        """Carry out a collective, and leave when its bytes have passed every port, the root's p-1 times."""
        self.Barrier()
        due = self.now()
        if self.size > 1:
            latency = max(link.latency_s for link in self.links)
            sizes = [size * (self.size - 1 if rank == root else 1) for rank in range(self.size)]
            passing = [n * link.s_per_byte for n, link in zip(sizes, self.links, strict=True)]
            due += latencies * math.ceil(math.log2(self.size)) * latency + max(passing)
        collective()
        self.sleep_until(due)

    def Dup(self, info: MPI.Info | None = None) -> EmulatedComm:
        return EmulatedComm(self._comm.Dup(info), self.links)

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        part = MPI.Intracomm(self._comm.Split(color, key))
        if part == MPI.COMM_NULL:
            return part
        return EmulatedComm(part, [self.links[rank] for rank in part.allgather(self.rank)])

    def Free(self) -> None:
        self._stamps.Free()
        super().Free()


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: EmulatedComm, *given: object, **named: object) -> None:
        raise NotImplementedError(
            f"{name} cannot be held back on an emulated link: expected {', '.join(sorted(HELD_BACK))}, "
            "or a schedule of the lab"
        )

    return refuse


HELD_BACK = [
    name for name in vars(EmulatedComm) if name[0].isupper() and name not in ("Dup", "Split", "Free")
]
for _name in REFUSED:
    setattr(EmulatedComm, _name, _refusing(_name))
