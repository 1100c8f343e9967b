"""Decide from the ranks' slots whether they can ever go on.

Ranks in blocking messages that wait for one another are stuck at once. Ranks inside MPI calls that are not
watched count as stuck after a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpiwatch.opcodes import OPERATION_NAMES, SENDS
from mpiwatch.recorder import CellState, FlightRecorder, WaitingIn
from mpiwatch.snapshot import FRESH_S, is_in_mpi_call

SLOW_DEADLINES = 3  # if all ranks are in the same call, which may only be slow


class Blocked(NamedTuple):
    """The blocking call that a rank waits in, and which messages it has under way besides.

    `peer` is a rank in the world, or -1 for any rank. Only messages of non-blocking calls count as under way.
    """

    peer: int
    sends: bool  # or receives
    has_sends: bool = False
    has_receives: bool = False
    number: int = 0  # counts the rank's waits


def waits(recorder: FlightRecorder) -> dict[int, Blocked]:
    """Return what the ranks wait in that are in a blocking message, by rank."""
    return {
        rank: Blocked(
            slot.message_peer,
            OPERATION_NAMES[slot.message_operation] in SENDS,
            bool(slot.has_sends),
            bool(slot.has_receives),
            slot.message_number,
        )
        for rank, slot in enumerate(recorder.slots)
        if slot.waiting_in == WaitingIn.MESSAGE and slot.message_number
    }


def stuck_ranks(waiting: Mapping[int, Blocked], size: int) -> set[int]:
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


def _may_end(rank: int, peer: int, waiting: Mapping[int, Blocked], stuck: set[int]) -> bool:
    """Tell whether a peer may end a rank's wait, now or later."""
    if peer not in stuck:
        return True
    mine, theirs = waiting[rank], waiting[peer]
    if mine.sends:
        return theirs.has_receives or (not theirs.sends and theirs.peer in (rank, -1))
    return theirs.has_sends or (theirs.sends and theirs.peer == rank)


def closure(rank: int, waiting: Mapping[int, Blocked]) -> list[int]:
    """Return all ranks that a stuck rank waits for, directly or through others, and the rank itself."""
    found, news = {rank}, [rank]
    while news:
        peer = waiting[news.pop()].peer
        others = {peer} if peer >= 0 else set(waiting)
        news += others - found
        found |= others
    return sorted(found)


def confirmation(rank: int, waiting: Mapping[int, Blocked]) -> int:
    """Return a number for a stuck rank, the ranks that it waits for, and the very waits they are in."""
    key = tuple((other, waiting[other].number) for other in closure(rank, waiting))
    return hash(key) & 0x7FFF_FFFF_FFFF_FFFF  # numbers hash alike in all processes


class Sample(NamedTuple):
    """The state of a rank. Times are in seconds on the clock that all processes share."""

    is_finished: bool  # its cell or program has returned or raised, or its process has ended
    stuck_since_s: float = 0.0  # inside one MPI call, or waiting in a watched call; 0 if neither
    sampled_s: float = 0.0  # when its watchdog last sampled it
    mpi_call: str = ""  # empty if it waits in a watched call, which ends by itself
    place: str = ""


def is_deadlock(ranks: Sequence[Sample], now_s: float, deadline_s: float) -> bool:
    """Return whether all unfinished ranks have been stuck for `deadline_s`, at least one of them inside MPI.

    If all ranks are in the same call at the same line, it must be SLOW_DEADLINES times as long.
    """
    unfinished = [rank for rank in ranks if not rank.is_finished]
    if not any(rank.mpi_call for rank in unfinished):
        return False
    in_same_call = len(unfinished) == len(ranks) and len({(rank.mpi_call, rank.place) for rank in ranks}) == 1
    least_s = deadline_s * (SLOW_DEADLINES if in_same_call else 1)
    return all(
        rank.stuck_since_s and now_s - rank.stuck_since_s > least_s and now_s - rank.sampled_s < FRESH_S
        for rank in unfinished
    )


def samples(recorder: FlightRecorder, now_s: float) -> list[Sample]:
    """Return the states of all ranks from their slots."""
    found = []
    for rank, slot in enumerate(recorder.slots):
        if slot.cell_state != CellState.RUNNING or not recorder.is_alive(rank):
            found.append(Sample(is_finished=True))
        elif slot.waiting_since_s:
            found.append(Sample(False, slot.waiting_since_s, slot.sampled_s))
        elif is_in_mpi_call(slot, now_s):
            call, place = slot.mpi_call.decode(errors="replace"), slot.place.decode(errors="replace")
            found.append(Sample(False, slot.mpi_call_since_s, slot.sampled_s, call, place))
        else:
            found.append(Sample(False))
    return found


class Suspicion:
    """Finds a deadlock if two looks, one after the other, show all ranks stuck."""

    def __init__(self, recorder: FlightRecorder) -> None:
        self.recorder = recorder
        # Since when each rank has been stuck, and when that was seen.
        self.suspected: tuple[tuple[float, ...], float] = ((), 0.0)

    def is_certain(self, now_s: float, deadline_s: float) -> bool:
        """Return whether the ranks are in a deadlock."""
        ranks = samples(self.recorder, now_s)
        if not is_deadlock(ranks, now_s, deadline_s):
            return False
        since = tuple(rank.stuck_since_s for rank in ranks)
        if self.suspected[0] != since:
            self.suspected = since, now_s
        return all(rank.is_finished or rank.sampled_s > self.suspected[1] for rank in ranks)
