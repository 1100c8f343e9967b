"""Waiting in a blocking send, receive or probe: for how long, and when it is certain to be of no use."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from mpi4py import MPI

from mpiwatch.flight_recorder import circle
from mpiwatch.flight_recorder.layout import ORIGIN_BYTES, PURPOSE_BYTES, WaitingIn, fit
from mpiwatch.requests import under_way
from mpiwatch.wait import Waiting, Watch

# Before it is certain that no message is on its way: a poll moves at least one, and each rank can have only
# some hundred of those that a finished Send has left with MPI.
POLLS_WHILE_STUCK = 300


class MessageWait(Waiting):
    """Waiting for a message to arrive or to be taken; `peer` is a rank in the world, or -1 for any rank.

    `sends_too`: the call also sends a message, which its peer may receive. `purpose`: what the message is
    part of, such as a schedule; empty for a message of the caller's own.
    """

    origin = ""  # the line that made the request
    is_circular = True  # whether this wait can be part of a circle of messages
    failed_polls = 0  # by a rank that polls in a loop of its own
    waited_for: Sequence[MPI.Request] = ()  # not counted as other messages under way

    def __init__(  # noqa: PLR0917
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        operation: int,
        peer: int,
        tag: int,
        frame: FrameType,
        sends_too: bool = False,
        purpose: str = "",
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.operation, self.peer, self.tag, self.frame = operation, peer, tag, frame
        self.sends_too, self.purpose = sends_too, purpose
        self.stuck_since = 0, 0  # what `confirmation` returned, and how often MPI had been polled then

    def announce(self) -> None:
        slot, watch = self.watch.slot, self.watch
        watch.post_place(self.frame)
        slot.message_operation, slot.message_peer, slot.message_tag = self.operation, self.peer, self.tag
        slot.message_purpose = fit(self.purpose, PURPOSE_BYTES)
        slot.message_origin = fit(self.origin, ORIGIN_BYTES)
        slot.message_polls = self.failed_polls
        if self.purpose or not self.is_circular or watch.is_threaded():
            slot.message_number = 0
        else:
            watch.message_waits += 1
            slot.message_number = watch.message_waits
            slot.has_sends = (
                self.sends_too or under_way.has_unfinished() or under_way.sends.any(self.waited_for)
            )
            slot.has_receives = under_way.receives.any(self.waited_for)
        slot.waiting_in = WaitingIn.MESSAGE

    def is_stuck(self) -> bool:
        """Return whether this rank and all ranks that it waits for, directly or through others, are stuck.

        Messages that the ranks sent before they began to wait may still be on their way. They have arrived
        when each rank has polled MPI often enough since all were seen to wait; each rank notes this in its
        slot.
        """
        recorder, rank = self.watch.recorder, self.watch.rank
        if not recorder.slots[rank].message_number or (
            self.peer >= 0 and recorder.slots[self.peer].waiting_in != WaitingIn.MESSAGE
        ):
            return False
        waiting = circle.waits(recorder)
        if rank not in waiting or rank not in circle.stuck_ranks(waiting, recorder.size):
            return False
        closure = circle.closure(rank, waiting)
        if len({self.watch.machines[other] for other in closure}) > 1:
            return False  # a slow link may hold a message for long; at the deadline, the hub sees the circle
        own = circle.confirmation(rank, waiting)
        if self.stuck_since[0] != own:
            self.stuck_since = own, self.polls
        if self.polls - self.stuck_since[1] < POLLS_WHILE_STUCK:
            return False
        self.watch.slot.confirmed = own
        return all(
            recorder.slots[other].confirmed == circle.confirmation(other, waiting) for other in closure
        )

    def cannot_complete(self, patience_s: float) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.has_ended(peer, patience_s) for peer in peers)
