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
from time import sleep
from typing import Any

from mpi4py import MPI

from labkit.comm.emulation.links import Link, describe
from labkit.comm.emulation.ports import POLL_S, Ports
from mpiwatch.errors import raise_together
from mpiwatch.message import is_in_place, nbytes
from mpiwatch.wrapper import CommWrapper

# Methods that are neither bookkeeping nor can be delayed.
REFUSED = (
    *("Bsend", "Ibsend", "Rsend", "Irsend", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
    *("Mprobe", "Improbe", "Send_init", "Ssend_init", "Bsend_init", "Rsend_init", "Recv_init"),
    *("Psend_init", "Precv_init", "Scan", "Exscan", "Alltoallv", "Alltoallw", "Reduce_scatter"),
    *("Allgatherv", "Gatherv", "Scatterv"),
    *("Iallgatherv", "Ialltoall", "Ialltoallv", "Ialltoallw", "Ibcast"),
    *("Ireduce", "Ireduce_scatter", "Ireduce_scatter_block", "Igather", "Igatherv", "Iscatter"),
    *("Iscatterv", "Iscan", "Iexscan", "Allreduce_init", "Allgather_init", "Bcast_init", "Reduce_init"),
    *("Create_cart", "Create_graph", "Create_dist_graph"),
    *("Create_dist_graph_adjacent", "Idup", "Dup_with_info", "Idup_with_info"),
)


class EmulatedComm(CommWrapper):
    """A communicator around another one whose messages take time on emulated links.

    `links` is one link for all ranks, or a sequence with one link for each rank. Making one is collective.

    Send, Isend, Ssend, Issend, Recv, Irecv and Sendrecv are delayed, and with them schedules
    (`labkit.comm.run`). The MPI library sends the messages of its own collectives unseen. So these are done
    without delay, and then all ranks wait for as long as the best known algorithms would take from the moment
    the last rank joined: ⌈log₂ p⌉ latencies (twice as many for Allreduce), and the bytes that have to pass a
    port, at the slowest port. Of n bytes in the whole array these are 2(p-1)/p·n for Allreduce, (p-1)/p·n for
    Allgather, Alltoall and Reduce_scatter_block, n for Bcast and Reduce; for Gather and Scatter (p-1)/p·n at
    the root and n/p elsewhere. Iallreduce and Iallgather take as long as Allreduce and Allgather, and one
    that is started before another has completed begins after it.

    Barriers and methods that pickle objects (lower case) take no emulated time, since in the lab they do
    bookkeeping. Methods that can neither be delayed nor count as bookkeeping raise NotImplementedError.

    `MPI.Request.Waitall` and similar functions bypass Python and do not wait for the link; the next call on
    the communicator waits instead. `request.Wait()` and `request.Test()` are exact.
    """

    copies_requests = True
    links: list[Link]
    _ports: Ports

    def __new__(cls, comm: MPI.Intracomm | None = None, links: Link | Sequence[Link] = ()) -> Any:
        """Put emulated links around `comm`; raise CollectiveError on every rank if they do not fit."""
        made = super().__new__(cls, comm)
        if comm is None:
            return made
        made.links = [links] * comm.size if isinstance(links, Link) else list(links)
        given = [(link.latency_s, link.bytes_per_s) for link in made.links]
        fault = None
        if len(given) != comm.size:
            fault = f"expected a link for each of the {comm.size} ranks, got {len(given)}"
        elif given != MPI.Intracomm.bcast(comm, given):
            fault = "expected the same links as on rank 0"
        raise_together(MPI.Intracomm(comm), fault)
        made._ports = Ports(made, made.links)
        return made

    @property
    def emulated(self) -> str:
        """Return the links in one phrase, to be shown with every measurement made on them."""
        return f"emulated links: {describe(self.links)}"

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        self._ports.catch_up()
        return self._ports.send(super().Isend(buf, dest, tag), nbytes(buf), dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        self._ports.catch_up()
        return self._ports.send(super().Issend(buf, dest, tag), nbytes(buf), dest, tag)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Issend(buf, dest, tag).Wait()

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        self._ports.catch_up()
        return self._ports.receive(super().Irecv(buf, source, tag), source, tag)

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
        receiving = self.Irecv(recvbuf, source, recvtag)
        sending = self.Isend(sendbuf, dest, sendtag)
        receiving.Wait(status)
        sending.Wait()

    def Barrier(self) -> None:
        """Wait, asleep, until all ranks have called this. Takes no emulated time."""
        self._ports.catch_up()
        request = super().Ibarrier()
        while not request.Test():
            sleep(POLL_S)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        call = super().Allreduce
        size = 2 * self._part * nbytes(recvbuf)
        self._delay(lambda: call(sendbuf, recvbuf, op), size, latencies=2)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        self._ports.catch_up()
        seconds = self._seconds(2 * self._part * nbytes(recvbuf), latencies=2)
        return self._ports.collective(super().Iallreduce(sendbuf, recvbuf, op), seconds)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        self._ports.catch_up()
        seconds = self._seconds(self._part * nbytes(recvbuf, self.size))
        return self._ports.collective(super().Iallgather(sendbuf, recvbuf), seconds)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        call = super().Reduce_scatter_block
        whole = recvbuf if is_in_place(sendbuf) else sendbuf
        size = self._part * nbytes(whole, self.size)
        self._delay(lambda: call(sendbuf, recvbuf, op), size)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        call = super().Allgather
        self._delay(lambda: call(sendbuf, recvbuf), self._part * nbytes(recvbuf, self.size))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        call = super().Alltoall
        self._delay(lambda: call(sendbuf, recvbuf), self._part * nbytes(recvbuf, self.size))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        call = super().Bcast
        self._delay(lambda: call(buf, root), nbytes(buf))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        call = super().Reduce
        size = nbytes(recvbuf if is_in_place(sendbuf) else sendbuf)
        self._delay(lambda: call(sendbuf, recvbuf, op, root), size)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        call = super().Gather
        size = nbytes(recvbuf, self.size) / self.size if is_in_place(sendbuf) else nbytes(sendbuf)
        self._delay(lambda: call(sendbuf, recvbuf, root), size, root=root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        call = super().Scatter
        size = nbytes(sendbuf, self.size) / self.size if is_in_place(recvbuf) else nbytes(recvbuf)
        self._delay(lambda: call(sendbuf, recvbuf, root), size, root=root)

    @property
    def _part(self) -> float:
        return (self.size - 1) / self.size

    def _delay(
        self, collective: Callable[[], object], size: float, *, latencies: int = 1, root: int | None = None
    ) -> None:
        """Do a collective; return after the time that it takes from when all ranks have called it."""
        self.Barrier()
        due = self._ports.now() + self._seconds(size, latencies, root)
        collective()
        self._ports.sleep_until(due)

    def _seconds(self, size: float, latencies: int = 1, root: int | None = None) -> float:
        """Return the time that `size` bytes need at a port (at the root p-1 times), with latencies."""
        if self.size == 1:
            return 0.0
        latency = max(link.latency_s for link in self.links)
        sizes = [size * (self.size - 1 if rank == root else 1) for rank in range(self.size)]
        transfer_s = [n * link.s_per_byte for n, link in zip(sizes, self.links, strict=True)]
        return latencies * math.ceil(math.log2(self.size)) * latency + max(transfer_s)

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.links = [self.links[rank] for rank in MPI.Intracomm.allgather(new, self.rank)]
        new._ports = Ports(new, new.links)

    def Free(self) -> None:
        self._ports.free()
        super().Free()


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: EmulatedComm, *given: object, **named: object) -> None:
        raise NotImplementedError(
            f"{name} cannot be delayed on an emulated link: expected {', '.join(sorted(DELAYED))}, "
            "or a schedule of the lab"
        )

    return refuse


DELAYED = [name for name in vars(EmulatedComm) if name[0].isupper() and name != "Free"]
for _name in REFUSED:
    setattr(EmulatedComm, _name, _refusing(_name))
