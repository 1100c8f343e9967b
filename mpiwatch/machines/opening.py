"""Open the flight recorders of a world: one for each machine that its ranks are on."""

from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path
from time import monotonic, sleep

from mpi4py import MPI

from mpiwatch.errors import raise_together
from mpiwatch.flight_recorder.layout import HOST_BYTES, FlightRecorder, fit
from mpiwatch.launch import node_name
from mpiwatch.machines.meeting import START_S, Door, addresses, find_hub
from mpiwatch.machines.serving import Server, server_of

# If set to 1, hosts that network namespaces make on one machine share no flight recorder, like real ones.
SEPARATE = "MPIWATCH_SEPARATE_MACHINES"
POLL_S = 0.01

Opened = tuple[FlightRecorder, list[int], Server | None]


def open_recorder(world: MPI.Intracomm, keep: bool) -> Opened | None:
    """Create a flight recorder on each machine, and connect the machines. Collective.

    Return this rank's recorder, the machine of each rank, and on the first rank of each of several machines,
    the thread to start. Return None if not all ranks of a machine see its recorder, or if a machine cannot
    reach rank 0's. With `keep`, the files stay.
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
    # Each container on a machine has its own files.
    if not world.allreduce(os.path.exists(path), MPI.LAND):
        if is_first:
            FlightRecorder(path).remove()
        return None
    recorder = FlightRecorder(path)
    hosts = world.allgather(node_name(socket.gethostname()))
    if is_first:
        recorder.head.machine = mine
        for slot, number, host in zip(recorder.slots, machines, hosts, strict=True):
            slot.machine = number
            slot.host = fit(host, HOST_BYTES) if len(numbers) > 1 else b""
        recorder.head.hub = len(numbers) > 1
    server = connect(world, recorder, machines) if len(numbers) > 1 else None
    is_watched = world.bcast(server is not None or len(numbers) == 1)
    world.Barrier()
    if is_first and not (keep and is_watched):
        recorder.remove()  # the memory exists as long as a rank uses it
    if not is_watched:
        if server is not None:
            server.close()
        return None
    return recorder, machines, server


def connect(world: MPI.Intracomm, recorder: FlightRecorder, machines: list[int]) -> Server | None:
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
        return server_of(recorder, {0: connection}) if connection else None
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
    return server_of(recorder, dict(door.admitted))


def machine() -> tuple[str, ...]:
    """Return a name that is equal for processes that see each other and share memory.

    It is not the host's name: hosts that network namespaces make have different names.
    """
    try:
        apart = []
        if os.environ.get(SEPARATE, "") == "1":
            # The nodes of a SLURM made for tests are on one machine and share its network.
            apart = [os.readlink("/proc/self/ns/net"), os.environ.get("SLURMD_NODENAME", "")]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot, os.readlink("/proc/self/ns/pid"), *apart
    except OSError:  # not Linux
        return (socket.gethostname(),)
