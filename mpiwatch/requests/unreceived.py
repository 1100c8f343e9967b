"""Find messages that no rank has received when a cell has ended well, with the lines of their sends.

Each rank counts the sends of its cell minus its receives, and notes the lines of its last sends. If the
counts of all ranks do not add up to 0, the notebook asks which messages have arrived but were not received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import sleep
from types import CodeType
from typing import Any

from mpi4py import MPI

from mpiwatch.flight_recorder.source import line_of
from mpiwatch.wait import NAP_S, Watch

SENDS_NOTED = 200
LOOKS = 10  # for messages that are still on their way

# The operation, communicator, peer, tag, code and instruction of a call, as a request's `made` has them.
Call = tuple[str, Any, int, int, CodeType, int]

balance = [0]  # sends minus receives of the cell
noted: deque[Call] = deque(maxlen=SENDS_NOTED)


# By ranks of the world: the communicator's row, source, destination, tag, and the line of the send or "".
Message = tuple[int, int, int, int, str]


def note(call: Call) -> None:
    """Note a send."""
    balance[0] += 1
    noted.append(call)


def look(watch: Watch) -> tuple[list[Message], list[Message]]:
    """Return the first message from each rank that waits to be received here, and this rank's last sends."""
    arrived: list[Message] = []
    for _ in range(LOOKS):
        arrived = list(_arrived(watch))
        if arrived:
            break
        sleep(NAP_S)
    return arrived, [
        (channel.row, watch.rank, channel.members[dest], tag, line_of(code, instruction))
        for _, comm, dest, tag, code, instruction in noted
        if (channel := comm._channel) in watch.channels and 0 <= dest < len(channel.members)
    ]


def _arrived(watch: Watch) -> Iterable[Message]:
    status = MPI.Status()
    for channel in watch.channels:
        for source, member in enumerate(channel.members):
            if channel.comm.Iprobe(source, MPI.ANY_TAG, status):
                yield channel.row, member, watch.rank, status.tag, ""
