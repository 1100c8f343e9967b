"""Group ranks that do the same, so that a report of hundreds of ranks is as short as one of four."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mpiwatch.flight_recorder.report import Activity, RankState, Report
from mpiwatch.wording import ranks_phrase, runs

MAX_GROUPS = 12  # groups in a report; each has a line
MAX_RUNS = 8  # runs of consecutive ranks in a phrase
MAX_HOSTS = 3  # hosts named in a phrase
WAITING = (Activity.WAITING_IN_COLLECTIVE, Activity.WAITING_FOR_MESSAGE)

Group = tuple[RankState, list[int]]


def groups(report: Report) -> list[Group]:
    """Return what the ranks do, and which ranks do it: waiting ranks first, large groups first.

    If there are too many groups, leave out details in which the ranks differ. If there still are, or if
    most ranks are in the first group, it is kept, and of the others the small ones: the odd ones out.
    """
    found: list[Group] = []
    for simplify in (_keep, _without_peer, _without_place):
        by_state: dict[RankState, list[int]] = {}
        for rank in report.ranks:
            by_state.setdefault(simplify(_shown(report, rank)), []).append(rank.rank)
        found = sorted(by_state.items(), key=lambda group: (group[0].activity not in WAITING, -len(group[1])))
        if len(found) <= MAX_GROUPS:
            return found
        if len(found[0][1]) > len(report.ranks) / 2:
            break
    odd = sorted(found[1:], key=lambda group: (group[0].activity in WAITING, len(group[1])))
    kept = [found[0], *odd[: MAX_GROUPS - 1]]
    return [group for group in found if group in kept]


def _shown(report: Report, rank: RankState) -> RankState:
    """Return what a rank's line shows; it is equal for ranks that share a line."""
    rank = replace(rank, rank=-1, host="")
    last = rank.last_call(report.communicator)
    if rank.activity is Activity.WAITING_IN_COLLECTIVE:
        shown = replace(rank.calls[-1], file="", line=0)  # the line is part of the place
        if (joined := report.joined_call(rank)) is not None and joined.number < shown.number:
            return replace(rank, calls=(replace(joined, file="", line=0), shown))
    elif rank.message is None and (joined := report.joined_call(rank)) is not None:
        shown = joined
    elif rank.message is None and last is not None and last.number < report.number:
        shown = last
    else:
        return replace(rank, calls=())
    return replace(rank, calls=(shown,))


def _keep(rank: RankState) -> RankState:
    return rank


def _without_peer(rank: RankState) -> RankState:
    """Leave out the peer of a message and the text of an error."""
    message = rank.message if rank.message is None else replace(rank.message, peer=-1)
    return replace(rank, message=message, error=rank.error.partition(":")[0])


def _without_place(rank: RankState) -> RankState:
    """Leave out the line and the number of elements, too."""
    calls = tuple(replace(call, count=None, line=0) for call in rank.calls)
    return replace(_without_peer(rank), place="", calls=calls)


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
    named = f"host{'s' * (len(hosts) > 1)} {', '.join(hosts)}"
    return f"{phrase} ({named if len(hosts) <= MAX_HOSTS else f'{len(hosts)} hosts'})"
