"""A hang report as data: what each rank was doing, and why the report was made.

The text, the table and the figure are rendered from it (see text.py, table.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Any


class Reason(Enum):
    """Why a report was made."""

    TIMED_OUT = auto()  # a rank waited longer than the communicator's `deadline_s`
    MISMATCH = auto()  # the ranks called collectives that do not fit together
    CIRCLE = auto()  # ranks wait for one another in blocking sends or receives
    RANK_ENDED = auto()  # a rank that others wait for ended its cell or died
    DEADLOCK = auto()  # all unfinished ranks were stuck, at least one in an MPI call that is not watched
    RANK_DIED = auto()  # a rank of a program died, and MPI ends the others; it is the `reporter`
    STOPPED = auto()  # the user stopped the cell
    INTERRUPTED = auto()  # the reporting rank was interrupted while it was waiting
    THREADS = auto()  # two threads of the reporter were in collectives on one communicator at once


class Mismatch(Enum):
    """In what the ranks' calls of one collective differ."""

    OPERATION = auto()
    ROOT = auto()
    COUNT = auto()
    DTYPE = auto()
    REDUCTION = auto()


class Activity(Enum):
    """What a rank is doing."""

    WAITING_IN_COLLECTIVE = auto()  # the last of its `calls`
    WAITING_FOR_MESSAGE = auto()  # `RankState.message`
    IN_MPI_CALL = auto()  # in a call that is not watched: `RankState.mpi_call`
    RUNNING = auto()  # runs code of its own
    RETURNED = auto()  # from the cell
    RAISED = auto()  # `RankState.error`
    NOT_STARTED = auto()  # other ranks have started a cell that this rank has not
    EXITED = auto()  # its program has ended, and its process may be waiting in MPI_Finalize
    DEAD = auto()
    UNRESPONSIVE = auto()  # its process exists, but does not answer the signal
    UNREACHABLE = auto()  # the connection to its machine was lost


@dataclass(frozen=True)
class CallRecord:
    """A collective that a rank called. None stands for what does not apply or is not known."""

    communicator: int  # its row in the flight recorder; 0 is the world
    number: int  # counts the collectives on this communicator, from 1
    operation: str
    root: int | None
    count: int | None
    dtype: str | None
    reduction: str | None
    file: str  # `cell`, or the file's name
    line: int


@dataclass(frozen=True)
class MessageWait:
    """The message or request that a rank is waiting for. None stands for any peer or tag, or for no peer."""

    operation: str
    peer: int | None  # a rank of the world
    tag: int | None
    purpose: str = ""  # what it is part of, such as a schedule; empty for a message of the student's own
    origin: str = ""  # the line of the non-blocking call that made the request; empty for a blocking call
    polls: int = 0  # without success, by a rank that calls Iprobe or Test in a loop; 0 for other calls


@dataclass(frozen=True)
class RankState:
    """A rank: what it is doing, where, and its last collectives (oldest first)."""

    rank: int
    activity: Activity
    place: str = ""  # the student's line, for example `cell line 4: comm.Barrier()`
    error: str = ""
    message: MessageWait | None = None
    mpi_call: str = ""  # the MPI call that the rank is inside, such as `Waitall`
    calls: tuple[CallRecord, ...] = ()
    host: str = ""  # its machine's name, if the ranks are on several machines

    def last_call(self, communicator: int | None) -> CallRecord | None:
        """Return the last collective that the rank called on a communicator."""
        return next((call for call in reversed(self.calls) if call.communicator == communicator), None)


@dataclass(frozen=True)
class Report:
    """A hang, or where the ranks were when they were stopped."""

    reason: Reason
    deadline_s: float
    ranks: tuple[RankState, ...] = ()
    communicator: int | None = None  # whose collective the report is about; None if it is about a message
    reporter: int | None = None  # the rank that made the report; None if the notebook made it
    mismatch: Mismatch | None = None
    world_size: int | None = None  # None if it is the number of `ranks`
    members: tuple[int, ...] | None = None  # the ranks of the communicator; None if they are the `ranks`

    @property
    def number(self) -> int:
        """Return the number of the collective that the report is about; 0 if there is none.

        Without a rendezvous, some ranks may have left it and be waiting in a later one.
        """
        waiting = (rank.calls[-1] for rank in self.ranks if self.is_waiting_here(rank))
        return (min if self.is_without_rendezvous else max)((call.number for call in waiting), default=0)

    @property
    def is_without_rendezvous(self) -> bool:
        """Return whether the ranks, on several machines, wait inside MPI, without a rendezvous."""
        return any(rank.mpi_call for rank in self.ranks if self.is_waiting_here(rank))

    def is_waiting_here(self, rank: RankState) -> bool:
        """Tell whether a rank is waiting in a collective on the report's communicator."""
        waiting = rank.activity is Activity.WAITING_IN_COLLECTIVE
        return waiting and rank.calls[-1].communicator == self.communicator

    def joined(self) -> list[RankState]:
        """Return the ranks that are waiting in the collective that the report is about."""
        number = self.number
        return [rank for rank in self.ranks if self.is_waiting_here(rank) and rank.calls[-1].number == number]

    def missing(self) -> list[int]:
        """Return the ranks of the communicator that have not joined the collective."""
        members = [rank.rank for rank in self.ranks] if self.members is None else self.members
        return sorted(set(members) - {rank.rank for rank in self.ranks if self.has_joined(rank)})

    def has_joined(self, rank: RankState) -> bool:
        """Tell whether a rank has joined the collective; without a rendezvous, it may also have left it."""
        last = rank.last_call(self.communicator)
        if self.is_without_rendezvous:
            return last is not None and last.number >= self.number
        return rank in self.joined()

    def joined_call(self, rank: RankState) -> CallRecord | None:
        """Return a rank's call of the report's collective, if the ranks may leave it one by one."""
        about = self.communicator, self.number
        calls = rank.calls[::-1] if self.is_without_rendezvous else ()
        return next((call for call in calls if (call.communicator, call.number) == about), None)

    def to_json(self) -> bytes:
        """Return the report as JSON, in ASCII."""
        return to_json(self)

    @staticmethod
    def from_json(text: bytes) -> Report:
        """Return the report that `to_json` has written."""
        fields: dict[str, Any] = json.loads(text)
        fields["reason"] = Reason[fields["reason"]]
        if fields["mismatch"] is not None:
            fields["mismatch"] = Mismatch[fields["mismatch"]]
        if fields["members"] is not None:
            fields["members"] = tuple(fields["members"])
        fields["ranks"] = tuple(map(rank_from_json, fields["ranks"]))
        return Report(**fields)


def to_json(value: Any) -> bytes:
    """Return a data class as JSON in ASCII, with members of enumerations by name."""
    return json.dumps(asdict(value), default=lambda member: member.name, separators=(",", ":")).encode()


def rank_from_json(fields: dict[str, Any]) -> RankState:
    """Return the rank's state from the text that `to_json` has returned."""
    fields["activity"] = Activity[fields["activity"]]
    if fields["message"] is not None:
        fields["message"] = MessageWait(**fields["message"])
    fields["calls"] = tuple(CallRecord(**call) for call in fields["calls"])
    return RankState(**fields)
