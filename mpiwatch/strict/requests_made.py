"""Find requests that the program has not waited for, and messages that no rank has received."""

from __future__ import annotations

import sys
from typing import Any

from mpiwatch import under_way
from mpiwatch.strict.exchange import Exchange
from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.objects import is_own_call
from mpiwatch.strict.requests import StrictPrequest, StrictRequest

_made: list[StrictRequest] = []
TIDY = 1000


def add_request(request: StrictRequest) -> None:
    """Note a request of the program."""
    if len(_made) > TIDY:
        _made[:] = [each for each in _made if each]
    if is_own_call():
        _made.append(request)


def never_completed(rank: int, only_lost: bool) -> list[Finding]:
    """Return a finding for each request never waited for; `only_lost`: only if no variable refers to it."""
    found, kept = [], []
    for request, references in zip(_made, _references(_made), strict=True):
        if only_lost and references > _LOST + _kept_under_way(request):
            kept.append(request)
            continue
        text, place, category = "", "", Category.REQUEST_LIFECYCLE
        if request.call is not None and not request.call.was_cancelled:
            text, place = f"the request of {request.call.what} was never waited for", request.call.place
        elif isinstance(request, StrictPrequest) and not request.is_freed:
            place = request.place
            if request.started:
                text, category = f"the request of {request.operation} was never freed", Category.RESOURCE_LEAK
            else:
                text = f"the request of {request.operation} was never started"
        if text:
            # A persistent request may live as long as the program.
            found.append(Finding(category, text, place, rank, is_remark=request.call is None))
    _made[:] = kept
    return found


def report_leftovers(exchange: Exchange) -> None:
    """Report, once each, the messages of a communicator that have arrived but were never received."""
    for header in exchange.leftovers():
        if header.was_reported:
            continue
        header.was_reported = True
        add(
            Finding(
                Category.CALL_MATCHING,
                f"the message was never received: {header.operation} of {header.signature} from rank "
                f"{header.source} to rank {exchange.rank}, tag {header.tag}",
                header.place,
                exchange.members[exchange.rank],
            )
        )


def _references(requests: list[StrictRequest]) -> list[int]:
    return [sys.getrefcount(request) for request in requests]


def _kept_under_way(request: Any) -> int:
    return sum(each is request for kind in (under_way.sends, under_way.receives) for each in kind.requests)


# Python's count for a request that only `_made` refers to; it differs between versions of Python.
_LOST = _references([StrictRequest()])[0]
