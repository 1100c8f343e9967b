"""`labkit bench collectives`: all-reduce algorithms, each as a plain sum in place, and their bandwidths.

These are the averaging algorithms (`labkit.comm.ALGORITHMS`) with weight 1 on every rank: then they multiply
nothing. They are prepared for their communicator and size before they are timed, as before a training loop.
The MPI library's own Allreduce is called here without any code of the lab.

algbw is bytes / time. busbw is algbw · 2(p-1)/p, because each rank must send at least 2(p-1)/p of the bytes
in an all-reduce. So busbw can be compared with a link's bandwidth for any p.
Source: nccl-tests, PERFORMANCE.md.

A cost model is fitted to the times of each schedule.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial

import numpy as np
import psutil
from mpi4py import MPI

from labkit import units
from labkit.bench.pytorch import is_installed
from labkit.bench.rows import Row, aligned, rows_of
from labkit.comm import ALGORITHMS, Averaging, run, shared_array, tags
from labkit.comm.timing import (
    ITEM,
    Allreduce,
    Sum,
    Times,
    count_hosts,
    measure,
    print_progress,
    progress,
)
from labkit.schedules import ALLREDUCE, CostModel, FittedModel, Measurement, fit_cost_model, hierarchical

SIZES = tuple(4**k for k in range(1, 14))  # 4 B … 64 MiB
BASELINES = "mpi-allreduce", "gloo", "hand-written"
NO_CHOICE = "auto", "gloo", "hand-written", "hierarchical", "shared-memory-copied"  # not of the best
TIMEOUT = timedelta(seconds=60)  # of gloo, for the ranks to find one another, and for each all_reduce
LOOPBACK = "127.0.0.1"
# A full Ethernet frame has 1,514 bytes: its own header, IP's and TCP's leave 1,448 for data.
FRAME = 1514 / 1448
POINTS = 100  # of a fitted curve
Curves = dict[str, list[float]]


def compare(
    comm: MPI.Intracomm,
    sizes: Sequence[int] | None,
    seconds: float,
    bandwidth: float | None,
) -> tuple[list[Row], str, Times, tuple[list[int], Curves]]:
    """Return rows and a text with all algorithms, their times, and the curves of the fitted cost models.

    Each size takes about `seconds`. Collective.
    """
    sizes, place = sizes or SIZES, f"p{comm.size}" if count_hosts(comm) == 1 else "hosts"
    with allreduce_algorithms(comm) as algorithms:
        times = measure(comm, algorithms, sizes, seconds, progress(comm))
    fits = fit(times, comm.size) if comm.rank == 0 else {}
    models = [(name, ", ".join(str(fitted).splitlines())) for name, fitted in fits.items()]
    texts = [table(times, comm.size), aligned(models)]
    fitted = rows(times, comm.size, place, bandwidth)
    return fitted, "\n\n".join(filter(None, texts)), times, curves(fits, comm.size, sizes)


@contextmanager
def allreduce_algorithms(comm: MPI.Intracomm) -> Iterator[dict[str, Allreduce]]:
    """Yield the algorithms that can run on these ranks, by name, the baselines first. Collective."""
    with gloo(comm) as gloo_all_reduce:
        algorithms = {"mpi-allreduce": Allreduce(plain_allreduce), "hand-written": Allreduce(ring_by_hand)}
        if gloo_all_reduce:
            algorithms["gloo"] = Allreduce(gloo_all_reduce)
        algorithms |= {
            name: Allreduce(algorithm, partial(_prepared, algorithm))
            for name, algorithm in ALGORITHMS.items()
            if name != "mpi"
        }
        nodes = tuple(comm.allgather(MPI.Get_processor_name()))
        if 1 < len(set(nodes)) < comm.size:
            schedule = hierarchical(comm.size, nodes)
            algorithms["hierarchical"] = Allreduce(lambda comm, array, weight: run(comm, schedule, array))
        algorithms["shared-memory-copied"] = Allreduce(ALGORITHMS["shared-memory"], _copied)
        yield algorithms


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


def _prepared(averaging: Averaging, comm: MPI.Intracomm, n: int) -> tuple[Sum, np.ndarray | None]:
    """Return an algorithm and its memory as for a training loop with gradients of n values. Collective."""
    in_loop, memory = averaging.prepare(comm, n)
    return in_loop.quick(), memory


def _copied(comm: MPI.Intracomm, n: int) -> tuple[Sum, np.ndarray]:
    """Return the shared-memory algorithm and an array to copy, if there is room for a shared copy."""
    shared_array(comm, n)
    return ALGORITHMS["shared-memory"], np.empty(n, np.float32)


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
    faults = [fault_of_rank for fault_of_rank in comm.allgather(fault) if fault_of_rank]
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
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    cards = [
        (name, entry.address)
        for name, addresses in psutil.net_if_addrs().items()
        for entry in addresses
        if entry.family == socket.AF_INET and name in up and not entry.address.startswith("127.")
    ]
    return cards[0] if count_hosts(comm) > 1 and cards else ("", LOOPBACK)


def _free_port(address: str) -> int:
    with closing(socket.socket()) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def busbw(size: int, time: float, p: int) -> float:
    """Return the bytes per second that each rank sends at least; 0 for one rank."""
    return size / time * 2 * (p - 1) / p


def wire_bound(size: int, p: int, bandwidth: float) -> float:
    """Return the least time (s) of an all-reduce of `size` bytes over links of this bandwidth (bit/s)."""
    return 2 * (p - 1) / p * size * 8 / bandwidth


def best(medians: Mapping[str, float]) -> float:
    """Return the least time of all the lab's algorithms and MPI's."""
    return min(time for name, time in medians.items() if name not in NO_CHOICE)


def rows(times: Times, p: int, place: str, bandwidth: float | None = None) -> list[Row]:
    """Return rows of every algorithm against the baselines, in ms.

    `place` ends the names of the cases, for example "p4". Only the ring is compared with the hand-written
    ring; only `auto`, with the best of all. Given a link's `bandwidth` (bit/s),
    each algorithm is also compared with the least time on it, without and with the headers of TCP.
    """
    all_rows = []
    for size, medians in times.items():
        for name in medians:
            if name in BASELINES:
                continue
            against = {
                other: medians[other]
                for other in BASELINES
                if other in medians and (other != "hand-written" or name == "ring")
            }
            if name == "auto":
                against["best"] = best(medians)
            if bandwidth and p > 1:
                against["wire-bound"] = wire_bound(size, p, bandwidth)
                against["tcp-bound"] = FRAME * against["wire-bound"]
            shown = {other: 1e3 * time for other, time in {name: medians[name], **against}.items()}
            all_rows += rows_of(f"{name}/{units.format_size(size)}/{place}", shown, "ms")
    return all_rows


def table(times: Times, p: int) -> str:
    """Return time, algbw and busbw of every algorithm at every size as text in aligned columns.

    The last column is the time as a multiple of that of the MPI library's own Allreduce.
    """
    lines = [("size", "algorithm", "time", "algbw", "busbw", "× MPI")]
    for size, medians in times.items():
        for name, time in sorted(medians.items(), key=lambda item: item[1]):
            algbw, bus = (units.approx_throughput(rate) for rate in (size / time, busbw(size, time, p)))
            took, ratio = units.approx_time(time), f"{time / medians['mpi-allreduce']:.2f}"
            lines.append((units.format_size(size), name, took, algbw, bus, ratio))
    return aligned(lines, ends={0, 2, 3, 4, 5})


def fit(times: Times, p: int) -> dict[str, FittedModel]:
    """Return a cost model for each schedule, fitted to its times; none for one rank or fewer than 3 sizes.

    If ranks share cores and memory, as on one machine, the cost of a byte depends on how many ranks are busy
    in a round. So each schedule has parameters of its own.
    """
    if p == 1 or len(times) < len(CostModel._fields):
        return {}
    return {
        name: fit_cost_model(Measurement(make(p), size, medians[name]) for size, medians in times.items())
        for name, make in ALLREDUCE.items()
    }


def curves(fits: Mapping[str, FittedModel], p: int, sizes: Sequence[int]) -> tuple[list[int], Curves]:
    """Return closely spaced sizes between the first and the last, and each schedule's predicted times (s)."""
    close = np.unique(np.geomspace(sizes[0], sizes[-1], POINTS).astype(int) // ITEM * ITEM).tolist()
    return close, {
        name: [fit.predict(ALLREDUCE[name](p), size) for size in close] for name, fit in fits.items()
    }
