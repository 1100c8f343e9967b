"""What every rank is seen to do, read from the board."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from labkit.watch.flight_recorder import stacks
from labkit.watch.flight_recorder.layout import (
    EPOCH,
    HISTORY,
    IN_COLLECTIVE,
    IN_MESSAGE,
    NUMBER,
    NUMBERS,
    RAISED,
    RETURNED,
    RUNS,
    Call,
    FlightRecorder,
)
from labkit.watch.flight_recorder.opcodes import KIND_NAMES, OP_NAMES, REDUCTIONS, UNKNOWN
from labkit.watch.flight_recorder.report import in_words
from labkit.watch.flight_recorder.source import place

NOT_BEGUN = "has not begun the cell"


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
        if mine != theirs and UNKNOWN not in (mine, theirs):
            return {"kind": "dtype", "reduction": "reduction"}.get(field, field)
    return None


def take_snapshot(
    recorder: FlightRecorder, why: str, deadline_s: float, members: Sequence[int], reporter: int | None
) -> dict[str, Any]:
    """Return what all ranks do, as data and in words. Call it with the board locked."""
    ranks = [_see(recorder, rank) for rank in range(recorder.size)]
    _share_places(ranks)
    begun = [rank for rank in ranks if rank["does"] != NOT_BEGUN] or ranks
    firsts = {recorder.slots[rank["rank"]].first for rank in begun}
    if len(firsts) == 1:  # then count from the cell's beginning
        first = firsts.pop()
        for rank in ranks:
            for call in rank["calls"]:
                if call["channel"] == 0 and call["number"] > first:
                    call["number"] -= first
    shown = [rank for rank in ranks if rank["rank"] in members or rank["does"].startswith("waits")]
    waits = [rank for rank in ranks if rank["does"] == "waits in" and reporter in (rank["rank"], None)]
    channel = waits[0]["calls"][-1]["channel"] if waits else None
    report: dict[str, Any] = {"why": why, "deadline_s": deadline_s, "ranks": shown, "channel": channel}
    report["text"] = in_words(report)
    return report


def _see(recorder: FlightRecorder, rank: int) -> dict[str, Any]:
    slot = recorder.slots[rank]
    calls = [_call(call) for call in recorder.last_calls(rank)]
    seen = {"rank": rank, "does": "", "where": "", "error": "", "calls": calls}
    if not alive(slot.pid):
        seen["does"] = "is dead"
    elif slot.waits == IN_COLLECTIVE and calls:
        seen.update(does="waits in", where=slot.where.decode())
    elif slot.waits == IN_MESSAGE:
        seen.update(does="waits for", where=slot.where.decode())
        seen.update(op=OP_NAMES[slot.op], peer=slot.peer, tag=slot.tag)
    elif slot.state == RUNS and calls and _arrived(recorder, slot):
        seen.update(does="waits in", where=calls[-1]["line"])
    elif slot.state != RUNS and _lags(recorder, slot):
        seen["does"] = NOT_BEGUN
    elif slot.state == RETURNED:
        seen["does"] = "has returned from the cell"
    elif slot.state == RAISED:
        seen.update(does="raised", error=slot.error.decode())
    else:
        frames = stacks.ask(slot.pid, recorder.stacks) if slot.stacks else []
        at = place([(file, line) for file, line, _ in frames])
        seen.update(does="is" if frames else "does not answer", where=at)
    return seen


def _share_places(ranks: list[dict[str, Any]]) -> None:
    """Name one place alike: a rank that has only just come has not said yet what its line says."""
    waiting = [rank for rank in ranks if rank["does"] == "waits in"]
    for rank in waiting:
        same = [one["where"] for one in waiting if one["calls"][-1] == rank["calls"][-1]]
        rank["where"] = max(same, key=len)


def _lags(recorder: FlightRecorder, slot: Any) -> bool:
    """Tell whether others have begun a cell since this rank has ended its last one."""
    running = [other for other in recorder.slots if other.state == RUNS]
    return bool(running) and all(other.cell > slot.cell and other.since > slot.since for other in running)


def _arrived(recorder: FlightRecorder, slot: Any) -> bool:
    """Tell whether a rank stands in its last call, too shortly as yet to have said so."""
    number = slot.history[(slot.calls - 1) % HISTORY].number
    return bool(number >> (EPOCH - NUMBER) == recorder.head.epoch & 0xFFF and slot.going >> NUMBER != number)


def _call(call: Call) -> dict[str, Any]:
    details = []
    if UNKNOWN not in (call.count, call.kind):
        details.append(f"{call.count} {KIND_NAMES[call.kind]}")
    elif call.kind != UNKNOWN:
        details.append(KIND_NAMES[call.kind])
    if call.reduction != UNKNOWN:
        details.append(REDUCTIONS[call.reduction])
    if call.root != UNKNOWN:
        details.append(f"root {call.root}")
    return {
        "channel": call.channel,
        "number": call.number & NUMBERS,
        "op": OP_NAMES[call.op],
        "details": ", ".join(details),
        "line": f"{call.file.decode()} line {call.line}",
    }
