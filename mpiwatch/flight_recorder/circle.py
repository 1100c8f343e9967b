"""Ranks that wait in blocking messages for one another: which of them can never go on, and their circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpiwatch.flight_recorder.layout import FlightRecorder, WaitingIn
from mpiwatch.flight_recorder.opcodes import OPERATION_NAMES, SENDS


class Wait(NamedTuple):
    """The blocking call that a rank waits in, and which messages it has under way besides.

    `peer` is a rank in the world, or -1 for any rank. Only messages of non-blocking calls count as under way.
    """

    peer: int
    sends: bool  # or receives
    has_sends: bool = False
    has_receives: bool = False
    number: int = 0  # counts the rank's waits


def waits(recorder: FlightRecorder) -> dict[int, Wait]:
    """Return what the ranks wait in that are in a blocking message, by rank."""
    return {
        rank: Wait(
            slot.message_peer,
            OPERATION_NAMES[slot.message_operation] in SENDS,
            bool(slot.has_sends),
            bool(slot.has_receives),
            slot.message_number,
        )
        for rank, slot in enumerate(recorder.slots)
        if slot.waiting_in == WaitingIn.MESSAGE and slot.message_number
    }


def stuck_ranks(waiting: Mapping[int, Wait], size: int) -> set[int]:
    """Return the ranks that can never go on, whatever is done by the ranks that do not wait.

    A rank is stuck if each rank that could end its wait is stuck, and has no message under way that does.
    """
    stuck = set(waiting)
    while True:
        free = set()
        for rank in stuck:
            peer = waiting[rank].peer
            if any(_may_end(rank, each, waiting, stuck) for each in ((peer,) if peer >= 0 else range(size))):
                free.add(rank)
        if not free:
            return stuck
        stuck -= free


def _may_end(rank: int, peer: int, waiting: Mapping[int, Wait], stuck: set[int]) -> bool:
    """Tell whether a peer may end a rank's wait, now or later."""
    if peer not in stuck:
        return True
    mine, theirs = waiting[rank], waiting[peer]
    if mine.sends:
        return theirs.has_receives or (not theirs.sends and theirs.peer in (rank, -1))
    return theirs.has_sends or (theirs.sends and theirs.peer == rank)


def closure(rank: int, waiting: Mapping[int, Wait]) -> list[int]:
    """Return all ranks that a stuck rank waits for, directly or through others, and the rank itself."""
    found, news = {rank}, [rank]
    while news:
        peer = waiting[news.pop()].peer
        others = {peer} if peer >= 0 else set(waiting)
        news += others - found
        found |= others
    return sorted(found)


def confirmation(rank: int, waiting: Mapping[int, Wait]) -> int:
    """Return a number for a stuck rank, the ranks that it waits for, and the very waits they are in."""
    key = tuple((other, waiting[other].number) for other in closure(rank, waiting))
    return hash(key) & 0x7FFF_FFFF_FFFF_FFFF  # numbers hash alike in all processes


def circle(start: int, peers: Mapping[int, int]) -> list[int]:
    """Return the circle that one meets on the way from rank to awaited rank; empty if the way ends."""
    path = [start]
    while (peer := peers.get(path[-1], -1)) not in path:
        if peer < 0:
            return []
        path.append(peer)
    return path[path.index(peer) :]
