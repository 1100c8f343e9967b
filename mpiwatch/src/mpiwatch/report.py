"""A hang report: as data, as a table, and as text.

The data say what each rank was doing and why the report was made. The text says which ranks wait where, which
ranks are missing, and what to do next. Ranks that do the same share a line, so that a report of hundreds of
ranks is as short as one of four. It begins with the phrases that messages share and the names of calls.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from itertools import zip_longest
from typing import Any, NamedTuple

from mpiwatch import packages
from mpiwatch.packages import advise

__all__ = [
    "MAKERS",
    "NONBLOCKING_COLLECTIVES",
    "NONBLOCKING_RECEIVES",
    "OF_ARRAYS",
    "OF_OBJECTS",
    "SENDS",
    "Activity",
    "CallRecord",
    "Entry",
    "FindingKind",
    "MessageRecord",
    "Mismatch",
    "RankState",
    "Reason",
    "Report",
    "Status",
    "Table",
    "advice",
    "advise",
    "groups",
    "rank_lines",
    "render",
    "request_kind",
    "table",
    "title",
]

# Phrases that messages share


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`, `0 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranks_phrase(ranks: Collection[int], size: int | None = None) -> str:
    """Return `rank 2`, `ranks 0, 1, 5` or `ranks 0–3, 5`; with `size`, `all 4 ranks` if these are all."""
    if size is not None and len(ranks) == size > 1:
        return f"all {size} ranks"
    texts: list[str] = []
    for run in runs(ranks):
        texts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)


def runs(numbers: Collection[int]) -> list[list[int]]:
    """Return the numbers in ascending order, each run of consecutive numbers as a list of its own."""
    runs_of_numbers: list[list[int]] = []
    for number in sorted(numbers):
        if runs_of_numbers and number == runs_of_numbers[-1][-1] + 1:
            runs_of_numbers[-1].append(number)
        else:
            runs_of_numbers.append([number])
    return runs_of_numbers


def numbered_line(label: str, line: int) -> str:
    """Return `cell line 4`, or `line 4` if the file has no label."""
    return f"{label} line {line}" if label else f"line {line}"


# The names of calls

UNKNOWN = -1  # matches anything: a derived datatype, or a buffer that cannot be inspected

OF_ARRAYS = (
    *("Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather"),
    *("Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scan", "Exscan"),
)
OF_OBJECTS = (
    *("barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall", "scan"),
    "exscan",
)
MAKERS = (  # of communicators
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph"),
    *("Create_dist_graph", "Create_dist_graph_adjacent"),
)
COLLECTIVES = (*OF_ARRAYS, *OF_OBJECTS, *MAKERS, "Sub", "Free", "Disconnect")
RENDEZVOUS = (
    "a rendezvous"  # the purpose of a message that says: this rank has come to a call (mpiwatch.rendezvous)
)
# Calls that connect ranks with other processes -> what ends a wait in them.
CONNECTING = {
    "Spawn": "all processes that it has started have initialised MPI",
    "Spawn_multiple": "all processes that it has started have initialised MPI",
    "Accept": "another program connects to its port",
    "Connect": "another program accepts at its port",
    "Join": "the process at the other end of the socket calls Join, too",
}
# Non-blocking calls return requests, for which a rank can wait. Not every version of mpi4py has all of them.
NONBLOCKING_SENDS = (
    *("Isend", "Ibsend", "Issend", "Irsend", "isend", "ibsend", "issend"),
    *("Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Psend_init"),
)
NONBLOCKING_RECEIVES = ("Irecv", "irecv", "Recv_init", "Precv_init")
_NEIGHBORS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
NONBLOCKING_COLLECTIVES = (
    *(f"I{name.lower()}" for name in OF_ARRAYS),
    *(f"{name}_init" for name in OF_ARRAYS),
    *(f"Ineighbor_{name}" for name in _NEIGHBORS),
    *(f"Neighbor_{name}_init" for name in _NEIGHBORS),
)
PROBES = ("Iprobe", "iprobe", "Improbe", "improbe")
SENDS = ("Send", "Bsend", "Ssend", "Rsend", "send", "bsend", "ssend", *NONBLOCKING_SENDS)


# What strict mode finds


class FindingKind(Enum):
    """What a finding of strict mode is about, for programs that give advice of their own."""

    SEND_NOT_COMPLETED = "send not completed"  # nobody has waited for its request
    RECEIVE_NOT_COMPLETED = "receive not completed"
    COLLECTIVE_NOT_COMPLETED = "collective not completed"
    BUFFER_CHANGED = "buffer changed"  # by the program, before the call was complete
    MEMORY_IN_USE = "memory in use"  # by two calls at once, of which one writes
    COMMUNICATOR_NOT_FREED = "communicator not freed"
    OTHER = "other"


def request_kind(operation: str) -> FindingKind:
    """Return the kind of finding that a request is of which nobody has waited for: `operation` made it."""
    if operation in NONBLOCKING_SENDS or operation.startswith("Isendrecv"):
        return FindingKind.SEND_NOT_COMPLETED
    if operation in NONBLOCKING_RECEIVES:
        return FindingKind.RECEIVE_NOT_COMPLETED
    return FindingKind.COLLECTIVE_NOT_COMPLETED


# The report

MAX_GROUPS = 12  # groups in a report; each has a line
MAX_RUNS = 8  # runs of consecutive ranks in a phrase
MAX_HOSTS = 3  # hosts named in a phrase
MAX_COLUMNS = 6
MAX_ROWS = 16
LONGER_S = 60.0  # the least deadline that the advice names
MAX_CIRCLE = 8  # ranks of a circle that the title lists


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
    UNRESPONSIVE = auto()  # its process exists, but its watchdog does not get to run
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
    on: str = ""  # the communicator's members, and the method that made it; empty for the world


@dataclass(frozen=True)
class MessageRecord:
    """The message or request that a rank is waiting for. None stands for any peer or tag, or for no peer."""

    operation: str
    peer: int | None  # a rank of the world
    tag: int | None
    purpose: str = ""  # what it is part of, such as a schedule; empty for a message of the student's own
    origin: str = ""  # the line of the non-blocking call that made the request; empty for a blocking call
    polls: int = 0  # without success, by a rank that calls Iprobe or Test in a loop; 0 for other calls
    rival: str = ""  # an earlier receive that takes the message: `Irecv at cell [3] line 4: …`


@dataclass(frozen=True)
class RankState:
    """A rank: what it is doing, where, and its last collectives (oldest first)."""

    rank: int
    activity: Activity
    place: str = ""  # the student's line, for example `cell line 4: comm.Barrier()`
    error: str = ""
    message: MessageRecord | None = None
    mpi_call: str = ""  # the MPI call that the rank is inside, such as `Waitall`
    can_leave: bool = False  # whether the session goes on: another thread stays inside that call
    calls: tuple[CallRecord, ...] = ()
    host: str = ""  # its machine's name, if the ranks are on several machines
    failed_call: str = ""  # a collective that has raised an error, which the program has caught
    exit_code: int | None = None  # of a program's process that has ended; 128 + the signal that killed it
    error_type: str = ""  # the name of the error's class, if the rank has raised it

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
        """Return the report as JSON, in ASCII, with members of enumerations by name."""
        return json.dumps(asdict(self), default=lambda member: member.name, separators=(",", ":")).encode()

    @staticmethod
    def from_json(text: bytes) -> Report:
        """Return the report that `to_json` has written."""
        fields: dict[str, Any] = json.loads(text)
        fields["reason"] = Reason[fields["reason"]]
        if fields["mismatch"] is not None:
            fields["mismatch"] = Mismatch[fields["mismatch"]]
        if fields["members"] is not None:
            fields["members"] = tuple(fields["members"])
        for rank in fields["ranks"]:
            rank["activity"] = Activity[rank["activity"]]
            if rank["message"] is not None:
                rank["message"] = MessageRecord(**rank["message"])
            rank["calls"] = tuple(CallRecord(**call) for call in rank["calls"])
        fields["ranks"] = tuple(RankState(**rank) for rank in fields["ranks"])
        return Report(**fields)


WAITING = (Activity.WAITING_IN_COLLECTIVE, Activity.WAITING_FOR_MESSAGE)


def groups(report: Report) -> list[tuple[RankState, list[int]]]:
    """Return what the ranks do, and which ranks do it: waiting ranks first, large groups first.

    If there are too many groups, leave out details in which the ranks differ. If there still are, or if
    most ranks are in the first group, keep it and the smallest others, whose ranks differ from most.
    """
    shown = {rank.rank: _shown(report, rank) for rank in report.ranks}
    for simplify in (lambda state: state, _without_peer, _without_place):
        groups_of_ranks = _shared({rank: simplify(state) for rank, state in shown.items()})
        groups_of_ranks.sort(key=lambda group: (group[0].activity not in WAITING, -len(group[1])))
        if len(groups_of_ranks) <= MAX_GROUPS or len(groups_of_ranks[0][1]) > len(shown) / 2:
            break
    odd = sorted(groups_of_ranks[1:], key=lambda group: (group[0].activity in WAITING, len(group[1])))
    shown_groups = [*groups_of_ranks[:1], *odd[: MAX_GROUPS - 1]]
    return [group for group in groups_of_ranks if group in shown_groups]


def _without_peer(rank: RankState) -> RankState:
    """Leave out the peer of a message, and of an error all but its class."""
    message = rank.message if rank.message is None else replace(rank.message, peer=-1)
    return replace(rank, message=message, error=rank.error_type or rank.error)


def _without_place(rank: RankState) -> RankState:
    """Leave out the line and the number of elements, too."""
    calls = tuple(replace(call, count=None, line=0) for call in rank.calls)
    return replace(_without_peer(rank), place="", calls=calls)


def _shared(values: Mapping[int, Any]) -> list[tuple[Any, list[int]]]:
    """Return each value with the ranks that have it."""
    ranks_of: dict[Any, list[int]] = {}
    for rank, value in values.items():
        ranks_of.setdefault(value, []).append(rank)
    return list(ranks_of.items())


def _shown(report: Report, rank: RankState) -> RankState:
    """Return what a rank's line shows; it is equal for ranks that share a line."""
    rank = replace(rank, rank=-1, host="", failed_call="", exit_code=None)
    last = rank.last_call(report.communicator)
    joined = report.joined_call(rank)
    if rank.activity is Activity.WAITING_IN_COLLECTIVE:
        shown = replace(rank.calls[-1], file="", line=0)  # the line is part of the place
        if joined is not None and joined.number < shown.number:
            return replace(rank, calls=(replace(joined, file="", line=0), shown))
    elif rank.message is None and joined is not None:
        shown = joined
    elif rank.message is None and last is not None and last.number < report.number:
        shown = last
    else:
        return replace(rank, calls=())
    return replace(rank, calls=(shown,))


def ranks_in_short(ranks: Collection[int]) -> str:
    """Return `ranks 0–3, 5`, or `128 ranks (0, 2, 4, …, 254)` if the list would be long."""
    if len(runs(ranks)) <= MAX_RUNS:
        return ranks_phrase(ranks)
    ordered = sorted(ranks)
    return f"{len(ordered)} ranks ({', '.join(map(str, ordered[:3]))}, …, {ordered[-1]})"


def ranks_on_hosts(report: Report, ranks: Collection[int]) -> str:
    """Return ranks with the names of their hosts, if the ranks are on several: `rank 2 (host n3)`."""
    phrase = ranks_in_short(ranks)
    hosts = list(dict.fromkeys(rank.host for rank in report.ranks if rank.rank in ranks and rank.host))
    if not hosts:
        return phrase
    named = f"{len(hosts)} hosts"
    if len(hosts) == 1:
        named = f"host {hosts[0]}"
    elif len(hosts) <= MAX_HOSTS:
        named = f"hosts {', '.join(hosts)}"
    return f"{phrase} ({named})"


# What a rank does that has not joined a collective: in the table, and in a sentence about a rank or several.
_DOING = {
    Activity.WAITING_IN_COLLECTIVE: ("elsewhere", ""),
    Activity.WAITING_FOR_MESSAGE: ("in a message", ""),
    Activity.IN_MPI_CALL: ("in another call", "{be} in {rank.mpi_call}{at}"),
    Activity.RUNNING: ("elsewhere", "{be}{at_or_running}"),
    Activity.RETURNED: ("returned", "{have} returned{from_the_cell}"),
    Activity.RAISED: ("raised", "raised {rank.error}"),
    Activity.NOT_STARTED: ("not started", "{have} not started{the_cell}"),
    Activity.EXITED: ("exited", "{have} ended {its_program}"),
    Activity.DEAD: ("dead", "{died}"),
    Activity.UNRESPONSIVE: ("no response", "{do} not respond{last_at}"),
    Activity.UNREACHABLE: ("unreachable", "cannot be reached"),
}


class Status(Enum):
    """How far a rank got with a collective."""

    DONE = auto()
    WAITING = auto()
    ABSENT = auto()


@dataclass(frozen=True)
class Entry:
    """A rank and a collective: the rank's status there, and in words what it does."""

    status: Status
    label: str

    def __str__(self) -> str:
        """Return `✓`, what the rank waits in, or what it does instead."""
        return {Status.DONE: "✓", Status.WAITING: self.label}.get(self.status, f"– {self.label}".rstrip())


class Table(NamedTuple):
    """The last collectives (`#2 Allreduce`), and a labelled row of one entry per collective for each rank.

    If there are many ranks, those with equal rows share one.
    """

    columns: list[str]
    rows: list[tuple[str, list[Entry]]]


def call_details(call: CallRecord) -> str:
    """Return what the ranks must agree on besides the operation: `10 float32, SUM, root 0`."""
    details = [
        call.dtype if call.count is None else f"{call.count} {call.dtype or 'elements'}",
        call.reduction,
        "" if call.root is None else f"root {call.root}",
    ]
    return ", ".join(filter(None, details))


def table(report: Report) -> Table:
    """Return the table of a report; it has no columns if the report is not about a collective."""
    operations: dict[int, list[str]] = {}
    for call in (made_call for rank in report.ranks for made_call in rank.calls):
        if call.communicator == report.communicator and call.number <= report.number:
            operations.setdefault(call.number, []).append(call.operation)
    numbers = sorted(operations)[-MAX_COLUMNS:]
    # The ranks may have called different operations under one number: the most frequent one names the column.
    names = {number: max(sorted(set(called)), key=called.count) for number, called in operations.items()}
    columns = [f"#{number} {names[number]}" for number in numbers]
    shown = [rank for rank in report.ranks if report.members is None or rank.rank in report.members]
    rows = {rank.rank: tuple(_row(report, rank, numbers)) for rank in shown}
    if len(rows) <= MAX_ROWS:
        return Table(columns, [(f"rank {rank}", list(entries)) for rank, entries in rows.items()])
    largest = sorted(_shared(rows), key=lambda group: -len(group[1]))[:MAX_ROWS]
    lines = [
        (ranks_in_short(ranks), list(entries))
        for entries, ranks in sorted(largest, key=lambda group: group[1])
    ]
    left = len(rows) - sum(len(ranks) for _, ranks in largest)
    return Table(columns, [*lines, (f"{left} more", [])] if left else lines)


def _row(report: Report, rank: RankState, numbers: list[int]) -> list[Entry]:
    last = rank.last_call(report.communicator)
    row = []
    for number in numbers:
        if number < report.number or (last is not None and number < last.number):
            done = last is not None and number <= last.number
            row.append(Entry(Status.DONE, "done") if done else Entry(Status.ABSENT, ""))
        elif last is not None and last.number == number and report.is_waiting_here(rank):
            row.append(Entry(Status.WAITING, _waiting_label(report, last)))
        else:
            row.append(Entry(Status.ABSENT, _DOING[rank.activity][0]))
    return row


def _waiting_label(report: Report, call: CallRecord) -> str:
    if report.mismatch is None:
        return "waiting"
    details = call_details(call)
    return f"waiting in {call.operation}" + (f" ({details})" if details else "")


def table_lines(report: Report) -> list[str]:
    """Return the table of the last collectives: `✓` for done, `waiting`, or what the rank does instead."""
    data = table(report)
    if not data.columns:
        return []
    lines = [["", *data.columns], *([ranks, *map(str, entries)] for ranks, entries in data.rows)]
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    rows = ("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=False)) for line in lines)
    return [*(f"  {row}".rstrip() for row in rows), ""]


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
    waiting = [rank for rank in report.ranks if rank.message is not None]
    if report.reason is Reason.STOPPED:
        sentence = "What the ranks were doing when they were stopped:"
    elif report.reason is Reason.INTERRUPTED:
        sentence = f"rank {report.reporter} was interrupted while it was waiting."
    elif report.reason is Reason.THREADS:
        sentence = f"Two threads of rank {report.reporter} called collectives on one communicator at once."
    elif report.reason is Reason.RANK_DIED:
        dead = next(rank for rank in report.ranks if rank.rank == report.reporter)
        host = f" (host {dead.host})" if dead.host else ""
        size = report.world_size or len(report.ranks)
        sentence = f"rank {dead.rank} of {size}{host} {dead.error or 'died'}."
    elif report.mismatch is not None:
        sentence = _mismatch(report, report.mismatch)
    elif report.number > 0:
        sentence = _missing(report)
    elif any(rank.message.rival for rank in waiting if rank.message is not None):
        sentence = _taken([rank for rank in waiting if rank.message is not None and rank.message.rival])
    elif report.reason is Reason.CIRCLE:
        sentence = _circle(report)
    elif report.reason is Reason.DEADLOCK:
        sentence = _deadlock(report)
    elif waiting:
        sentence = _unmatched(
            report, next((state for state in waiting if state.rank == report.reporter), waiting[0])
        )
    else:
        sentence = "A rank waited too long."
    return sentence


def _mismatch(report: Report, kind: Mismatch) -> str:
    joined = report.joined()
    call = joined[0].calls[-1] if joined else None
    where = f" on {_communicator(call)}" if call is not None and call.communicator else ""
    if kind is Mismatch.OPERATION:
        what = f"different operations as collective #{report.number}{where}"
    else:
        what = f"collective #{report.number}{where} with different {kind.name.lower()}s"
    return f"Collective mismatch: the ranks called {what}."


def _missing(report: Report) -> str:
    joined = report.joined()
    call = joined[0].calls[-1]
    what = ", ".join(filter(None, [call.operation, call_details(call)]))
    if _all_joined_late(report):
        return f"All ranks joined collective #{call.number} ({what}), but not within {report.deadline_s:g} s."
    where = f" on {_communicator(call)}" if call.communicator else ""
    missing = ranks_on_hosts(report, report.missing())
    return f"{missing} never joined collective #{call.number} ({what}){where}."


def _communicator(call: CallRecord) -> str:
    """Return which communicator a collective was called on."""
    if not call.communicator:
        return "the world's communicator"
    return f"the communicator of {call.on}" if call.on else "another communicator"


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
    assert message is not None, f"expected a rank that waits for a message, got {rank}"
    call = message.operation
    if call in NONBLOCKING_COLLECTIVES:
        inside = [state.rank for state in report.ranks if state.message and state.message.operation == call]
        outside = [state.rank for state in report.ranks if state.rank not in inside]
        waiting = f"{_ranks_are(inside)} waiting for {call} to complete"
        return waiting + (f", {_ranks_are(outside)} not." if outside else ".")
    if call == "Wait":
        return f"rank {rank.rank} is waiting for a request that does not complete."
    if message.purpose == RENDEZVOUS:
        return f"rank {rank.rank} is waiting in {call}: {_peer(message)} has not called it."
    missing = f"receive on {_peer(message)}" if call in SENDS else f"send from {_peer(message)}"
    tag = "" if message.tag is None else f" (tag {message.tag})"
    purpose = f" for {message.purpose}" if message.purpose else ""
    waiting = f"is waiting {'for its' if message.origin else 'in'} {call}"
    if call in PROBES:
        waiting = f"has called {_polls(message)}"
    return f"rank {rank.rank} {waiting}{purpose}: no matching {missing}{tag}."


def _taken(waiting: list[RankState]) -> str:
    """Return which ranks wait for messages that earlier receives take."""
    calls = {rank.message.operation for rank in waiting if rank.message is not None}
    where = f" in {calls.pop()}" if len(calls) == 1 else ""
    many = len(waiting) > 1
    what = "messages that earlier receives take" if many else "a message that an earlier receive takes"
    return f"{_ranks_are([rank.rank for rank in waiting])} waiting{where} for {what}."


def _ranks_are(ranks: Collection[int]) -> str:
    return f"{ranks_in_short(ranks)} {'are' if len(ranks) > 1 else 'is'}"


def _peer(message: MessageRecord) -> str:
    if message.peer is None:
        return "any rank"
    return f"rank {message.peer}" if message.peer >= 0 else "different ranks"


def _circle_of(report: Report) -> list[int]:
    """Return the ranks of a circle of messages, each before the one it waits for; empty if there is none."""
    if report.reason is not Reason.CIRCLE or report.reporter is None:
        return []
    peers = {rank.rank: rank.message.peer for rank in report.ranks if rank.message is not None}
    path = [report.reporter]  # on the way from rank to awaited rank, which leads into the circle
    peer = peers.get(path[-1])
    while peer not in path:
        if peer is None:
            return []
        path.append(peer)
        peer = peers.get(peer)
    ranks = path[path.index(peer) :]
    first = ranks.index(min(ranks))
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


def rank_lines(report: Report, in_cell: bool = True) -> list[str]:
    """Return a line for each group of ranks that do the same, waiting ranks first, large groups first.

    `in_cell`: the ranks run a notebook's cell, and not a function, for example.
    """
    shown = groups(report)
    lines = [
        f"  {ranks_on_hosts(report, ranks)} {_describe(report, shared, len(ranks) > 1, in_cell)}"
        for shared, ranks in shown
    ]
    for failed, ranks in _shared({rank.rank: rank.failed_call for rank in report.ranks if rank.failed_call}):
        lines.append(f"  {ranks_in_short(ranks)} caught an error before: {failed}")
    others = {rank.rank for rank in report.ranks}.difference(*(ranks for _, ranks in shown))
    if others:
        lines.append(f"  … and {counted(len(others), 'more rank')}: the report as JSON has all")
    return lines


def _describe(report: Report, rank: RankState, many: bool, in_cell: bool) -> str:
    """Return what one rank or `many` ranks do: a verb and what follows."""
    be = "are" if many else "is"
    at = f" at {rank.place}" if rank.place else ""
    if rank.activity is Activity.WAITING_IN_COLLECTIVE:
        call = rank.calls[-1]
        details = ", ".join(filter(None, [f"#{call.number}", call_details(call)]))
        elsewhere = f" on {_communicator(call)}" if report.communicator != call.communicator else ""
        before = f"called {_call(rank.calls[0])} and " if len(rank.calls) > 1 else ""
        return f"{before}{be} waiting in {call.operation} ({details}){elsewhere}{at}"
    if rank.message is not None:
        if rank.message.polls:
            be = f"{'have' if many else 'has'} called {_polls(rank.message)} and {be}"
        rival = rank.message.rival
        taken = f"; an earlier receive takes that message: {rival}" if rival else ""
        return f"{be} waiting {_waited_for(rank, rank.message)}{at}{taken}"
    if report.number == 0:
        return _verb(rank, many, in_cell)
    doing = f"{'they' if many else 'it'} {_verb(rank, many, in_cell)}"
    # The ranks of a cell that was stopped might still have joined.
    never = f"{'have' if many else 'has'} not" if report.reason is Reason.STOPPED else "never"
    progress = f"{never} joined #{report.number}: {doing}"
    if not rank.calls:
        return progress
    last = rank.calls[-1]
    if last.number == report.number:
        return f"called {_call(last)} and {_verb(rank, many, in_cell)}"
    where = numbered_line(last.file, last.line)
    return f"finished collective #{last.number} ({last.operation}, {where}) but {progress}"


def _call(call: CallRecord) -> str:
    where = numbered_line(call.file, call.line) if call.line else ""
    details = ", ".join(filter(None, [call_details(call), where]))
    return f"{call.operation} as collective #{call.number}" + (f" ({details})" if details else "")


def _polls(message: MessageRecord) -> str:
    """Return `Iprobe 1,203,411 times without success`."""
    call = message.operation if message.operation in PROBES else "Test"
    return f"{call} {message.polls:,} times without success"


def _waited_for(rank: RankState, message: MessageRecord) -> str:
    """Return `in Recv (from rank 2, tag 7)`, or for a request, the call that made it and its line."""
    call, origin = message.operation, message.origin
    started = f", started at {origin}," if origin and not rank.place.startswith(origin) else ""
    if call == "Wait":
        return f"for a request{started}"
    call_phrase = f"for its {call}" if origin else f"in {call}"
    if call in NONBLOCKING_COLLECTIVES:
        return f"{call_phrase}{started}"
    if call in PROBES:
        call_phrase = "for a message"
    if message.purpose == RENDEZVOUS:
        return f"{call_phrase} (for {_peer(message)})"
    direction = "to" if call in SENDS else "from"
    tag = "" if message.tag is None else f", tag {message.tag}"
    purpose = f" for {message.purpose}" if message.purpose else ""
    return f"{call_phrase} ({direction} {_peer(message)}{tag}){started}{purpose}"


def _verb(rank: RankState, many: bool, in_cell: bool) -> str:
    be, have, do = ("are", "have", "do") if many else ("is", "has", "does")
    at = f" at {rank.place}" if rank.place else ""
    return _DOING[rank.activity][1].format(
        rank=rank,
        **{"be": be, "have": have, "do": do, "at": at, "at_or_running": at or " running"},
        last_at=f"; last seen{at}" if at else "",
        from_the_cell=" from the cell" if in_cell else "",
        the_cell=" the cell" if in_cell else "",
        its_program="their programs" if many else "its program",
        died=f"{rank.error}{at}" if rank.error else f"{have} died",
    )


def advice(report: Report, in_program: bool = False) -> list[str]:
    """Return what to do next; for a program, which ends, this is less."""
    if report.reason is Reason.STOPPED:
        return []
    if report.reason is Reason.THREADS:
        return ["MPI matches them by their order. Give each thread its own communicator: `comm.Dup()`."]
    if any(rank.mpi_call for rank in report.ranks) and not in_program:
        return _advice_on_calls(report)
    lines = _advice_on_messages(report)
    waiting = [rank.message.operation for rank in report.ranks if rank.message is not None]
    if in_program:
        return lines
    more_time = packages.advice.more_time.format(
        ranks=report.world_size or len(report.ranks), seconds=f"{max(LONGER_S, 3 * report.deadline_s):g}"
    )
    busy = [rank.rank for rank in report.ranks if rank.activity is Activity.RUNNING]
    if report.reason is Reason.TIMED_OUT and busy:
        lines.append(f"If {_ranks_are(busy)} only slow, allow more time: {more_time}.")
    ready = "he ranks are ready: fix the cell and run it again."
    if not waiting and _all_joined_late(report):
        lines.append(f"Run the cell again, or allow more time: {more_time}.")
    elif not waiting and not any(rank.failed_call for rank in report.ranks):
        lines.append(f"No data has moved and t{ready}")
    elif not waiting:
        lines.append(f"A rank that has caught an error may be a collective behind the others. T{ready}")
    elif report.reason is Reason.CIRCLE and not set(waiting) & set(SENDS):
        lines.append(f"T{ready}")
    else:
        lines.append(f"T{ready} Messages that this cell has sent cannot reach a later cell.")
    return lines


def _advice_on_messages(report: Report) -> list[str]:
    """Return what to do about messages that do not arrive."""
    circle = _circle_of(report)
    if any(rank.message is not None and rank.message.rival for rank in report.ranks):
        return ["Wait for the request of the earlier receive first, or cancel it: it takes the message."]
    if len(circle) > 1:
        return [
            "Break the circle: let even ranks send first and odd ranks receive first, or use Sendrecv, "
            "which does both at once."
        ]
    if circle:
        return ["A rank cannot wait for itself: use Sendrecv, or post Irecv or Isend first."]
    if report.reason is Reason.CIRCLE:
        return ["A rank has to send before the others wait for its message; Sendrecv does both at once."]
    return []


def _advice_on_calls(report: Report) -> list[str]:
    """Return what to do about ranks in MPI calls, which cannot be ended."""
    stuck = [rank for rank in report.ranks if rank.mpi_call]
    calls = " and ".join(dict.fromkeys(rank.mpi_call for rank in stuck))
    ranks = ranks_in_short([rank.rank for rank in stuck])
    can_leave = all(rank.can_leave for rank in stuck)
    slower = f"A thread stays in {calls} there and slows later MPI calls down"
    if packages.advice.end_of_call:
        slower += f"; {packages.advice.end_of_call} ends it"
    match = "the other ranks make the matching call"
    ends_when = " or ".join(dict.fromkeys(CONNECTING.get(rank.mpi_call, match) for rank in stuck))
    return [
        f"{calls} on {ranks} ends when {ends_when}.",
        *(["The ranks are ready: fix the cell and run it again. " + slower + "."] if can_leave else []),
    ]
