"""The all-reduce algorithms that `labkit bench collectives` compares, each as a plain sum in place.

These are the averaging algorithms (`labkit.comm.ALGORITHMS`) with weight 1 on every rank: then they multiply
nothing. The MPI library's own Allreduce is called here without any code of the lab.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import numpy as np
import psutil
from mpi4py import MPI

from labkit.bench.pytorch import is_installed
from labkit.comm import ALGORITHMS, run, shared_array, tags
from labkit.comm.timing import Allreduce, Sum, print_progress
from labkit.schedules import hierarchical

TIMEOUT = timedelta(seconds=60)  # for the ranks to find one another, and for each all_reduce
LOOPBACK = "127.0.0.1"


@contextmanager
def allreduce_algorithms(comm: MPI.Intracomm) -> Iterator[dict[str, Allreduce]]:
    """Yield the algorithms that can run on these ranks, by name, the baselines first. Collective."""
    with gloo(comm) as gloo_all_reduce:
        found = {"mpi-allreduce": Allreduce(plain_allreduce), "hand-written": Allreduce(ring_by_hand)}
        if gloo_all_reduce:
            found["gloo"] = Allreduce(gloo_all_reduce)
        arrays = {"shared-memory": shared_array, "auto": _array_of_auto}
        found |= {
            name: Allreduce(algorithm, arrays.get(name))
            for name, algorithm in ALGORITHMS.items()
            if name != "mpi"
        }
        nodes = tuple(comm.allgather(MPI.Get_processor_name()))
        if 1 < len(set(nodes)) < comm.size:
            schedule = hierarchical(comm.size, nodes)
            found["hierarchical"] = Allreduce(lambda comm, array, weight: run(comm, schedule, array))
        found["shared-memory-copied"] = Allreduce(ALGORITHMS["shared-memory"], _private_array)
        yield found


def plain_allreduce(comm: MPI.Intracomm, array: np.ndarray, weight: float = 1.0) -> None:
    """Sum in place by the MPI library's own Allreduce, whatever the weight."""
    comm.Allreduce(MPI.IN_PLACE, array)


def ring_by_hand(comm: MPI.Intracomm, array: np.ndarray, weight: float = 1.0) -> None:
    """Leave the sum of all ranks' arrays in `array`: reduce-scatter, then allgather, along the ring.

    This ring is written out without a schedule, so the comparison shows what schedules cost. Shape: (n,),
    contiguous, the same n and dtype on all ranks. The weight changes nothing. Collective.
    """
    p, n, rank = comm.size, array.size, comm.rank
    right, left = (rank + 1) % p, (rank - 1) % p
    chunks = [array[i * n // p : (i + 1) * n // p] for i in range(p)]
    buffer = np.empty(-(-n // p), array.dtype)
    for k in range(1, p):
        outgoing, incoming = chunks[(rank - k) % p], chunks[(rank - k - 1) % p]
        received = buffer[: incoming.size]
        request = comm.Irecv(received, left, tags.RING_BY_HAND)
        comm.Send(outgoing, right, tags.RING_BY_HAND)
        request.Wait()
        incoming += received
    for k in range(p - 1):
        request = comm.Irecv(chunks[(rank - k - 1) % p], left, tags.RING_BY_HAND)
        comm.Send(chunks[(rank - k) % p], right, tags.RING_BY_HAND)
        request.Wait()


def _array_of_auto(comm: MPI.Intracomm, n: int) -> np.ndarray | None:
    """Return n entries where the algorithm that `auto` chooses is fastest; None if any will do."""
    return ALGORITHMS["auto"].allocate(comm, n, np.dtype(np.float32))


def _private_array(comm: MPI.Intracomm, n: int) -> np.ndarray:
    """Return n entries in this rank's own memory, if there is room for the shared copy, too."""
    shared_array(comm, n)
    return np.empty(n, np.float32)


@contextmanager
def gloo(comm: MPI.Intracomm) -> Iterator[Sum | None]:
    """Join all ranks in a gloo process group for the block; yield gloo's all_reduce. Collective.

    Yield None if a rank has no PyTorch, which contains gloo. Yield None as well if gloo does not start; then
    rank 0 prints why to standard error.
    """
    if not all(comm.allgather(is_installed())):
        yield None
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that the hosts are in no name server
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    card, address = _network(comm)
    if card:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", card)
    url = comm.bcast(f"tcp://{address}:{_free_port(address)}" if comm.rank == 0 else None)
    fault = None
    try:
        torch.distributed.init_process_group(
            "gloo", init_method=url, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT
        )
    except (RuntimeError, ValueError, OSError) as error:
        fault = f"rank {comm.rank}: {error}"
    faults = [found for found in comm.allgather(fault) if found]
    if faults:
        print_progress(comm, f"gloo is left out, because it did not start: {faults[0]}")

    def all_reduce(comm: MPI.Intracomm, array: np.ndarray, weight: float) -> None:
        torch.distributed.all_reduce(torch.from_numpy(array))

    try:
        yield None if faults else all_reduce
    finally:
        if fault is None:
            torch.distributed.destroy_process_group()


def _network(comm: MPI.Intracomm) -> tuple[str, str]:
    """Return the network card to use and this rank's address on it; on a single host, no card."""
    if len(set(comm.allgather(MPI.Get_processor_name()))) == 1:
        return "", LOOPBACK
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if entry.family == socket.AF_INET and name in up and not entry.address.startswith("127."):
                return name, entry.address
    return "", LOOPBACK


def _free_port(address: str) -> int:
    with closing(socket.socket()) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
