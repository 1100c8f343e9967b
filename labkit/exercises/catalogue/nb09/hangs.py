"""Reading a hang report, and a program to mend."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI

Rank = dict[str, Any]


def wait_for_graph(ranks):
    """Return, for each rank of a hang report, the sorted list of the ranks that it waits for, as a dict.

    `ranks` is the report's list `ranks`: a dict for each rank, with its number (`rank`), its `activity`, the
    `message` and the `calls` (collectives, the last one is the latest).
    """
    graph = {}
    for mine in ranks:
        others = [each["rank"] for each in ranks if each["rank"] != mine["rank"]]
        waits = []
        if mine["activity"] == "WAITING_FOR_MESSAGE":
            peer = mine["message"]["peer"]
            waits = others if peer is None else [peer]
        elif mine["activity"] == "WAITING_IN_COLLECTIVE":
            number = mine["calls"][-1]["number"]
            for each in ranks:
                is_in_it = (
                    each["activity"] == "WAITING_IN_COLLECTIVE" and each["calls"][-1]["number"] == number
                )
                if not is_in_it:
                    waits.append(each["rank"])
        graph[mine["rank"]] = sorted(waits)
    return graph


def _collective(rank: int, number: int) -> Rank:
    calls = [{"number": k + 1, "operation": "allreduce"} for k in range(number)]
    return {"rank": rank, "activity": "WAITING_IN_COLLECTIVE", "message": None, "calls": calls}


def _message(rank: int, peer: int | None, done: int = 0) -> Rank:
    calls = [{"number": k + 1, "operation": "allreduce"} for k in range(done)]
    message = {"operation": "Recv", "peer": peer, "tag": None}
    return {"rank": rank, "activity": "WAITING_FOR_MESSAGE", "message": message, "calls": calls}


def _other(rank: int, activity: str, done: int) -> Rank:
    calls = [{"number": k + 1, "operation": "allreduce"} for k in range(done)]
    return {"rank": rank, "activity": activity, "message": None, "calls": calls}


def _reports() -> Sequence[Case]:
    reports = {
        "two ranks that receive from each other": [_message(0, 1), _message(1, 0)],
        "a missing rank": [_collective(0, 2), _other(1, "RETURNED", 1), _collective(2, 2)],
        "a missing rank that has finished the same number of calls as the others before": [
            *(_collective(0, 1), _message(1, 2, done=1), _collective(2, 1), _collective(3, 1)),
        ],
        "two collectives": [_collective(0, 3), _collective(1, 2), _collective(2, 3)],
        "a receive from any source": [_message(0, None), _other(1, "EXITED", 4), _collective(2, 5)],
        "a chain to a rank that computes": [_message(0, 2), _other(1, "RUNNING", 0), _message(2, 1)],
    }
    return [Case(label, ((ranks,),)) for label, ranks in reports.items()]


def _is_in(rank: Rank, number: int) -> bool:
    return rank["activity"] == "WAITING_IN_COLLECTIVE" and len(rank["calls"]) == number


def _graph(
    ranks: Sequence[Rank],
    missing: Callable[[Rank, Rank], bool] = lambda mine, each: not _is_in(each, len(mine["calls"])),
    any_source: bool = True,
) -> dict[int, list[int]]:
    """Return the graph in which a rank in a collective waits for the ranks that `missing` names."""
    found: dict[int, list[int]] = {}
    for mine in ranks:
        peer = mine["message"]["peer"] if mine["message"] else None
        everyone = [each["rank"] for each in ranks if each is not mine]
        by_activity = {
            "WAITING_IN_COLLECTIVE": [each["rank"] for each in ranks if missing(mine, each)],
            "WAITING_FOR_MESSAGE": [peer] if peer is not None else everyone * any_source,
        }
        found[mine["rank"]] = by_activity.get(mine["activity"], [])
    return found


def _turned(graph: dict[int, list[int]]) -> dict[int, list[int]]:
    return {rank: [other for other in graph if rank in graph[other]] for rank in graph}


def _on(function: Callable[[Sequence[Rank]], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [function(case.arguments[0][0])]


def spread(comm, wire, limit):
    """Let heat spread along a closed wire until no value changes by `limit`; return (steps, wire).

    Shape: wire (n,), the same on all ranks, n >= p; each rank computes its part of np.array_split. Each rank
    returns the number of steps and the whole wire.
    """
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    part = np.array_split(wire, comm.size)[comm.rank]
    steps = 0
    while True:
        from_left, from_right = np.empty(1), np.empty(1)
        comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)
        comm.Sendrecv(part[:1], dest=left, recvbuf=from_right, source=right)
        padded = np.concatenate([from_left, part, from_right])
        change = (padded[:-2] - 2 * part + padded[2:]) / 4
        part = part + change
        steps += 1
        largest = comm.allreduce(np.abs(change).max(), op=MPI.MAX)
        if largest < limit:
            break
    return steps, np.concatenate(comm.allgather(part))


def _wires() -> Sequence[Case]:
    cases = []
    # The heat is where rank 0 comes to rest neither first nor last on three and four ranks.
    for p, n, first, heated, limit in (
        *((1, 6, 0, 2, 5.0), (2, 7, 0, 2, 5.0), (3, 12, 4, 3, 2.0), (4, 26, 5, 5, 0.5)),
    ):
        wire = np.zeros(n)
        wire[first : first + heated] = 100.0
        cases.append(Case(f"{p} ranks, {n} values, limit {limit}", ((wire, limit),) * p))
    return cases


def _serial(
    wire: np.ndarray, limit: float, measure: Callable[[np.ndarray], float] | None = None
) -> tuple[int, np.ndarray]:
    """Return steps and wire, computed on one rank; `measure` is compared with the limit."""
    for steps in range(1, 10_000):
        change = (np.roll(wire, 1) - 2 * wire + np.roll(wire, -1)) / 4
        wire = wire + change
        if (measure or (lambda change: np.abs(change).max()))(change) < limit:
            return steps, wire
    raise ValueError("the wire did not come to rest")


def _stopping_by(measure: Callable[[list[np.ndarray]], float]) -> Callable[[Case], Sequence[Any]]:
    def results(case: Case) -> Sequence[Any]:
        wire, limit = case.arguments[0]
        p = case.ranks
        return [_serial(wire, limit, lambda change: measure(np.array_split(change, p)))] * p

    return results


def _one_step_less(case: Case) -> Sequence[Any]:
    wire, limit = case.arguments[0]
    steps, _ = _serial(wire, limit)
    before, changes = wire, 0
    while changes < steps - 1:
        before = before + (np.roll(before, 1) - 2 * before + np.roll(before, -1)) / 4
        changes += 1
    return [(steps, before)] * case.ranks


def _largest(parts: list[np.ndarray]) -> list[float]:
    return [float(np.abs(part).max()) for part in parts]


EXERCISES = [
    Exercise(
        reference=wait_for_graph,
        title="Who waits for whom?",
        difficulty=3,
        minutes=15,
        cases=_reports,
        expected=_on(_graph),
        suspects={
            "the arrows point the wrong way: list the ranks that this rank waits for": _on(
                lambda ranks: _turned(_graph(ranks))
            ),
            "a rank in a collective waits for all ranks that are not in it, not for all others": _on(
                lambda ranks: _graph(ranks, lambda mine, each: mine is not each)
            ),
            "a rank in another collective (another number) has not joined this one: it is waited for": _on(
                lambda ranks: _graph(ranks, lambda mine, each: each["activity"] != "WAITING_IN_COLLECTIVE")
            ),
            "a rank that has finished this collective is no longer in it: look at its activity, too": _on(
                lambda ranks: _graph(ranks, lambda mine, each: len(each["calls"]) != len(mine["calls"]))
            ),
            "a rank with fewer calls is waited for, and so is one that is further": _on(
                lambda ranks: _graph(
                    ranks,
                    lambda mine, each: (
                        len(each["calls"]) < len(mine["calls"]) or each["activity"] != "WAITING_IN_COLLECTIVE"
                    ),
                )
            ),
            "a receive from any source (peer None) waits for all other ranks": _on(
                lambda ranks: _graph(ranks, any_source=False)
            ),
            "a rank in a collective waits, too: for the ranks that are not in it": _on(
                lambda ranks: _graph(ranks, lambda mine, each: False)
            ),
        },
        hints=(
            "Three cases, by `activity`: WAITING_FOR_MESSAGE waits for `message['peer']`, "
            "WAITING_IN_COLLECTIVE for every rank that is not in this collective, anything else for no rank.",
            "A rank is in collective number k if its activity is WAITING_IN_COLLECTIVE and its last call, "
            "`calls[-1]['number']`, is k.",
        ),
    ),
    Exercise(
        reference=spread,
        title="Mend the program",
        difficulty=3,
        minutes=15,
        cases=_wires,
        expected=lambda case: [_serial(*case.arguments[0])] * case.ranks,
        suspects={
            "it stops when the rank with the smallest change is done; wait for the largest": _stopping_by(
                lambda parts: min(_largest(parts))
            ),
            "it stops when the ranks' mean of the largest changes is small; take their maximum": _stopping_by(
                lambda parts: float(np.mean(_largest(parts)))
            ),
            "it stops when the ranks' sum of the largest changes is small; take their maximum": _stopping_by(
                lambda parts: sum(_largest(parts))
            ),
            "it stops when rank 0 is done; other ranks may still change": _stopping_by(
                lambda parts: _largest(parts)[0]
            ),
            "the change of the last step is not added to the wire": _one_step_less,
        },
        on_ranks=True,
        prelude="import numpy as np\nfrom mpi4py import MPI",
        hints=(
            "A rank leaves the loop when *its own* part changes by less than the limit. Ranks that are cold "
            "leave in the first step; the others then wait for values that no rank sends.",
            "All ranks must leave in the same step, so they must decide together, from one number.",
            "`largest = comm.allreduce(largest, op=MPI.MAX)` before the `if`.",
        ),
    ),
]
