"""A hang in words: who waits where, who has not come, and what they do instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from labkit.comm import signature, stacks
from labkit.comm.board import (
    EPOCH,
    HISTORY,
    IN_COLLECTIVE,
    IN_MESSAGE,
    NUMBER,
    NUMBERS,
    RAISED,
    RETURNED,
    RUNS,
    Board,
    Call,
)
from labkit.comm.errors import CollectiveError
from labkit.comm.places import place

# All that a rank can be seen to wait in, by number.
COLLECTIVES = (
    *(
        "Barrier",
        "Bcast",
        "Reduce",
        "Allreduce",
        "Gather",
        "Gatherv",
        "Scatter",
        "Scatterv",
        "Allgather",
        "Allgatherv",
    ),
    *("Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *(
        "barrier",
        "bcast",
        "reduce",
        "allreduce",
        "gather",
        "scatter",
        "allgather",
        "alltoall",
        "scan",
        "exscan",
    ),
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Sub", "Free", "Disconnect"),
)
MESSAGES = (
    "Send",
    "Ssend",
    "Recv",
    "Sendrecv",
    "Sendrecv_replace",
    "Probe",
    "Mprobe",
    "send",
    "ssend",
    "recv",
    "sendrecv",
)
OPS = {name: number for number, name in enumerate((*COLLECTIVES, *MESSAGES, "probe", "mprobe"))}
NAMES = tuple(OPS)
SENDS = ("Send", "Ssend", "send", "ssend")
DIFFERENCES = ("operation", "root", "count", "dtype", "reduction")
COLUMNS = 6  # of the picture


class HangError(CollectiveError):
    """Ranks wait in vain, or have come with calls that do not fit; `report` says the same as data.

    Raised on every rank that waits. No data has moved in a collective that ends so, and the communicators
    can be used again: in the next cell, or after `labkit.comm.resume()`.
    """

    def __init__(self, report: dict[str, Any], rank: int) -> None:
        super().__init__(report["text"])
        self.report = report
        self.rank = rank

    def _render_traceback_(self) -> list[str]:  # by IPython on an engine: the notebook shows the report, once
        return [f"HangError: rank {self.rank} has waited in vain."]


class Interrupted(KeyboardInterrupt):
    """The user's interrupt of a rank that waits."""

    def _render_traceback_(
        self,
    ) -> list[str]:  # a rank that waits has little to tell, and shall do so at once
        return [f"KeyboardInterrupt: {self}"]


def alive(pid: int) -> bool:
    """Tell whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def difference(one: Call, other: Call) -> str | None:
    """Return in what two calls that should be the same differ, if anything."""
    if one.op != other.op:
        return "operation"
    for field in ("root", "count", "kind", "reduction"):
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine != theirs and signature.UNKNOWN not in (mine, theirs):
            return {"kind": "dtype", "reduction": "reduction"}.get(field, field)
    return None


def look(
    board: Board, why: str, deadline_s: float, members: Sequence[int], reporter: int | None
) -> dict[str, Any]:
    """Return what all ranks do, as data and in words. Call it with the board locked."""
    ranks = [_see(board, rank) for rank in range(board.size)]
    if (
        len({board.slots[rank].first for rank in range(board.size)}) == 1
    ):  # then count from the cell's beginning
        first = board.slots[0].first
        for rank in ranks:
            for call in rank["calls"]:
                if call["channel"] == 0 and call["number"] > first:
                    call["number"] -= first
    shown = [rank for rank in ranks if rank["rank"] in members or rank["does"].startswith("waits")]
    waits = [rank for rank in ranks if rank["does"] == "waits in" and reporter in (rank["rank"], None)]
    channel = waits[0]["calls"][-1]["channel"] if waits else None
    report: dict[str, Any] = {"why": why, "deadline_s": deadline_s, "ranks": shown, "channel": channel}
    report["text"] = "\n".join([*words(report), "", *picture(report), *advice(report)])
    return report


def _see(board: Board, rank: int) -> dict[str, Any]:
    slot = board.slots[rank]
    calls = [_call(call) for call in board.last_calls(rank)]
    seen = {"rank": rank, "does": "", "where": "", "error": "", "calls": calls}
    if not alive(slot.pid):
        seen["does"] = "is dead"
    elif slot.waits == IN_COLLECTIVE and calls:
        seen.update(does="waits in", where=slot.where.decode())
    elif slot.waits == IN_MESSAGE:
        seen.update(does="waits for", where=slot.where.decode())
        seen.update(op=NAMES[slot.op], peer=slot.peer, tag=slot.tag)
    elif slot.state == RUNS and calls and _arrived(board, slot):
        seen.update(does="waits in", where=calls[-1]["line"])
    elif slot.state == RETURNED:
        seen["does"] = "has returned from the cell"
    elif slot.state == RAISED:
        seen.update(does="raised", error=slot.error.decode())
    else:
        frames = stacks.ask(slot.pid, board.stacks) if slot.stacks else []
        at = place([(file, line) for file, line, _ in frames])
        seen.update(does="is" if frames else "does not answer", where=at)
    return seen


def _arrived(board: Board, slot: Any) -> bool:
    """Tell whether a rank stands in its last call, too shortly as yet to have said so."""
    number = slot.history[(slot.calls - 1) % HISTORY].number
    return bool(number >> (EPOCH - NUMBER) == board.head.epoch & 0xFFF and slot.going >> NUMBER != number)


def _call(call: Call) -> dict[str, Any]:
    details = []
    if signature.UNKNOWN not in (call.count, call.kind):
        details.append(f"{call.count} {signature.NAMES[call.kind]}")
    elif call.kind != signature.UNKNOWN:
        details.append(signature.NAMES[call.kind])
    if call.reduction != signature.UNKNOWN:
        details.append(signature.reduction_name(call.reduction))
    if call.root != signature.UNKNOWN:
        details.append(f"root {call.root}")
    return {
        "channel": call.channel,
        "number": call.number & NUMBERS,
        "op": NAMES[call.op],
        "details": ", ".join(details),
        "line": f"{call.file.decode()} line {call.line}",
    }


def named(ranks: Sequence[int]) -> str:
    """Return `rank 2`, or `ranks 0, 1, 3`."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def words(report: dict[str, Any]) -> list[str]:
    """Return the report's sentences: first what is wrong, then each group of ranks."""
    ranks, channel = report["ranks"], report["channel"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        groups.setdefault(_does(rank, channel, _wanted(ranks, channel)), []).append(rank)
    lines = []
    for text, who in sorted(groups.items(), key=lambda item: (not _waiting(item[1][0]), -len(item[1]))):
        singular, plural = text.split("|")
        lines.append(f"  {named([one['rank'] for one in who])} {plural if len(who) > 1 else singular}")
    return [_title(report), *lines]


def _waiting(rank: dict[str, Any]) -> bool:
    return rank["does"].startswith("waits")


def _wanted(ranks: Sequence[dict[str, Any]], channel: int | None) -> int:
    """Return the number of the collective that is waited in."""
    return max((rank["calls"][-1]["number"] for rank in ranks if _in(rank, channel)), default=0)


def _in(rank: dict[str, Any], channel: int | None) -> bool:
    return rank["does"] == "waits in" and rank["calls"][-1]["channel"] == channel


def _title(report: dict[str, Any]) -> str:
    ranks, channel, why = report["ranks"], report["channel"], report["why"]
    if why == "stopped":
        return "When it was stopped,"
    if channel is None:
        (first, *_) = [rank for rank in ranks if rank["does"] == "waits for"] or ranks
        return f"rank {first['rank']} waits for a message in vain."
    number = _wanted(ranks, channel)
    inside = [rank for rank in ranks if _in(rank, channel) and rank["calls"][-1]["number"] == number]
    if why in DIFFERENCES:
        return f"The ranks do not agree on collective #{number}: its {why} differs."
    op = inside[0]["calls"][-1]["op"]
    absent = [rank["rank"] for rank in ranks if rank not in inside]
    return f"{named(absent)} never joined collective #{number} ({op})."


def _does(rank: dict[str, Any], channel: int | None, wanted: int) -> str:
    """Return what a rank does, as one says it of one rank and of many, with a bar between."""
    at = f" at {rank['where']}" if rank["where"] else ""
    if rank["does"] == "waits in":
        call = rank["calls"][-1]
        inner = ", ".join(filter(None, [f"#{call['number']}", call["details"]]))
        other = "" if call["channel"] == channel else " on another communicator"
        text = f"{call['op']} ({inner}){other}{at}"
        return f"waits in {text}|wait in {text}"
    if rank["does"] == "waits for":
        peer = "any rank" if rank["peer"] < 0 else f"rank {rank['peer']}"
        side = "to" if rank["op"] in SENDS else "from"
        tag = "" if rank["tag"] < 0 else f", tag {rank['tag']}"
        text = f"{rank['op']} ({side} {peer}{tag}){at}"
        return f"waits in {text}|wait in {text}"
    here = [call for call in rank["calls"] if call["channel"] == channel]
    past = ""
    if channel is not None:
        if here and here[-1]["number"] < wanted:
            last = here[-1]
            past = (
                f"finished collective #{last['number']} ({last['op']}, {last['line']}) "
                f"and never joined #{wanted}: "
            )
        else:
            past = f"never joined #{wanted}: "
    one = {
        "is dead": "is dead|are dead",
        "has returned from the cell": "has returned from the cell|have returned from the cell",
        "raised": f"raised {rank['error']}|raised {rank['error']}",
        "is": f"is{at}|are{at}",
        "does not answer": "does not answer|do not answer",
    }[rank["does"]]
    singular, plural = one.split("|")
    return f"{past}{'it ' * bool(past)}{singular}|{past}{'they ' * bool(past)}{plural}"


def picture(report: dict[str, Any]) -> list[str]:
    """Return the last collectives as text: ranks as rows, collectives as columns."""
    header, rows = table(report)
    if not header:
        return []
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    lines = [
        "  " + "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *rows]
    ]
    return [*lines, ""]


def table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the picture's header and rows: `✓` for done, `waits`, or what the rank does instead."""
    ranks, channel = report["ranks"], report["channel"]
    if channel is None:
        return [], []
    wanted = _wanted(ranks, channel)
    known: dict[int, list[str]] = {}
    for rank in ranks:
        for call in rank["calls"]:
            if call["channel"] == channel and call["number"] <= wanted:
                known.setdefault(call["number"], []).append(call["op"])
    numbers = sorted(known)[-COLUMNS:]
    common = {number: max(sorted(set(known[number])), key=known[number].count) for number in numbers}
    differ = report["why"] in DIFFERENCES
    rows = []
    for rank in ranks:
        mine = {call["number"]: _name(call, differ) for call in rank["calls"] if call["channel"] == channel}
        row = [f"rank {rank['rank']}"]
        for number in numbers:
            if number == wanted and _in(rank, channel) and number in mine:
                row.append(f"waits in {mine[number]}" if differ else "waits")
            elif number == wanted:
                row.append(_short(rank))
            else:
                row.append("✓" if number in mine or (mine and number <= max(mine)) else "–")
        rows.append(row)
    return ["", *(f"#{number} {common[number]}" for number in numbers)], rows


def _name(call: dict[str, Any], full: bool) -> str:
    return f"{call['op']} ({call['details']})" if full and call["details"] else call["op"]


def _short(rank: dict[str, Any]) -> str:
    instead = {
        "is": "elsewhere",
        "has returned from the cell": "returned",
        "is dead": "dead",
        "does not answer": "silent",
    }
    return "– " + instead.get(
        rank["does"], {"waits in": "elsewhere", "waits for": "in a message"}.get(rank["does"], rank["does"])
    )


def advice(report: dict[str, Any]) -> list[str]:
    """Return what to do next."""
    lines: list[str] = []
    if report["why"] == "stopped":
        return lines
    busy = [rank["rank"] for rank in report["ranks"] if rank["does"] == "is"]
    if report["why"] == "late" and busy:
        lines.append(
            f"If {named(busy)} only need{'s' * (len(busy) == 1)} longer than {report['deadline_s']:g} s, "
            "allow it, on all ranks: `comm.deadline_s = …`"
        )
    if any(rank["does"] == "waits for" for rank in report["ranks"]):
        lines.append(
            "A message may still be under way, which the next cell would receive: "
            "`connect(restart=True)` gives ranks without it."
        )
    else:
        lines.append("No data has moved, and the ranks are ready: mend the cell and run it again.")
    return lines
