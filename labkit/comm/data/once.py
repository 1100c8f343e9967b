"""Work that one rank of each node does while the others wait: fetching files to the node's disk.

The rank that works sends heartbeats to the ranks that wait. So these can wait for as long as a large download
takes, and still find out when the working rank is stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from mpi4py import MPI

from labkit.comm import tags
from mpiwatch.errors import raise_together
from mpiwatch.wording import ranks_phrase

TIMEOUT_S = 120.0  # without a heartbeat; a download itself gives up earlier on a silent server
HEARTBEAT_S = 1.0
POLL_S = 0.005

Heartbeat = Callable[[], None]


def once_per_node(
    comm: MPI.Intracomm, work: Callable[[Heartbeat], object], timeout_s: float = TIMEOUT_S
) -> None:
    """Call `work` on one rank of each node; return on every rank when all calls are over.

    Rank 0 works first, then the first rank of every other node, all at the same time: where nodes share a
    disk, these find the work done. `work` receives a function that it should call often; at most once a
    second, a call sends a heartbeat.

    Collective. Raise CollectiveError on every rank if `work` raised an exception. A waiting rank raises
    TimeoutError, with the silent ranks, if it has received no heartbeat for `timeout_s` seconds.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    first = node.rank == 0
    node.Free()
    firsts = [rank for rank, is_first in enumerate(comm.allgather(first)) if is_first]
    own = comm.Dup()  # so that none of the caller's messages is taken for a heartbeat
    for workers in firsts[:1], firsts[1:]:
        fault = _do(own, work) if comm.rank in workers else None
        _wait_for(own, [rank for rank in workers if rank != comm.rank], timeout_s)
        raise_together(comm, fault)
    own.Free()


def _do(comm: MPI.Intracomm, work: Callable[[Heartbeat], object]) -> str | None:
    """Do the work, send all other ranks heartbeats and a last message; return the fault, if any."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent: list[MPI.Request] = []
    last = monotonic()

    def send(done: bool) -> None:
        sent.extend(comm.isend(done, rank, tags.HEARTBEAT) for rank in others)

    def heartbeat() -> None:
        nonlocal last
        if monotonic() - last > HEARTBEAT_S:
            last = monotonic()
            send(False)

    fault = None
    try:
        work(heartbeat)
    except (OSError, ValueError) as error:  # their messages need no type in front
        fault = str(error)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    send(True)
    MPI.Request.Waitall(sent)
    return fault


def _wait_for(comm: MPI.Intracomm, workers: list[int], timeout_s: float) -> None:
    """Wait, mostly asleep, until each of these ranks has sent its last message."""
    last_heard = dict.fromkeys(workers, monotonic())
    status = MPI.Status()
    while last_heard:
        if comm.Iprobe(MPI.ANY_SOURCE, tags.HEARTBEAT, status):
            source = status.Get_source()
            if comm.recv(source=source, tag=tags.HEARTBEAT):
                del last_heard[source]
            else:
                last_heard[source] = monotonic()
        elif silent := [rank for rank, when in last_heard.items() if monotonic() - when > timeout_s]:
            raise TimeoutError(
                f"rank {comm.rank} waits for {ranks_phrase(silent)}: expected a heartbeat every "
                f"{HEARTBEAT_S:.0f} s, got none for {timeout_s:.0f} s"
            )
        else:
            sleep(POLL_S)
