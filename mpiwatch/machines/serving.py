"""Run the hub and the relays in a thread of the rank, or of its parent process, which outlives it."""

from __future__ import annotations

import atexit
import json
import socket
from collections.abc import Callable
from time import sleep

from mpiwatch.flight_recorder.layout import CellState, FlightRecorder
from mpiwatch.machines.connection import Connection
from mpiwatch.machines.hub import Hub
from mpiwatch.machines.relay import Relay

MOST_FILES = 250  # limit of the system for one message to another process
MESSAGE_BYTES = 1 << 16
POLL_S = 0.01

Server = Hub | Relay


def server_of(recorder: FlightRecorder, connections: dict[int, Connection]) -> Server:
    """Return the thread that serves these connections, which are keyed by machine number."""
    return Relay(recorder, connections[0]) if recorder.head.machine else Hub(recorder, connections)


def serve_here(server: Server, progress: Callable[[], object]) -> None:
    """Serve in this process. After its program has ended, it stays alive as long as other ranks need it.

    `progress` lets MPI move messages.
    """
    atexit.register(_stay, server, progress)
    server.start()


def _stay(server: Server, progress: Callable[[], object]) -> None:
    recorder = server.recorder
    ranks = server.ranks if isinstance(server, Relay) else range(recorder.size)

    def is_needed(rank: int) -> bool:
        return recorder.slots[rank].cell_state != CellState.EXITED and recorder.is_alive(rank)

    while server.is_alive() and any(map(is_needed, ranks)):
        progress()
        sleep(POLL_S)
    server.stop()


def hand_over(rank: int, recorder: FlightRecorder, server: Server | None, to: socket.socket) -> None:
    """Pass the recorder and the connections to the process at the other end of a Unix socket."""
    connections = server.connections if server is not None else {}
    words = {"rank": rank, "recorder": recorder.path, "machines": list(connections)}
    socket.send_fds(to, [json.dumps(words).encode()], [each.fileno() for each in connections.values()])


def take_over(source: socket.socket) -> tuple[int, FlightRecorder, Server | None] | None:
    """Return what `hand_over` has sent: a rank, its flight recorder and the server, if one runs here.

    Return None if the other process has ended.
    """
    message, files, _, _ = socket.recv_fds(source, MESSAGE_BYTES, MOST_FILES)
    if not message:
        return None
    words = json.loads(message)
    recorder = FlightRecorder(words["recorder"])
    connections = [Connection(socket.socket(fileno=file)) for file in files]
    server = server_of(recorder, dict(zip(words["machines"], connections, strict=True))) if files else None
    return words["rank"], recorder, server
