"""An emulated link: a communicator that holds messages back as a slower network would.

For machines where no network can be had (`labkit hosts`), and for links that nobody has. As in the simulator
(`labkit.schedules.simulator`), a message of n bytes takes α + βn, both of the slower of both ends, and a
rank's port carries one message at a time each way: of two that it sends, or that come to it, the second waits
for the first. A message is on its way while its ranks compute, from when it is sent: whether its receiver is
there already makes no difference, as with a network that has room for it.

Each message is followed by a stamp, on a communicator of its own, that says when the sender's port began to
send. The receiver's port works out from that, in the order in which the messages were sent, when each has
arrived, and a receive is over no earlier. Ranks that wait sleep, but for the last fraction of a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

from mpi4py import MPI

from labkit.comm.emulation.links import Link, describe
from labkit.comm.emulation.ports import NAP_S, Ports
from labkit.comm.errors import raise_together
from labkit.comm.message import is_in_place, nbytes
from labkit.comm.wrapper import CommWrapper

# Neither bookkeeping nor anything that could be held back here.
REFUSED = (
    *("Bsend", "Ibsend", "Rsend", "Irsend", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
    *("Mprobe", "Improbe", "Send_init", "Ssend_init", "Bsend_init", "Rsend_init", "Recv_init"),
    *("Psend_init", "Precv_init", "Scan", "Exscan", "Alltoallv", "Alltoallw", "Reduce_scatter"),
    *("Allgatherv", "Gatherv", "Scatterv"),
    *("Iallreduce", "Iallgather", "Iallgatherv", "Ialltoall", "Ialltoallv", "Ialltoallw", "Ibcast"),
    *("Ireduce", "Ireduce_scatter", "Ireduce_scatter_block", "Igather", "Igatherv", "Iscatter"),
    *("Iscatterv", "Iscan", "Iexscan", "Allreduce_init", "Allgather_init", "Bcast_init", "Reduce_init"),
    *("Create_cart", "Create_graph", "Create_dist_graph"),
    *("Create_dist_graph_adjacent", "Idup", "Dup_with_info", "Idup_with_info"),
)


class EmulatedComm(CommWrapper):
    """A communicator around another, with emulated links: mpi4py's names, and messages that take time.

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

    links: list[Link]
    _ports: Ports

    def __new__(cls, comm: MPI.Intracomm | None = None, links: Link | Sequence[Link] = ()) -> Any:
        """Put emulated links around `comm`; a CollectiveError on every rank if they do not fit."""
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
        made._ports = Ports(comm, made.links)
        return made

    @property
    def emulated(self) -> str:
        """The links in a few words, to be shown with whatever was measured here."""
        return f"emulated links: {describe(self.links)}"

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        self._ports.make_up()
        return self._ports.send(super().Isend(buf, dest, tag), nbytes(buf), dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        self._ports.make_up()
        return self._ports.send(super().Issend(buf, dest, tag), nbytes(buf), dest, tag)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Issend(buf, dest, tag).Wait()

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        self._ports.make_up()
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
        coming = self.Irecv(recvbuf, source, recvtag)
        going = self.Isend(sendbuf, dest, sendtag)
        coming.Wait(status)
        going.Wait()

    def Barrier(self) -> None:
        """Wait, asleep, until all ranks have come here; it takes no emulated time."""
        self._ports.make_up()
        here = super().Ibarrier()
        while not here.Test():
            sleep(NAP_S)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        call = super().Allreduce
        size = 2 * self._part * nbytes(recvbuf)
        self._hold(lambda: call(sendbuf, recvbuf, op), size, latencies=2)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        call = super().Reduce_scatter_block
        whole = recvbuf if is_in_place(sendbuf) else sendbuf
        size = self._part * nbytes(whole, self.size)
        self._hold(lambda: call(sendbuf, recvbuf, op), size)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        call = super().Allgather
        self._hold(lambda: call(sendbuf, recvbuf), self._part * nbytes(recvbuf, self.size))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        call = super().Alltoall
        self._hold(lambda: call(sendbuf, recvbuf), self._part * nbytes(recvbuf, self.size))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        call = super().Bcast
        self._hold(lambda: call(buf, root), nbytes(buf))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        call = super().Reduce
        size = nbytes(recvbuf if is_in_place(sendbuf) else sendbuf)
        self._hold(lambda: call(sendbuf, recvbuf, op, root), size)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        call = super().Gather
        size = nbytes(recvbuf, self.size) / self.size if is_in_place(sendbuf) else nbytes(sendbuf)
        self._hold(lambda: call(sendbuf, recvbuf, root), size, root=root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        call = super().Scatter
        size = nbytes(sendbuf, self.size) / self.size if is_in_place(recvbuf) else nbytes(recvbuf)
        self._hold(lambda: call(sendbuf, recvbuf, root), size, root=root)

    @property
    def _part(self) -> float:
        return (self.size - 1) / self.size

    def _hold(
        self, collective: Callable[[], object], size: float, *, latencies: int = 1, root: int | None = None
    ) -> None:
        """Carry out a collective, and leave when its bytes have passed every port, the root's p-1 times."""
        self.Barrier()
        due = self._ports.now()
        if self.size > 1:
            latency = max(link.latency_s for link in self.links)
            sizes = [size * (self.size - 1 if rank == root else 1) for rank in range(self.size)]
            passing = [n * link.s_per_byte for n, link in zip(sizes, self.links, strict=True)]
            due += latencies * math.ceil(math.log2(self.size)) * latency + max(passing)
        collective()
        self._ports.sleep_until(due)

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
            f"{name} cannot be held back on an emulated link: expected {', '.join(sorted(HELD_BACK))}, "
            "or a schedule of the lab"
        )

    return refuse


HELD_BACK = [name for name in vars(EmulatedComm) if name[0].isupper() and name != "Free"]
for _name in REFUSED:
    setattr(EmulatedComm, _name, _refusing(_name))
