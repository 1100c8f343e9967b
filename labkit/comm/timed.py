"""Run a schedule on ranks of one machine over an emulated network, and time every transfer.

The network is one that the simulator knows, and its rules hold: a transfer starts when both its ranks have
reached it and every port on its way is free, ports carry one message at a time in each direction, and a rank
enters a round when its own transfers of the earlier rounds are done. The values really travel by MPI, and
every rank waits, asleep, until the emulated links have carried its messages.

The destination sends the time at which it has reached the transfer. The source then books the ports: it
writes when they will be free again into a table that all ranks share, a file. So two messages through one
uplink take twice as long as one. The source sends start and end of the transfer along with the values.

A rank that the operating system wakes too late enters the next round at the time at which the links were
done, as long as it is late by LATE_S at most. Otherwise each round would add a delay that neither the
schedule nor the network has.
"""

from __future__ import annotations

import fcntl
import pickle
import sys
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from mpi4py import MPI

from labkit.schedules import Network, Schedule, Simulation, TimedTransfer, Transfer, chunk_bounds

POLL_S = 5e-4
LATE_S = 5e-3  # longer than a time slice of the operating system
START_S = 2e-3  # from the agreement on a time until the schedule starts
DEADLINE_S = 30.0  # for one call


class Ports:
    """When the ports of a network are free again, in seconds: a table in a file that all ranks have open."""

    def __init__(self, path: Path, network: Network) -> None:
        self.network, self.file = network, path.open("r+b")
        self.free = np.memmap(self.file, np.float64, "r+", shape=4 * len(network.alpha))

    def book(self, transfer: Transfer, nbytes: int, ready: float) -> tuple[float, float]:
        """Book all ports that a transfer needs, as soon as they are free; return its start and its end."""
        needed = self.network.ports(transfer.source, transfer.dest)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        start = max(ready, *self.free[needed].tolist())
        end = start + float(self.network.seconds(transfer.source, transfer.dest, nbytes))
        self.free[needed] = end
        fcntl.flock(self.file, fcntl.LOCK_UN)
        return start, end


def run_timed(
    comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, network: Network, table: Path
) -> Simulation | None:
    """Leave the sum of all ranks' arrays in `array`; return what the simulator predicts, measured, on rank 0.

    `table` is a file of 4p float64 values for the ports, which are overwritten. Collective. Raise
    TimeoutError on a rank that has waited until DEADLINE_S.
    """
    bounds = chunk_bounds(array.size, schedule.chunks)
    ports = Ports(table, network)
    if comm.rank == 0:
        ports.free[:] = 0
    comm.Barrier()
    zero = comm.bcast(perf_counter() + START_S)

    def now() -> float:
        return perf_counter() - zero

    def pause(seconds: float = POLL_S) -> None:
        if now() > DEADLINE_S:
            raise TimeoutError(f"rank {comm.rank} waited until {DEADLINE_S:g} s in {schedule.name}")
        sleep(max(seconds, 0.0))

    pause(-now())
    reached, timeline = 0.0, list[TimedTransfer]()
    for number, round_ in enumerate(schedule, start=1):
        reached = max(reached, now() - LATE_S)
        before, ends = array.copy(), [reached]
        to_send: list[tuple[int, MPI.Request, np.ndarray, Transfer, np.ndarray]] = []
        received: list[tuple[Transfer, np.ndarray, np.ndarray]] = []
        requests: list[MPI.Request] = []
        for i, transfer in enumerate(round_):  # its messages have the tags 2i and 2i + 1
            span = slice(*bounds[[transfer.first, transfer.stop]].tolist())
            if comm.rank == transfer.source and span.start < span.stop:
                ready = np.empty(1)
                request = comm.Irecv(ready, transfer.dest, 2 * i)
                to_send.append((i, request, ready, transfer, before[span]))
            if comm.rank == transfer.dest and span.start < span.stop:
                message = np.empty(16 + array[span].nbytes, np.uint8)  # start and end, then the values
                received.append((transfer, array[span], message))
                requests.append(comm.Irecv(message, transfer.source, 2 * i + 1))
                requests.append(comm.Isend(np.array([reached]), transfer.source, 2 * i))
        while to_send or not MPI.Request.Testall(requests):
            for sending in [sending for sending in to_send if sending[1].Test()]:
                to_send.remove(sending)
                i, _, ready, transfer, values = sending
                start, end = ports.book(transfer, values.nbytes, max(reached, ready[0]))
                message = np.concatenate([np.array([start, end]).view(np.uint8), values.view(np.uint8)])
                requests.append(comm.Isend(message, transfer.dest, 2 * i + 1))
                timeline.append(TimedTransfer(number, transfer, start, end))
                ends.append(end)
            pause()
        reached = max(ends + [float(message[8:16].view(np.float64)[0]) for *_, message in received])
        pause(reached - now())
        for transfer, own, message in received:
            values = message[16:].view(array.dtype)
            own[:] = own + values if transfer.reduce else values
    gathered = comm.gather((now(), timeline))
    if gathered is None:  # not on rank 0
        return None
    transfers = sorted(each for _, own in gathered for each in own)
    return Simulation(np.array([end for end, _ in gathered]), transfers)


def main(folder: Path) -> None:
    """Time the schedules in the file `task` of the folder, in turns; leave the times in the file `times`."""
    comm = MPI.COMM_WORLD
    rounds, networks, nbytes, repetitions = pickle.loads((folder / "task").read_bytes())
    schedules = [Schedule(name, "allreduce", comm.size, chunks, own.__iter__) for name, chunks, own in rounds]
    table = folder / "ports"
    if comm.rank == 0:
        table.write_bytes(bytes(8 * 4 * comm.size))
    comm.Barrier()
    times: dict[tuple[int, str], list[Simulation]] = {}
    for turn in range(max(repetitions.values())):
        for number, schedule in enumerate(schedules):
            for name in [name for name in networks if turn < repetitions[name]]:
                array = np.arange(nbytes // 4, dtype=np.float32) % 7 + comm.rank
                right = (array - comm.rank) * comm.size + comm.size * (comm.size - 1) // 2
                found = run_timed(comm, schedule, array, networks[name], table)
                if not np.array_equal(array, right):
                    raise ValueError(f"{schedule.name} left a wrong sum on rank {comm.rank}")
                if found is not None:
                    times.setdefault((number, name), []).append(found)
    if comm.rank == 0:
        (folder / "times").write_bytes(pickle.dumps(times))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
