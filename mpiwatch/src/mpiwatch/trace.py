"""Recordings of all ranks as one: messages matched, collectives joined, one clock; and as a Chrome trace.

    trace = merge([read(content) for content in contents])    of the logs of all ranks
    trace.messages, trace.collectives, trace.spans(rank)
    chrome_trace(trace)                                       for Perfetto (ui.perfetto.dev)

`sessions.begin_recording` and `end_recording` record the ranks of a session, and `mpiwatch --trace FILE`
those of a program. Nothing here loads MPI or NumPy.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mpiwatch.trace_log import EVENTS, Event, Kind, Part, RankLog, Values, read, read_file

__all__ = [
    "EVENTS",
    "Collective",
    "Event",
    "Kind",
    "Message",
    "Part",
    "RankLog",
    "Span",
    "Trace",
    "Values",
    "chrome_content",
    "chrome_span",
    "chrome_trace",
    "members_of",
    "merge",
    "read",
    "read_file",
]


class Message(NamedTuple):
    """A message: its send and its receive; None for the one that is not in the recording.

    `left_s`: when its send began. `asked_s`: when its receive began; `arrived_s`: when that was complete, or
    was seen to be; both None if no receive took it. `nbytes`: -1 if not known.
    """

    send: Event | None
    receive: Event | None
    source: int
    dest: int
    tag: int
    nbytes: int
    left_s: float | None
    asked_s: float | None
    arrived_s: float | None
    completion: Event | None  # the row that says that the receive's request was complete


class Collective(NamedTuple):
    """A collective of a communicator: each rank's call, by rank. Ranks that never made it are missing."""

    operation: str
    comm: str
    members: tuple[int, ...]
    calls: dict[int, Event]
    completions: dict[int, Event]  # of a non-blocking one

    @property
    def missing(self) -> list[int]:
        """Return the ranks that never made the call."""
        return [rank for rank in self.members if rank not in self.calls]

    @property
    def last_arrival(self) -> Event:
        """Return the call of the rank that came last."""
        return max(self.calls.values(), key=lambda call: call.begin_s)


class Span(NamedTuple):
    """What a rank does for a while: `what` is compute, wait or transfer.

    `event`: the call; None outside MPI. `awaited`: the ranks for which the rank waits, as far as it is known.
    """

    what: str
    begin_s: float
    end_s: float
    event: Event | None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The recordings of all ranks, on one clock.

    `begin_s` and `end_s`: when the first rank began, and when the last one ended. `logs`: by rank; a rank
    whose log was lost has none. `clock_error_s`: by how much times of two ranks may be wrong. `shift_s`: by
    how much more than was measured a machine's clock had to be set so that no message arrives before it left.
    """

    size: int
    logs: dict[int, RankLog]
    messages: list[Message]
    collectives: list[Collective]
    begin_s: float
    end_s: float
    clock_error_s: float
    shift_s: float = 0.0

    def part(self, name: str) -> Trace | None:
        """Return a part of the recording as one of its own; None if no rank has it."""
        logs = []
        for log in self.logs.values():
            events = next((part.events for part in log.parts if part.name == name), None)
            if events is not None:
                logs.append(log._replace(events=events, parts=(), lost=0))
        return merge(logs) if logs else None

    @property
    def lost(self) -> dict[int, int]:
        """Return how many events there was no room for, by rank, where there were any."""
        return {rank: log.lost for rank, log in self.logs.items() if log.lost}

    @property
    def lost_ranks(self) -> list[int]:
        """Return the ranks whose log was lost."""
        return [rank for rank in range(self.size) if rank not in self.logs]

    def end_of(self, rank: int) -> float:
        """Return when a rank's recording ended, or the end of all if it was killed."""
        end_s = self.logs[rank].end_s
        return self.end_s if end_s is None else end_s

    def spans(self, rank: int) -> list[Span]:
        """Return what a rank does, without gaps: it computes, waits for another rank, or transfers."""
        return self._spans_of_all[rank]

    @cached_property
    def _spans_of_all(self) -> dict[int, list[Span]]:
        """What each rank does: this is asked for again and again."""
        others = _others_came(self)
        return {rank: list(_spans(self, rank, others)) for rank in self.logs}

    def traffic(self) -> list[list[tuple[int, int]]]:
        """Return the number of messages and bytes from the rank of each row to that of each column."""
        table = [[(0, 0)] * self.size for _ in range(self.size)]
        for message in self.messages:
            if message.send is not None:
                count, nbytes = table[message.source][message.dest]
                table[message.source][message.dest] = count + 1, nbytes + max(0, message.nbytes)
        return table


def merge(logs: Iterable[RankLog]) -> Trace:
    """Return the recordings of the ranks as one. Raise ValueError if there are none."""
    by_rank = {log.rank: log for log in sorted(logs)}
    if not by_rank:
        raise ValueError("expected the recordings of ranks, got none")
    shifts = _shifts(by_rank, _matched(by_rank))
    by_rank = {rank: log.moved(shifts[log.machine]) for rank, log in by_rank.items()}
    shift_s = max(shifts.values()) - min(shifts.values())
    times = [log.begin_s for log in by_rank.values()]
    for log in by_rank.values():
        times += [log.end_s] if log.end_s is not None else []
        times += [event.end_s or event.begin_s for event in log.events]
    return Trace(
        size=max(log.size for log in by_rank.values()),
        logs=by_rank,
        messages=_matched(by_rank),
        collectives=_joined(by_rank),
        begin_s=min(log.begin_s for log in by_rank.values()),
        end_s=max(times),
        clock_error_s=max(2 * max(log.clock_error_s for log in by_rank.values()), shift_s),
        shift_s=shift_s,
    )


def _shifts(logs: Mapping[int, RankLog], messages: Sequence[Message]) -> dict[int, float]:
    """Return by how much to set the clock of each machine so that no message arrives before it left.

    The measured clocks may be wrong by a little, and two clocks drift apart in a long run. The shifts are 0
    if there is no need. If the clocks drift so far that no shift fits all messages, they are 0, too, and the
    arrows of those messages have no length.
    """
    machines = sorted({log.machine for log in logs.values()})
    # The clock of `dest` minus that of `source` must be set by at least as much.
    least: dict[tuple[int, int], float] = {}
    for message in messages:
        if message.send is None or message.completion is None or message.completion.end_s is None:
            continue
        link = logs[message.send.rank].machine, logs[message.completion.rank].machine
        early_s = message.send.begin_s - message.completion.end_s
        if link[0] != link[1]:
            least[link] = max(least.get(link, early_s), early_s)
    shifts = dict.fromkeys(machines, 0.0)
    for _ in machines:
        is_done = True
        for (source, dest), seconds in least.items():
            if shifts[dest] - shifts[source] < seconds - CLOCK_STEP_S:
                shifts[dest] = shifts[source] + seconds
                is_done = False
        if is_done:
            first = shifts[machines[0]]
            return {machine: shift - first for machine, shift in shifts.items()}
    return dict.fromkeys(machines, 0.0)


CLOCK_STEP_S = 1e-9  # by which the sum of two times may be wrong
SENDS, RECEIVES = (Kind.SEND, Kind.START_SEND), (Kind.RECEIVE, Kind.START_RECEIVE)


def _matched(logs: Mapping[int, RankLog]) -> list[Message]:
    """Return all messages. Those of two ranks with one tag arrive in the order in which they were sent."""
    sends: dict[tuple[Any, ...], deque[Event]] = defaultdict(deque)
    for rank, log in logs.items():
        for event in log.events:
            if event.kind in SENDS and not _was_refused(event):
                sends[event.comm, rank, event.peer, event.tag].append(event)
    messages = []
    for log in logs.values():
        completions = {
            event.request: event for event in log.events if event.kind in (Kind.COMPLETE, Kind.CANCELLED)
        }
        for event in log.events:
            if event.kind not in RECEIVES:
                continue
            completion = completions.get(event.request) if event.kind is Kind.START_RECEIVE else event
            is_over = completion is not None and completion.kind is not Kind.CANCELLED
            if completion is None or not is_over or completion.end_s is None or completion.has_failed:
                continue
            send = _taken_from(sends, completion)
            messages.append(_message(send, event, completion))
    messages += [_message(send, None, None) for waiting in sends.values() for send in waiting]
    return sorted(messages, key=lambda message: message.left_s or message.asked_s or 0.0)


def _taken_from(sends: Mapping[tuple[Any, ...], deque[Event]], completion: Event) -> Event | None:
    """Take the send that a receive has completed out of those that wait; None if there is none."""
    comm, rank, peer, tag = completion.comm, completion.rank, completion.peer, completion.tag
    waiting = sends.get((comm, peer, rank, tag))
    if not waiting and (peer < 0 or tag < 0):  # which message it was is not known: the first that fits
        fitting = [
            queue
            for (of_comm, source, dest, of_tag), queue in sends.items()
            if queue and (of_comm, dest) == (comm, rank) and peer in (source, -1) and tag in (of_tag, -1)
        ]
        waiting = min(fitting, key=lambda queue: queue[0].begin_s, default=None)
    return waiting.popleft() if waiting else None


def _was_refused(send: Event) -> bool:
    """Return whether a send has raised an error at once, so that nothing has left the rank."""
    return send.has_failed and (send.kind is Kind.START_SEND or not send.never_ended)


def _message(send: Event | None, receive: Event | None, completion: Event | None) -> Message:
    about = send or completion
    assert about is not None
    sizes = [event.nbytes for event in (completion, send) if event is not None and event.nbytes >= 0]
    source, dest = (about.rank, about.peer) if send is not None else (about.peer, about.rank)
    arrived_s = completion.end_s if completion is not None else None
    if send is not None and arrived_s is not None:
        arrived_s = max(arrived_s, send.begin_s)  # the clocks of two machines may differ by more than it took
    return Message(
        send=send,
        receive=receive,
        source=source,
        dest=dest,
        tag=about.tag,
        nbytes=sizes[0] if sizes else -1,
        left_s=send.begin_s if send is not None else None,
        asked_s=receive.begin_s if receive is not None else None,
        arrived_s=arrived_s,
        completion=completion,
    )


def _joined(logs: Mapping[int, RankLog]) -> list[Collective]:
    """Return all collectives: the ranks of a communicator call them in the same order."""
    calls: dict[tuple[str, bool], dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    completions: dict[tuple[int, int], Event] = {}
    for rank, log in logs.items():
        for event in log.events:
            if event.kind in (Kind.COLLECTIVE, Kind.START_COLLECTIVE):
                calls[event.comm, event.kind is Kind.COLLECTIVE][rank].append(event)
            elif event.kind is Kind.COMPLETE:
                completions[rank, event.request] = event
    collectives = []
    for (comm, _), by_rank in calls.items():
        members = members_of(comm)
        for index in range(max(len(events) for events in by_rank.values())):
            made = {rank: events[index] for rank, events in by_rank.items() if index < len(events)}
            ended = {
                rank: completions[rank, event.request]
                for rank, event in made.items()
                if event.request and (rank, event.request) in completions
            }
            operation = next(iter(made.values())).operation
            collectives.append(Collective(operation, comm, members, made, ended))
    return sorted(collectives, key=lambda collective: min(call.begin_s for call in collective.calls.values()))


def members_of(comm: str) -> tuple[int, ...]:
    """Return the ranks of the world that are the members of a communicator, from its name in a trace."""
    return tuple(int(rank) for rank in comm.rpartition(":")[2].split(",") if rank)


# What a rank does

IN_MPI = Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.WAIT, Kind.PROBE


def _spans(trace: Trace, rank: int, others: Mapping[tuple[int, int], _Other]) -> Iterator[Span]:
    """Yield what a rank does. In a call, it waits until the other rank has come, then it transfers."""
    log = trace.logs[rank]
    at = log.begin_s
    end_of_rank = trace.end_of(rank)
    calls = sorted((event for event in log.events if event.kind in IN_MPI), key=lambda event: event.begin_s)
    for index, event in enumerate(calls):
        following = calls[index + 1].begin_s if index + 1 < len(calls) else end_of_rank
        end_s = event.end_s
        if end_s is None or (event.never_ended and index + 1 == len(calls)):
            end_s = following
        begin_s = max(event.begin_s, at)
        if end_s <= begin_s:  # the second part of an exchange
            continue
        if begin_s > at:
            yield Span("compute", at, begin_s, None)
        other = others.get((rank, event.number))
        if event.end_s is None or event.has_failed:
            missing = _missing(trace, event) if event.never_ended else ()
            yield Span("wait", begin_s, end_s, event, missing)
        elif event.kind is Kind.WAIT and not event.request and event.peer >= 0:
            # Of an algorithm that sends no message: ranks that share memory only wait for one another.
            yield Span("wait", begin_s, end_s, event, (event.peer,))
        else:
            came_s = begin_s if other is None else min(max(other.came_s, begin_s), end_s)
            if came_s > begin_s and other is not None:
                yield Span("wait", begin_s, came_s, event, (other.rank,))
            if end_s > came_s:
                yield Span("transfer", came_s, end_s, event)
        at = end_s
    if end_of_rank > at:
        yield Span("compute", at, end_of_rank, None)


class _Other(NamedTuple):
    """The last rank that a call needs, and when it began its part."""

    came_s: float
    rank: int


def _missing(trace: Trace, event: Event) -> tuple[int, ...]:
    """Return the ranks for which a call waits that has not ended well."""
    if event.peer >= 0:
        return (event.peer,)
    for collective in trace.collectives:
        call = collective.calls.get(event.rank)
        if call is not None and (event.request or event.number) in (call.request or call.number, call.number):
            return tuple(collective.missing)
    return ()


def _others_came(trace: Trace) -> dict[tuple[int, int], _Other]:
    """Return, by a rank and the number of its call, the last rank that it needs and when that came."""
    came: dict[tuple[int, int], _Other] = {}

    def add(rank: int, number: int, came_s: float, other: int) -> None:
        known = came.get((rank, number))
        if known is None or known.came_s < came_s:
            came[rank, number] = _Other(came_s, other)

    sent = _completions_of_sends(trace)
    for message in trace.messages:
        if message.send is None or message.receive is None:
            continue
        if message.completion is not None:
            add(message.dest, message.completion.number, message.send.begin_s, message.source)
        is_blocking = message.send.kind is Kind.SEND
        completed = message.send if is_blocking else sent.get((message.source, message.send.request))
        # A send that is complete before it is asked for has left its message with MPI.
        asked_s = message.receive.begin_s
        if completed is not None and completed.end_s is not None and asked_s < completed.end_s:
            add(message.source, completed.number, asked_s, message.dest)
    for collective in trace.collectives:
        last = collective.last_arrival
        for rank, call in collective.calls.items():
            waiting = collective.completions.get(rank, call)
            add(rank, waiting.number, last.begin_s, last.rank)
    return came


def _completions_of_sends(trace: Trace) -> dict[tuple[int, int], Event]:
    """Return the rows that have seen requests of sends complete, by the rank and the request."""
    return {
        (rank, event.request): event
        for rank, log in trace.logs.items()
        for event in log.events
        if event.kind is Kind.COMPLETE and event.is_of_send
    }


# The Chrome trace format

_NAMES = {"compute": "computing", "wait": "waiting", "transfer": "transferring"}


def chrome_trace(trace: Trace, about: Mapping[str, Any] | None = None) -> str:
    """Return a trace in the Chrome trace format (JSON), with an arrow for each message.

    `about` is added to what the file says about itself.
    """
    rows = {1 + rank: f"rank {rank}" for rank in range(trace.size)}  # some viewers hide thread 0
    events: list[dict[str, Any]] = []
    for rank in trace.logs:
        for event in trace.logs[rank].events:
            if event.kind in (Kind.COMPLETE, Kind.CANCELLED):
                continue
            end_s = trace.end_of(rank) if event.end_s is None else event.end_s
            events.append(_span(trace, 1 + rank, _label(event), "mpi", event.begin_s, end_s, _details(event)))
        for span in trace.spans(rank):
            if span.what == "compute":
                about_span = _NAMES[span.what], span.what
                events.append(_span(trace, 1 + rank, *about_span, span.begin_s, span.end_s, {}))
    for number, message in enumerate(trace.messages, 1):
        events += _flow(trace, number, message)
    return chrome_content("MPI ranks", rows, events, {**_about(trace), **(about or {})})


def chrome_content(
    process: str,
    rows: Mapping[int, str],
    events: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> str:
    """Return a file in the Chrome trace format, which Perfetto opens: its rows have names by their numbers.

    `about` is its metadata. Times in `events` are in µs.
    """
    names = [("process_name", 1, process), *(("thread_name", *row) for row in sorted(rows.items()))]
    head = [
        {"ph": "M", "name": kind, "pid": 1, "tid": row, "args": {"name": name}} for kind, row, name in names
    ]
    content = {"traceEvents": [*head, *events], "displayTimeUnit": "ms", "otherData": dict(about)}
    return json.dumps(content)


def chrome_span(  # noqa: PLR0917
    row: int, name: str, category: str, begin_s: float, end_s: float, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a bar in a row of a Chrome trace."""
    event = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": row}
    event |= {"ts": round(1e6 * begin_s, 3), "dur": round(1e6 * max(0.0, end_s - begin_s), 3)}
    return {**event, "args": dict(details)}


def _span(  # noqa: PLR0917
    trace: Trace,
    row: int,
    name: str,
    category: str,
    begin_s: float,
    end_s: float,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    return chrome_span(row, name, category, begin_s - trace.begin_s, end_s - trace.begin_s, details)


def _label(event: Event) -> str:
    if event.kind is Kind.RAISED:
        return event.error
    if event.peer < 0:
        return event.operation
    arrow = "→" if event.kind in SENDS or event.is_of_send else "←"
    return f"{event.operation} {arrow} {event.peer}"


def _details(event: Event) -> dict[str, Any]:
    details: dict[str, Any] = {"line": event.line}
    if event.nbytes >= 0:
        details["bytes"] = event.nbytes
    if event.tag >= 0:
        details["tag"] = event.tag
    if event.root >= 0:
        details["root"] = event.root
    if event.never_ended:
        details["ended"] = "never"
    elif event.has_failed:
        details["ended"] = event.error
    return details


def _flow(trace: Trace, number: int, message: Message) -> list[dict[str, Any]]:
    """Return the two ends of a message's arrow; none if no receive took it."""
    if message.send is None or message.completion is None or message.arrived_s is None:
        return []
    common = {"name": "message", "cat": "message", "id": number, "pid": 1}
    left_s = message.send.begin_s - trace.begin_s
    # Perfetto binds an end to the bar around it: the call that has completed the receive.
    arrived_s = max(message.arrived_s - trace.begin_s, left_s)
    end = {"ph": "f", "bp": "e", "tid": 1 + message.dest, "ts": round(1e6 * arrived_s, 3) - 0.001}
    return [
        {**common, "ph": "s", "tid": 1 + message.source, "ts": round(1e6 * left_s, 3)},
        {**common, **end},
    ]


def _about(trace: Trace) -> dict[str, Any]:
    """Return what a file says about itself."""
    about: dict[str, Any] = {"ranks": trace.size, "messages": len(trace.messages)}
    about["clock_error_us"] = round(1e6 * trace.clock_error_s, 1)
    about["recording_us"] = {rank: round(1e6 * log.own_s) for rank, log in trace.logs.items()}
    if trace.lost:
        about["not_recorded"] = {
            f"rank {rank}": f"{lost} events after the first {EVENTS}" for rank, lost in trace.lost.items()
        }
    if trace.lost_ranks:
        about["lost_ranks"] = trace.lost_ranks
    return about
