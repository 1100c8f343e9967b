"""A hang report as text: which ranks wait where, which ranks are missing, and what to do next."""

from __future__ import annotations

from collections.abc import Callable

from mpiwatch.flight_recorder.circle import circle
from mpiwatch.flight_recorder.groups import groups, ranks_in_short, ranks_on_hosts
from mpiwatch.flight_recorder.opcodes import NONBLOCKING_COLLECTIVES, PROBES, SENDS
from mpiwatch.flight_recorder.report import (
    Activity,
    CallRecord,
    MessageWait,
    Mismatch,
    RankState,
    Reason,
    Report,
)
from mpiwatch.flight_recorder.table import call_details, table_lines
from mpiwatch.wording import counted

LONGER_S = 60.0  # the least deadline that the advice names
MAX_CIRCLE = 8  # ranks of a circle that the title lists
STUCK = (Activity.WAITING_IN_COLLECTIVE, Activity.WAITING_FOR_MESSAGE, Activity.IN_MPI_CALL)


def render(report: Report, in_program: bool = False) -> str:
    """Return the whole text of a report; `in_program`: for a program's terminal rather than a cell."""
    if report.reason is Reason.INTERRUPTED:
        return title(report)
    return "\n".join(
        [title(report), *rank_lines(report), "", *table_lines(report), *advice(report, in_program)]
    )


def title(report: Report) -> str:
    """Return the sentence that says what is wrong."""
    if report.reason in _TITLES:
        return _TITLES[report.reason](report)
    if report.mismatch is not None:
        return _mismatch(report.mismatch, report.number)
    if report.number > 0:
        return _missing(report)
    if report.reason in (Reason.DEADLOCK, Reason.CIRCLE):
        return _circle(report) if report.reason is Reason.CIRCLE else _deadlock(report)
    waiting = [rank for rank in report.ranks if rank.message is not None]
    reporters = [rank for rank in waiting if rank.rank == report.reporter] or waiting
    return _unmatched(report, reporters[0]) if reporters else "A rank waited too long."


def _died(report: Report) -> str:
    dead = next(rank for rank in report.ranks if rank.rank == report.reporter)
    host = f" (host {dead.host})" if dead.host else ""
    return f"rank {dead.rank} of {report.world_size or len(report.ranks)}{host} {dead.error or 'died'}."


_TITLES: dict[Reason, Callable[[Report], str]] = {
    Reason.STOPPED: lambda report: "What the ranks were doing when they were stopped:",
    Reason.INTERRUPTED: lambda report: f"rank {report.reporter} was interrupted while it was waiting.",
    Reason.RANK_DIED: _died,
    Reason.THREADS: lambda report: (
        f"Two threads of rank {report.reporter} called collectives on one communicator at once."
    ),
}


def _mismatch(found: Mismatch, number: int) -> str:
    if found is Mismatch.OPERATION:
        return f"Collective mismatch: the ranks called different operations as collective #{number}."
    return f"Collective mismatch: the ranks called collective #{number} with different {found.name.lower()}s."


def _missing(report: Report) -> str:
    joined = report.joined()
    call = joined[0].calls[-1]
    what = ", ".join(filter(None, [call.operation, call_details(call)]))
    if _all_joined_late(report):
        return f"All ranks joined collective #{call.number} ({what}), but not within {report.deadline_s:g} s."
    return f"{ranks_on_hosts(report, report.missing())} never joined collective #{call.number} ({what})."


def _all_joined_late(report: Report) -> bool:
    """Return whether no rank is missing: the last ones joined the collective after the deadline."""
    return report.number > 0 and report.mismatch is None and not report.missing()


def _deadlock(report: Report) -> str:
    stuck = [rank for rank in report.ranks if rank.activity in STUCK]
    calls = {rank.message.operation if rank.message else rank.mpi_call for rank in stuck}
    where = f" in {calls.pop()}" if len(calls) == 1 else ""
    have = "have" if len(stuck) > 1 else "has"
    others = "no other rank can end the wait" if len(stuck) < len(report.ranks) else "none can continue"
    return (
        f"Deadlock: {ranks_in_short([rank.rank for rank in stuck])} {have} waited{where} "
        f"for {report.deadline_s:g} s, and {others}."
    )


def _unmatched(report: Report, rank: RankState) -> str:
    message = rank.message
    assert message is not None
    peer = _peer(message)
    tag = "" if message.tag is None else f" (tag {message.tag})"
    if message.operation in NONBLOCKING_COLLECTIVES:
        return _not_in(message.operation, report)
    if message.operation == "Wait":
        return f"rank {rank.rank} is waiting for a request that does not complete."
    missing = f"receive on {peer}" if message.operation in SENDS else f"send from {peer}"
    purpose = f" for {message.purpose}" if message.purpose else ""
    waiting = f"is waiting {'for its' if message.origin else 'in'} {message.operation}"
    if message.operation in PROBES:
        waiting = f"has called {_polls(message)}"
    return f"rank {rank.rank} {waiting}{purpose}: no matching {missing}{tag}."


def _not_in(operation: str, report: Report) -> str:
    """Return which ranks wait for a non-blocking collective to complete, and which do not."""
    inside = [rank.rank for rank in report.ranks if rank.message and rank.message.operation == operation]
    outside = [rank.rank for rank in report.ranks if rank.rank not in inside]
    waiting = (
        f"{ranks_in_short(inside)} {'are' if len(inside) > 1 else 'is'} waiting for {operation} to complete"
    )
    return (
        f"{waiting}, {ranks_in_short(outside)} {'are' if len(outside) > 1 else 'is'} not."
        if outside
        else f"{waiting}."
    )


def _peer(message: MessageWait) -> str:
    if message.peer is None:
        return "any rank"
    return f"rank {message.peer}" if message.peer >= 0 else "different ranks"


def _circle_of(report: Report) -> list[int]:
    """Return the ranks of a circle of messages, each before the one it waits for; empty if there is none."""
    if report.reason is not Reason.CIRCLE or report.reporter is None:
        return []
    peers = {rank.rank: rank.message.peer for rank in report.ranks if rank.message is not None}
    ranks = circle(report.reporter, {rank: peer for rank, peer in peers.items() if peer is not None})
    first = ranks.index(min(ranks)) if ranks else 0
    return ranks[first:] + ranks[:first]


def _circle(report: Report) -> str:
    """Return which ranks wait for one another in blocking messages, and why none of them can go on."""
    messages = {rank.rank: rank.message for rank in report.ranks if rank.message is not None}
    ranks = _circle_of(report)
    if not ranks:  # a rank waits for any other
        return f"{ranks_in_short(list(messages))} wait for messages from one another, but none sends one."
    operations = {messages[rank].operation for rank in ranks}
    call = operations.pop() if len(operations) == 1 else ""
    if len(ranks) == 1:
        never = "receive" if call in SENDS else "send"
        return f"rank {ranks[0]} waits for itself in {call}: it can {never} only afterwards."
    path = [*map(str, ranks), str(ranks[0])]
    if len(ranks) > MAX_CIRCLE:
        path[3:-2] = ["…"]
    wait = f"ranks {' → '.join(path)} wait for each other in a circle"
    if not call:
        return f"{wait}: each waits in a send or a receive for the next."
    until = "until the next receives" if call in SENDS else "for a message from the next"
    return f"{wait}: each waits in {call} {until}."


def rank_lines(report: Report) -> list[str]:
    """Return a line for each group of ranks that do the same, waiting ranks first, large groups first."""
    shown = groups(report)
    lines = [
        f"  {ranks_on_hosts(report, ranks)} {_describe(report, shared, len(ranks) > 1)}"
        for shared, ranks in shown
    ]
    others = {rank.rank for rank in report.ranks}.difference(*(ranks for _, ranks in shown))
    if others:
        lines.append(f"  … and {counted(len(others), 'more rank')}: the report as JSON has all")
    return lines


def _describe(report: Report, rank: RankState, many: bool) -> str:
    """Return what one rank or `many` ranks do: a verb and what follows."""
    be = "are" if many else "is"
    at = f" at {rank.place}" if rank.place else ""
    if rank.activity is Activity.WAITING_IN_COLLECTIVE:
        call = rank.calls[-1]
        details = ", ".join(filter(None, [f"#{call.number}", call_details(call)]))
        elsewhere = " on another communicator" * (report.communicator not in (None, call.communicator))
        before = f"called {_call(rank.calls[0])} and " if len(rank.calls) > 1 else ""
        return f"{before}{be} waiting in {call.operation} ({details}){elsewhere}{at}"
    if rank.message is not None:
        if rank.message.polls:
            be = f"{'have' if many else 'has'} called {_polls(rank.message)} and {be}"
        return f"{be} waiting {_waited_for(rank, rank.message)}{at}"
    if report.number == 0:
        return _verb(rank, many)
    doing = f"{'they' if many else 'it'} {_verb(rank, many)}"
    # The ranks of a cell that was stopped might still have joined.
    never = f"{'have' if many else 'has'} not" if report.reason is Reason.STOPPED else "never"
    progress = f"{never} joined #{report.number}: {doing}"
    if not rank.calls:
        return progress
    last = rank.calls[-1]
    if last.number == report.number:
        return f"called {_call(last)} and {_verb(rank, many)}"
    return (
        f"finished collective #{last.number} ({last.operation}, {last.file} line {last.line}) but {progress}"
    )


def _call(call: CallRecord) -> str:
    details = ", ".join(filter(None, [call_details(call), f"{call.file} line {call.line}" * bool(call.file)]))
    return f"{call.operation} as collective #{call.number}" + (f" ({details})" if details else "")


def _polls(message: MessageWait) -> str:
    """Return `Iprobe 1,203,411 times without success`."""
    call = message.operation if message.operation in PROBES else "Test"
    return f"{call} {message.polls:,} times without success"


def _waited_for(rank: RankState, message: MessageWait) -> str:
    """Return `in Recv (from rank 2, tag 7)`, or for a request, the call that made it and its line."""
    origin = message.origin
    started = f", started at {origin}," if origin and not rank.place.startswith(origin) else ""
    if message.operation in NONBLOCKING_COLLECTIVES or message.operation == "Wait":
        return f"for {'a request' if message.operation == 'Wait' else f'its {message.operation}'}{started}"
    peer = _peer(message)
    direction = "to" if message.operation in SENDS else "from"
    tag = "" if message.tag is None else f", tag {message.tag}"
    purpose = f" for {message.purpose}" if message.purpose else ""
    own = f"for its {message.operation}" if origin else f"in {message.operation}"
    if message.operation in PROBES:
        own = "for a message"
    return f"{own} ({direction} {peer}{tag}){started}{purpose}"


def _verb(rank: RankState, many: bool) -> str:
    be, have, do = ("are", "have", "do") if many else ("is", "has", "does")
    return {
        Activity.IN_MPI_CALL: f"{be} in {rank.mpi_call}" + (f" at {rank.place}" if rank.place else ""),
        Activity.RUNNING: f"{be} at {rank.place}" if rank.place else f"{be} running",
        Activity.RETURNED: f"{have} returned from the cell",
        Activity.RAISED: f"raised {rank.error}",
        Activity.NOT_STARTED: f"{have} not started the cell",
        Activity.EXITED: f"{have} ended {'their programs' if many else 'its program'}",
        Activity.DEAD: _death(rank, many),
        Activity.UNRESPONSIVE: f"{do} not respond",
        Activity.UNREACHABLE: "cannot be reached",
    }[rank.activity]


def _death(rank: RankState, many: bool) -> str:
    if not rank.error:
        return f"{'have' if many else 'has'} died"
    return rank.error + (f" at {rank.place}" if rank.place else "")


def advice(report: Report, in_program: bool = False) -> list[str]:
    """Return what to do next; for a program, which ends, this is less."""
    if report.reason is Reason.STOPPED:
        return []
    if report.reason is Reason.THREADS:
        return ["MPI matches them by their order. Give each thread its own communicator: `comm.Dup()`."]
    if any(rank.mpi_call for rank in report.ranks) and not in_program:
        return _advice_on_calls(report)
    lines = []
    waiting = [rank.message.operation for rank in report.ranks if rank.message is not None]
    if len(_circle_of(report)) > 1:
        lines.append(
            "Break the circle: let even ranks send first and odd ranks receive first, or use Sendrecv, "
            "which does both at once."
        )
    elif _circle_of(report):
        lines.append("A rank cannot wait for itself: use Sendrecv, or post Irecv or Isend first.")
    elif report.reason is Reason.CIRCLE:
        lines.append("A rank has to send before the others wait for its message; Sendrecv does both at once.")
    if in_program:
        return lines
    connect = f"rc = connect(n={report.world_size or len(report.ranks)}"
    longer_s = f"{max(LONGER_S, 3 * report.deadline_s):g}"
    busy = [rank.rank for rank in report.ranks if rank.activity is Activity.RUNNING]
    if report.reason is Reason.TIMED_OUT and busy:
        lines.append(
            f"If {ranks_in_short(busy)} {'are' if len(busy) > 1 else 'is'} only slow, allow more time: "
            f"`{connect}, deadline_s={longer_s})`, or `comm.deadline_s = {longer_s}` in a `%%px` cell."
        )
    if not waiting and _all_joined_late(report):
        lines.append(f"Run the cell again, or allow more time: `{connect}, deadline_s={longer_s})`.")
    elif report.reason is Reason.CIRCLE and not set(waiting) & set(SENDS):
        lines.append("The ranks are ready: fix the cell and run it again.")
    elif waiting:
        lines.append(
            "The ranks are ready: fix the cell and run it again. Messages that this cell has sent "
            "cannot reach a later cell."
        )
    else:
        lines.append("No data has moved and the ranks are ready: fix the cell and run it again.")
    return lines


def _advice_on_calls(report: Report) -> list[str]:
    """Return what to do about ranks in MPI calls that cannot be ended."""
    stuck = [rank for rank in report.ranks if rank.mpi_call]
    calls = " and ".join(dict.fromkeys(rank.mpi_call for rank in stuck))
    ranks = ranks_in_short([rank.rank for rank in stuck])
    return [
        f"{calls} on {ranks} ends when the other ranks make the matching call, and cannot be interrupted: "
        f"{'these ranks' if len(stuck) > 1 else 'this rank'} must be restarted."
    ]
