"""A report of a hang in words: who waits where, who has not come, what they do, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SENDS = ("Send", "Ssend", "send", "ssend")
DIFFERENCES = ("operation", "root", "count", "dtype", "reduction")
COLUMNS = 6  # of the picture


def in_words(report: dict[str, Any]) -> str:
    """Return the whole text of a report."""
    return "\n".join([*words(report), "", *picture(report), *advice(report)])


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
        "has not begun the cell": "has not begun the cell|have not begun the cell",
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
        "has not begun the cell": "not begun",
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
