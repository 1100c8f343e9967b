"""What notebooks measure on the ranks: all-reduces on 2, 3 … p ranks, exchanges of two ranks, and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.counting import CountingComm
from labkit.comm.timing import Allreduce, Sum, Times, measure
from labkit.schedules import Traffic
from labkit.units import approx_size
from mpiwatch.layers import CollectiveError, raise_together, sleeping_barrier

Collective = Callable[[MPI.Intracomm, np.ndarray], object]

SIZE_S = 0.4  # for all functions together, at one size
BUSY = 2.0  # a median exchange takes so many times as long as the fastest one
AS_FAST = 1.2  # times the fastest one: another run may decide otherwise


def group_times(
    comm: MPI.Intracomm, sums: Mapping[str, Sum], sizes: Sequence[int], seconds: float = SIZE_S
) -> dict[int, Times]:
    """Return the median times (s) of all-reduces on the first 2, 3 … p ranks, by ranks, bytes and name.

    Collective. A function gets a communicator, an array and the weight 1.0, and leaves the sum of all ranks'
    arrays in each of them. The functions take turns, and a call takes as long as on its slowest rank. Ranks
    outside a group sleep, and have no times of it. A size takes about `seconds` on each group. Raise
    CollectiveError on every rank if a sum is wrong.
    """
    times = {}
    functions = {name: Allreduce(add) for name, add in sums.items()}
    for ranks in range(2, comm.size + 1):
        group: Any = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
        fault = None
        if group != MPI.COMM_NULL:
            try:
                times[ranks] = measure(group, functions, sizes, seconds, lambda text: None)
            except CollectiveError as error:
                fault = str(error)
            group.Free()
        sleeping_barrier(comm)
        raise_together(comm, fault)
    return times


def growing_groups(comm: MPI.Intracomm, least: int = 1) -> Iterator[MPI.Intracomm]:
    """Yield communicators of the first `least`, `least` + 1 … p ranks, each to the ranks that belong to it.

    The other ranks sleep until the group has done its work. A communicator is freed when the next one is
    asked for. If `comm` emulates or counts, so do they. Collective: take all of them on every rank.
    """
    for ranks in range(least, comm.size + 1):
        group: Any = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
        if group != MPI.COMM_NULL:
            yield group
            group.Free()
        sleeping_barrier(comm)


def times_table(times: Mapping[int, Times]) -> str:
    """Return the times of `group_times` as a table in µs, with marks for the fastest one of each row."""
    names = [name for of_sizes in times.values() for name in next(iter(of_sizes.values()))]
    names = list(dict.fromkeys(names))
    lines = [f"{'median, µs':18}" + "".join(f"{name:>12} " for name in names)]
    for ranks, of_sizes in times.items():
        for nbytes, seconds in of_sizes.items():
            row = f"{ranks} ranks {approx_size(nbytes):>9} "
            for name in names:
                row += f"{1e6 * seconds[name]:12.1f}" + _mark(seconds[name], min(seconds.values()))
            lines.append(row)
    lines.append(
        f"* the fastest; ~ takes less than {AS_FAST} times as long: another run may decide otherwise"
    )
    return "\n".join(lines)


def _mark(seconds: float, fastest_s: float) -> str:
    if seconds == fastest_s:
        return "*"
    return "~" if seconds < AS_FAST * fastest_s else " "


def exchange_times(comm: MPI.Intracomm, sizes: Sequence[int], repeats: int = 100) -> list[float]:
    """Return the shortest time (s) in which ranks 0 and 1 swap a message, for each size in bytes.

    Collective. The sizes take turns. The other ranks sleep, and get an empty list. A single rank swaps with
    itself. Rank 0 prints a warning if the machine is busy.
    """
    fastest_s: list[float] = []
    if comm.rank < 2:
        other = 1 - comm.rank if comm.size > 1 else 0
        buffers = [(np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)) for nbytes in sizes]
        times = np.empty((repeats, len(buffers)))
        for row in times:
            for number, (outgoing, incoming) in enumerate(buffers):
                for _ in range(2):  # the first exchange brings the buffers into the cache
                    start = perf_counter()
                    comm.Sendrecv(outgoing, other, recvbuf=incoming, source=other)
                    row[number] = perf_counter() - start
        fastest_s = times.min(axis=0).tolist()
        if comm.rank == 0:
            _warn_if_busy(float(np.median(np.median(times, axis=0) / times.min(axis=0))))
    sleeping_barrier(comm)
    return fastest_s


def _warn_if_busy(factor: float) -> None:
    """Print that the machine is busy, if a median exchange takes much longer than the fastest one."""
    if factor > BUSY:
        print(f"This machine is busy: a median exchange took {factor:.1f} times as long as the fastest one.")
        print("Ratios of measured and predicted times say little now.")


def traffic_of(comm: MPI.Intracomm, function: Collective, array: np.ndarray) -> Traffic:
    """Return how many values each rank sends and receives in function(comm, array). Collective.

    See `sent_by_pair` for what is counted.
    """
    messages, sent = _counted(comm, function, array)
    return Traffic(messages, sent.sum(axis=1), sent.sum(axis=0))


def sent_by_pair(comm: MPI.Intracomm, function: Collective, array: np.ndarray) -> np.ndarray:
    """Return how many values each rank sends to each in function(comm, array). Shape: (p, p). Collective.

    Messages are counted as they are sent. Those inside the MPI library's own collectives are not seen.
    """
    return _counted(comm, function, array)[1]


def _counted(comm: MPI.Intracomm, function: Collective, array: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the number of messages, and the values sent by sender and receiver, on every rank."""
    counting = CountingComm(comm)
    function(counting, array)
    sent, messages = np.zeros((comm.size, comm.size), np.int64), 0
    for table in counting.traffic():
        if table.sent is not None:
            sent += table.sent
            messages += int(table.messages.sum())
    return messages, sent // array.itemsize
