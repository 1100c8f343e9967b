"""Find requests that the program has not waited for, and messages that no rank has received."""

from __future__ import annotations

import sys
from typing import Any

from labkit.watch.requests import under_way
from labkit.watch.strict.exchange import Exchange
from labkit.watch.strict.findings import Category, Finding, add
from labkit.watch.strict.objects import is_own_call
from labkit.watch.strict.requests import StrictPrequest, StrictRequest

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
    for request in _made:
        if only_lost and not _is_lost(request):
            kept.append(request)
            continue
        text, place, category = "", "", Category.REQUEST_LIFECYCLE
        if request.call is not None:
            text, place = f"the request of {request.call.what} was never waited for", request.call.place
        elif isinstance(request, StrictPrequest) and not request.is_freed:
            place = request.place
            if request.started:
                text, category = f"the request of {request.operation} was never freed", Category.RESOURCE_LEAK
            else:
                text = f"the request of {request.operation} was never started"
        if text:
            found.append(Finding(category, text, place, rank))
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


def _is_lost(request: Any) -> bool:
    """Return whether only this module and `under_way` refer to the request."""
    kept = sum(each is request for kind in (under_way.sends, under_way.receives) for each in kind.requests)
    return sys.getrefcount(request) <= kept + 4  # `_made`, the caller's loop, the parameter, the argument
