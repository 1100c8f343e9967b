"""Waiting for messages and requests: a wait ends with a report if the other rank takes no part.

mpi4py's own `Wait` is one call of the MPI library, and only the end of the process can end it; a wait that
polls ends with a HangError if it cannot complete. A rank that polls in a loop of its own, and does nothing
else, waits for a message but looks busy: its polls are counted.
"""

# ruff: noqa: PLR0917 (every nanosecond counts)

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic, process_time, sleep
from typing import Any, NamedTuple

from mpi4py import MPI

from mpiwatch import snapshot, waiting
from mpiwatch.recorder import NAME_BYTES, ORIGIN_BYTES, PURPOSE_BYTES, CellState, WaitingIn, fit
from mpiwatch.report import RENDEZVOUS, ranks_phrase
from mpiwatch.under_way import (
    NO_PEER,
    RECEIVING,
    SENDING,
    cancel,
    has_unfinished,
    keep,
    made_by,
    traffic,
    under_way,
)
from mpiwatch.waiting import NAP_S, SPIN_S, Over, Waiting, Watch, wait_until, world_ranks

SPIN_IN_SCHEDULE_S = 0.05  # much longer than a segment takes between two ranks of one machine
# Before it is certain that no message is on its way: a poll moves at least one, and each rank can have only
# some hundred of those that a finished Send has left with MPI.
POLLS_WHILE_STUCK = 300
CERTAIN_S = 1.0  # of nothing but polls, before the rank counts as waiting
NAP_SHARE, LONGEST_NAP_S = 0.02, 0.05  # of the time that a sleeping barrier has waited
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
# A rank that computes or sleeps between its polls makes fewer, or spends more time on each.
LEAST_PER_S, MOST_CPU_S = 2_000, 20e-6
# A rank that sleeps between its polls uses a small part of the time, and polls again before long.
MOST_CPU_ASLEEP, ASLEEP_S = 0.2, 2.0

_getframe = sys._getframe

# While calls are recorded: does a wait, and notes it unless it is part of a call that is recorded itself. Its
# arguments are the wait, the requests that it is for, and what an algorithm waits for, or None.
record_wait: Callable[[Callable[[], None], Sequence[Any], Pending | None], None] | None = None


class MessageWait(Waiting):
    """Waiting for a message to arrive or to be taken; `peer` is a rank in the world, or -1 for any rank.

    `purpose`: what the message is part of, such as a schedule; empty for a message of the caller's own. Ranks
    that wait in calls of their own may wait for each other in a circle.
    """

    origin = ""  # the line that made the request
    failed_polls = 0  # by a rank that polls in a loop of its own
    sends_too = False  # whether the call also sends a message, which its peer may receive
    is_circular = True  # whether ranks in such waits may wait for each other in a circle
    subject: MPI.Request | None = None  # what is waited for, if it is a request
    receives: tuple[Any, int, int] | None = None  # of a receive, the communicator, the source and the tag
    stuck_since = 0, 0  # what `confirmation` returned, and how often MPI had been polled then

    def __init__(
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        operation: str,
        peer: int,
        tag: int,
        purpose: str = "",
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.operation, self.peer, self.tag, self.purpose = operation, peer, tag, purpose
        self.may_be_circular = not purpose

    def announce(self) -> None:
        watch, slot = self.watch, self.watch.slot
        watch.post_place(_getframe())
        slot.message_operation = fit(self.operation, NAME_BYTES)
        slot.message_peer, slot.message_tag = self.peer, self.tag
        slot.message_purpose = fit(self.purpose, PURPOSE_BYTES)
        slot.message_origin = fit(self.origin, ORIGIN_BYTES)
        slot.message_polls = self.failed_polls
        slot.message_rival = fit(self.rival(), ORIGIN_BYTES)
        slot.message_number = 0
        if self.may_be_circular and self.is_circular and not watch.is_threaded():
            slot.has_sends = self.sends_too or has_unfinished() or under_way.has_sends(self.subject)
            slot.has_receives = under_way.has_receives(self.subject)
            watch.message_waits += 1
            slot.message_number = watch.message_waits
        slot.waiting_in = WaitingIn.MESSAGE

    def rival(self) -> str:
        """Return an earlier receive that takes the message: `Irecv at cell [3] line 4: …`; else nothing."""
        made = under_way.rival(*self.receives, self.subject) if self.receives is not None else None
        return f"{made.operation} at {made.line_with_cell}" if made is not None else ""

    def cannot_complete(self) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.has_ended(peer, self.patience_s) for peer in peers)

    def is_stuck(self) -> bool:
        """Return whether this rank and all ranks that it waits for, directly or through others, are stuck.

        Messages that the ranks sent before they began to wait may still be on their way. They have arrived
        when each rank has polled MPI often enough since all were seen to wait; each rank notes this in its
        slot.
        """
        recorder, rank = self.watch.recorder, self.watch.rank
        if self.watch.is_threaded():  # a thread that has begun since then may send the message
            self.watch.slot.message_number = 0
        if not recorder.slots[rank].message_number or (
            self.peer >= 0 and recorder.slots[self.peer].waiting_in != WaitingIn.MESSAGE
        ):
            return False
        waits = snapshot.waits(recorder)
        if rank not in waits or rank not in snapshot.stuck_ranks(waits, recorder.size):
            return False
        closure = snapshot.closure(rank, waits)
        if len({self.watch.machines[other] for other in closure}) > 1:
            return False  # a slow link may hold a message for long; at the deadline, the hub sees the circle
        confirmed = snapshot.confirmation(rank, waits)
        if self.stuck_since[0] != confirmed:
            self.stuck_since = confirmed, self.polls
        if self.polls - self.stuck_since[1] < POLLS_WHILE_STUCK:
            return False
        self.watch.slot.confirmed = confirmed
        return all(
            recorder.slots[other].confirmed == snapshot.confirmation(other, waits) for other in closure
        )


class RequestWait(MessageWait):
    """Waiting for requests: for all of them, or, if not `needs_all`, for one of them.

    The slot names the first one that has not completed.
    """

    def __init__(self, watch: Watch, requests: Sequence[MPI.Request], needs_all: bool) -> None:
        deadlines_s = [made.comm.deadline_s for made in map(made_by, requests) if made]
        deadline_s = max(deadlines_s, default=watch.deadline_s())
        super().__init__(watch, [], deadline_s, "Wait", -1, -1)
        self.requests, self.needs_all = requests, needs_all

    def announce(self) -> None:
        self.find_subject()
        super().announce()

    def find_subject(self) -> None:
        """Note the first request that has not completed, and what it waits for."""
        pending = [request for request in self.requests if request and not request.Get_status()]
        self.subject = next(iter(pending), None)
        made = made_by(self.subject)
        if made is None:
            self.operation, self.peer, self.tag, self.origin = "Wait", -1, -1, ""
            self.members = list(range(self.watch.recorder.size))
        else:
            self.members = made.comm._members
            self.operation, self.origin, self.tag = made.operation, made.line, made.tag
            self.peer = made.comm._world_rank(made.peer)
            if made.operation in RECEIVING:
                self.receives = made.comm, made.peer, made.tag
        self.is_circular = self.operation in SENDING | RECEIVING and (self.needs_all or len(pending) == 1)

    def is_stuck(self) -> bool:
        if self.subject is None or not self.subject or self.subject.Get_status():
            self.announce()  # the first one has completed in the meantime
            return False
        return super().is_stuck()

    def cannot_complete(self) -> bool:
        if self.subject is None:
            self.find_subject()
        made = made_by(self.subject)
        if made is None or (not self.needs_all and len(self.requests) > 1):
            return False
        if made.peer == NO_PEER:
            return any(self.watch.has_ended(member, self.patience_s) for member in self.members)
        return super().cannot_complete()


class Pending(NamedTuple):
    """What this rank waits for: messages of `operation` on `comm`.

    `receives` lists the ranks of `comm` whose messages have not arrived, `sends` the ranks that have not
    received ours. Both are empty in a collective of the MPI library, which hides which rank is missing.
    """

    comm: MPI.Intracomm
    operation: str
    receives: list[int]
    sends: list[int]
    is_rendezvous: bool = False  # whether the messages only say that a rank has come to the operation
    request: Any = None  # the one that is waited for now, if there is one: a recording knows its message

    def __str__(self) -> str:
        """Return a phrase to follow "waited for"."""
        parts = []
        if self.receives:
            parts.append(f"a message from {ranks_phrase(sorted(set(self.receives)))}")
        if self.sends:
            parts.append(f"{ranks_phrase(sorted(set(self.sends)))} to receive a message")
        return " and ".join(parts) or "the other ranks"


def wait_for_pending(over: Over, pending: Callable[[], Pending]) -> None:
    """Return when `over()` is True; raise an error that names the missing rank if that takes too long.

    It is a HangError in a watched process, else a TimeoutError after DEADLINE_S. `pending` is called only if
    the wait takes long.
    """

    def describe(waited: float) -> Waiting | None:
        watch, limit_s = waiting.watched, waiting.DEADLINE_S
        if watch is None and waited < limit_s:
            return None
        missing = pending()
        if watch is None:
            raise TimeoutError(
                f"rank {missing.comm.rank} waited {limit_s:g} s in {missing.operation} for {missing}. "
                f"Expected the same call on all {missing.comm.size} ranks: a rank never made it, or gave "
                "another schedule or array size. Messages may still be under way on this communicator: make "
                "a new one before you go on."
            )
        members = world_ranks(missing.comm.Get_group())
        peers = [members[rank] for rank in (*missing.receives, *missing.sends)]
        operation = "Recv" if missing.receives or not peers else "Send"
        purpose = missing.operation
        if missing.is_rendezvous:
            operation, purpose = missing.operation, RENDEZVOUS
        peer = peers[0] if peers else -1
        return MessageWait(watch, members, watch.deadline_s(), operation, peer, -1, purpose)

    def wait() -> None:
        wait_until(over, describe, SPIN_IN_SCHEDULE_S)

    if record_wait is None:
        wait()
        return
    awaited = pending()
    if awaited.is_rendezvous:  # of a call that is recorded itself
        wait()
        return
    record_wait(wait, [awaited.request], awaited)


def note_wait(comm: MPI.Intracomm, wait: Callable[[], None]) -> None:
    """Call `wait`, and let a recording show that this rank waits meanwhile, say for an emulated link."""
    if record_wait is None:
        wait()
    else:
        record_wait(wait, [], Pending(comm, "", [], []))


class Polls:
    """The polls of this process. The watchdog samples them; the polling thread looks whether it may go on.

    A rank that polls as fast as it can waits. One that sleeps between its polls may do so for a while on
    purpose, so it does not count as waiting before the rank that it needs has ended.
    """

    def __init__(self) -> None:
        self.failed = self.successes = 0
        self.is_due = False  # whether the next poll without success has to call `look`
        self.wait: MessageWait | None = None
        self.fast_since = self.slow_since = PollsBegan(0.0, 0)  # polls alone; polls and sleep alone
        self.polled_s = 0.0  # the last sample before which there was a poll
        self.sampled = 0.0, 0.0, 0  # the time, CPU time and `failed` of the last sample
        self.activity: tuple[Any, ...] = ()  # differs if the rank has made another call

    def sample(self, watch: Watch, now: float) -> None:
        """Find out whether this rank has only polled since the last sample. Called by the watchdog."""
        (then, cpu_then, failed_then), activity = self.sampled, self.activity
        self.sampled = now, process_time(), self.failed
        last = traffic.sends[-1] if traffic.sends else None
        self.activity = id(last), watch.calls, traffic.balance, self.successes, watch.epoch, last
        polls_made, cpu_s = self.failed - failed_then, self.sampled[1] - cpu_then
        if polls_made:
            self.polled_s = now
        only_polls = (
            now - then < GAP_S
            and self.activity[:-1] == activity[:-1]
            and watch.slot.cell_state == CellState.RUNNING
            and not watch.waiting
            and not watch.is_threaded()
            and not math.isinf(watch.patience)  # a program may poll for as long as it likes
        )
        is_fast = only_polls and polls_made > LEAST_PER_S * (now - then) and cpu_s < MOST_CPU_S * polls_made
        sleeps = cpu_s < MOST_CPU_ASLEEP * (now - then) and now - self.polled_s < ASLEEP_S
        if not is_fast:
            self.fast_since = PollsBegan(now, self.failed)
            self.withdraw(watch)
        if not (is_fast or (only_polls and sleeps)):
            self.slow_since = PollsBegan(now, self.failed)
        self.is_due = now - min(self.fast_since.time_s, self.slow_since.time_s) > CERTAIN_S

    def withdraw(self, watch: Watch) -> None:
        """Note that this rank does not wait, or not yet."""
        if self.wait is not None:
            watch.withdraw(self.wait)
            self.wait = None

    def look(self, describe: Callable[[Watch], MessageWait]) -> None:
        """Note in the slot that this rank waits; raise HangError if that is of no use any more."""
        self.is_due = False
        watch, now = waiting.watched, self.sampled[0]
        if watch is None or threading.current_thread() is not threading.main_thread():
            return
        wait = self.wait or describe(watch)
        wait.may_be_circular, wait.patience_s = False, wait.deadline_s  # the loop may end without a message
        began = self.fast_since
        if now - began.time_s < CERTAIN_S:
            began = self.slow_since
            if now - began.time_s < wait.patience_s or not wait.cannot_complete():
                return
        self.wait = wait
        wait.since_s, wait.failed_polls = began.time_s, self.failed - began.failed
        watch.slot.message_polls = wait.failed_polls
        try:
            watch.inspect(wait, now - began.time_s)
        except BaseException:
            self.withdraw(watch)
            raise


class PollsBegan(NamedTuple):
    """When this rank began to do nothing but poll, and how many polls without success it had made before."""

    time_s: float
    failed: int


polls = Polls()


def wait_for(
    is_done: Over, requests: Sequence[MPI.Request], needs_all: bool = True, spin_s: float = SPIN_S
) -> None:
    """Return when `is_done()`; raise HangError if the requests cannot complete.

    `needs_all`: whether the wait is for all of them, or for any. An error cancels the receives: they would
    take the messages of the next attempt.
    """

    def describe(waited: float) -> RequestWait | None:
        watch = waiting.watched
        return None if watch is None else RequestWait(watch, requests, needs_all)

    def wait() -> None:
        wait_until(is_done, describe, spin_s)

    try:
        if record_wait is None:
            wait()
        else:
            record_wait(wait, requests, None)
    except BaseException:
        for request in requests:
            made = made_by(request)
            if made is not None and made.operation in RECEIVING:
                cancel(request)
            elif request and made is not None and made.operation in SENDING:
                keep(request)
        raise


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait until all ranks have called this, asleep between polls: 1 ms, and later longer. Collective.

    MPI's own Barrier polls as fast as it can. That is right for microseconds, but takes the core from a rank
    that works for seconds, say rank 0 while it loads a data set. On a watched communicator, raise HangError
    if a rank does not come.
    """
    request, began = comm.Ibarrier(), monotonic()

    def is_done() -> bool:
        if request.Test():
            return True
        # A hundred ranks that poll each millisecond would take two cores.
        sleep(max(NAP_S, min((monotonic() - began) * NAP_SHARE, LONGEST_NAP_S)))
        return False

    if getattr(comm, "_channel", None) is not None:
        wait_for(is_done, [request])
        return
    while not is_done():
        pass
