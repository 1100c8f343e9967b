"""Work that one rank of each node does, while the others wait for it: bringing files to the node's disk.

The ranks that wait hear from the one that works. So they can wait for as long as a big download takes, and
yet not for ever for a rank that is stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from mpi4py import MPI

from labkit.comm import tags
from labkit.comm.errors import raise_together

PATIENCE_S = 120.0  # without a sign of life; a download itself gives up earlier on a silent server
SIGN_EVERY_S = 1.0
POLL_S = 0.005

Alive = Callable[[], None]


def once_per_node(
    comm: MPI.Intracomm, work: Callable[[Alive], object], patience_s: float = PATIENCE_S
) -> None:
    """Call `work` on one rank of each node, and return on every rank when all of it is done.

    First on rank 0, then on the first rank of every other node at the same time: where the nodes share a
    disk, these find the work done. `work` is given a function to call again and again, as a sign of life.

    Collective. An exception in `work` is a CollectiveError on every rank. Where no sign of life has come for
    `patience_s` seconds, the ranks that wait raise a TimeoutError that names the silent ones.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    first = node.rank == 0
    node.Free()
    firsts = [rank for rank, is_first in enumerate(comm.allgather(first)) if is_first]
    own = comm.Dup()  # no message of the caller's can be taken for a sign of life
    for workers in firsts[:1], firsts[1:]:
        fault = _do(own, work) if comm.rank in workers else None
        _wait_for(own, [rank for rank in workers if rank != comm.rank], patience_s)
        raise_together(comm, fault)
    own.Free()


def _do(comm: MPI.Intracomm, work: Callable[[Alive], object]) -> str | None:
    """Do the work, telling all other ranks of every sign of life and of the end; return what went wrong."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent: list[MPI.Request] = []
    last = monotonic()

    def tell(done: bool) -> None:
        sent.extend(comm.isend(done, rank, tags.SIGN_OF_LIFE) for rank in others)

    def alive() -> None:
        nonlocal last
        if monotonic() - last > SIGN_EVERY_S:
            last = monotonic()
            tell(False)

    fault = None
    try:
        work(alive)
    except (OSError, ValueError) as error:  # these say what is wrong themselves
        fault = str(error)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    tell(True)
    MPI.Request.Waitall(sent)
    return fault


def _wait_for(comm: MPI.Intracomm, workers: list[int], patience_s: float) -> None:
    """Wait, mostly asleep, until each of these ranks has told that it is done."""
    heard = dict.fromkeys(workers, monotonic())
    status = MPI.Status()
    while heard:
        if comm.Iprobe(MPI.ANY_SOURCE, tags.SIGN_OF_LIFE, status):
            source = status.Get_source()
            if comm.recv(source=source, tag=tags.SIGN_OF_LIFE):
                del heard[source]
            else:
                heard[source] = monotonic()
        elif silent := [rank for rank, when in heard.items() if monotonic() - when > patience_s]:
            raise TimeoutError(
                f"rank {comm.rank} waits for rank {', '.join(map(str, silent))}, expected a sign of life "
                f"every {SIGN_EVERY_S:.0f} s, got none for {patience_s:.0f} s"
            )
        else:
            sleep(POLL_S)
