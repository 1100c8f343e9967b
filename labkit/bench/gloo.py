"""gloo's all_reduce, from PyTorch where that is installed, on the same ranks. The lab does not need it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import numpy as np
import psutil
from mpi4py import MPI

from labkit.bench.peers import pytorch
from labkit.bench.rounds import note

PATIENCE = timedelta(seconds=60)  # for all ranks to find one another; loading PyTorch takes seconds
LOOPBACK = "127.0.0.1"


@contextmanager
def gloo(comm: MPI.Intracomm) -> Iterator[Callable[[MPI.Intracomm, np.ndarray], None] | None]:
    """Join all ranks to a gloo group for the block; yield its all_reduce, or None where there is none.

    Collective. Where gloo does not start although PyTorch is there, rank 0 says why on standard error.
    """
    if not all(comm.allgather(pytorch())):
        yield None
        return
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    link, address = _link(comm)
    if link:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", link)
    place = comm.bcast(f"tcp://{address}:{_free_port(address)}" if comm.rank == 0 else None)
    fault = None
    try:
        torch.distributed.init_process_group(
            "gloo", init_method=place, rank=comm.rank, world_size=comm.size, timeout=PATIENCE
        )
    except (RuntimeError, ValueError, OSError) as error:
        fault = f"rank {comm.rank}: {error}"
    faults = [said for said in comm.allgather(fault) if said]
    if faults:
        note(comm, f"without gloo, which did not start: {faults[0]}")

    def all_reduce(comm: MPI.Intracomm, array: np.ndarray) -> None:
        torch.distributed.all_reduce(torch.from_numpy(array))

    try:
        yield None if faults else all_reduce
    finally:
        if fault is None:
            torch.distributed.destroy_process_group()


def _link(comm: MPI.Intracomm) -> tuple[str, str]:
    """Return the network interface to use and this rank's address on it; no interface on a single host."""
    if len(set(comm.allgather(MPI.Get_processor_name()))) == 1:
        return "", LOOPBACK
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET and name in up and not one.address.startswith("127."):
                return name, one.address
    return "", LOOPBACK


def _free_port(address: str) -> int:
    with closing(socket.socket()) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
