"""Opening the flight recorders of a world: one for each machine that its ranks are on."""

from __future__ import annotations

import atexit
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from mpi4py import MPI

from labkit.comm.errors import raise_together
from labkit.watch.flight_recorder.layout import HOST_BYTES, CellState, FlightRecorder, fit
from labkit.watch.machines.hub import Hub
from labkit.watch.machines.meeting import START_S, Door, addresses, find_hub
from labkit.watch.machines.relay import Relay

# If set to 1, hosts that labkit.hosts makes on one machine do not share a flight recorder, as real ones.
SEPARATE = "LABKIT_SEPARATE_MACHINES"
POLL_S = 0.01

Opened = tuple[FlightRecorder, list[int], Hub | None]


def open_recorder(world: MPI.Intracomm, keep: bool, progress: Callable[[], object]) -> Opened | None:
    """Create a flight recorder on each machine, and connect the machines. Collective.

    Return this rank's recorder, the machine of each rank, and in rank 0 the hub if there are several.
    Return None if not all ranks of a machine see its recorder, or if a machine cannot reach rank 0's. With
    `keep`, the files stay. `progress` lets MPI move messages; a rank that others need calls it at its exit.
    """
    names = world.allgather(machine())
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    machines = [numbers[name] for name in names]
    mine = machines[world.rank]
    is_first = machines.index(mine) == world.rank
    path, fault = "", None
    if is_first:
        try:
            path = FlightRecorder.create(world.size)
        except OSError as error:
            fault = str(error)
    raise_together(world, fault)
    path = world.allgather(path)[machines.index(mine)]
    # Containers on one machine have files of their own.
    if not world.allreduce(os.path.exists(path), MPI.LAND):
        if is_first:
            FlightRecorder(path).remove()
        return None
    recorder = FlightRecorder(path)
    hosts = world.allgather(socket.gethostname())
    if is_first:
        recorder.head.machine = mine
        for slot, number, host in zip(recorder.slots, machines, hosts, strict=True):
            slot.machine = number
            slot.host = fit(host, HOST_BYTES) if len(numbers) > 1 else b""
        recorder.head.hub = len(numbers) > 1
    thread = connect(world, recorder, machines) if len(numbers) > 1 else None
    is_watched = world.bcast(thread is not None or len(numbers) == 1)
    world.Barrier()
    if is_first and not (keep and is_watched):
        recorder.remove()  # its memory stays for as long as a rank uses it
    if not is_watched:
        if thread is not None:
            thread.close()
        return None
    if thread is not None:
        atexit.register(stay, thread, keep, progress)
        thread.start()
    return recorder, machines, thread if isinstance(thread, Hub) else None


def connect(world: MPI.Intracomm, recorder: FlightRecorder, machines: list[int]) -> Hub | Relay | None:
    """Return the thread that connects this machine with the others, on its first rank. Collective.

    On rank 0, return None if a machine cannot be connected.
    """
    door = Door() if world.rank == 0 else None
    where = world.bcast((addresses(), door.port, door.key) if door else None)
    mine = machines[world.rank]
    connection, fault = None, ""
    if mine and machines.index(mine) == world.rank:
        connection, fault = find_hub(where, mine)
    faults = world.allgather(fault)
    if door is None:
        return Relay(recorder, connection) if connection else None
    expected, deadline = set(machines) - {0}, monotonic() + START_S
    failed = [f"rank {rank} cannot reach rank 0 ({why})" for rank, why in enumerate(faults) if why]
    fault = "".join(failed[:1])
    while not fault and expected - set(door.admitted):
        sleep(POLL_S)
        fault = "a machine has not connected" if monotonic() > deadline else ""
    door.close()
    if fault:
        for each in door.admitted.values():
            each.close()
        warnings.warn(f"The ranks are not watched: {fault}.", stacklevel=2)
        return None
    return Hub(recorder, dict(door.admitted))


def stay(thread: Hub | Relay, keep: bool, progress: Callable[[], object]) -> None:
    """Serve until the ranks that need this one have ended their programs; called when this one has."""
    recorder = thread.recorder
    ranks = thread.ranks if isinstance(thread, Relay) else range(recorder.size)

    def is_needed(rank: int) -> bool:
        return recorder.slots[rank].cell_state != CellState.EXITED and recorder.is_alive(rank)

    while not keep and thread.is_alive() and any(map(is_needed, ranks)):
        if not MPI.Is_finalized():
            progress()
        sleep(POLL_S)
    thread.stop()
    thread.join()


def machine() -> tuple[str, ...]:
    """Return what processes have in common that can see each other and share memory.

    It is not the host's name: the hosts that labkit.hosts makes on one machine have several.
    """
    try:
        apart = [os.readlink("/proc/self/ns/net")] if os.environ.get(SEPARATE, "") == "1" else []
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot, os.readlink("/proc/self/ns/pid"), *apart
    except OSError:  # not Linux
        return (socket.gethostname(),)
