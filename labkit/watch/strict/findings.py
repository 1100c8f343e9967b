"""The findings of strict mode: the category of each error, a sentence, and the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from labkit.comm.errors import CollectiveError
from labkit.wording import ranks_phrase


class Category(Enum):
    """Categories of errors, as named by the MPI Bugs Initiative."""

    CALL_MATCHING = "call matching"
    REQUEST_LIFECYCLE = "request lifecycle"
    EPOCH_LIFECYCLE = "epoch lifecycle"
    RESOURCE_LEAK = "resource leak"
    MESSAGE_RACE = "message race"
    LOCAL_CONCURRENCY = "local concurrency"
    GLOBAL_CONCURRENCY = "global concurrency"


@dataclass(frozen=True)
class Finding:
    """An error that a rank has found. If another rank is involved, `text` names it."""

    category: Category
    text: str
    place: str
    rank: int


class StrictError(CollectiveError):
    """An error that strict mode raises at once, because the program cannot continue."""


_found: list[Finding] = []  # by this process, since the last `take`


def add(finding: Finding) -> None:
    """Keep a finding for the end of the cell or program; keep equal findings once."""
    if finding not in _found:
        _found.append(finding)


def take() -> list[Finding]:
    """Return the findings since the last call."""
    found, _found[:] = list(_found), []
    return found


def render(found: Iterable[Finding]) -> str:
    """Return the list, one line for each finding; equal findings of several ranks share a line."""
    groups: dict[tuple[Category, str, str], list[int]] = {}
    for finding in found:
        groups.setdefault((finding.category, finding.text, finding.place), []).append(finding.rank)
    if not groups:
        return ""
    order = list(Category)
    lines = [
        f"  {category.value}: {ranks_phrase(sorted(set(ranks)))}: {text}" + (f" ({place})" if place else "")
        for (category, text, place), ranks in sorted(
            groups.items(), key=lambda group: (order.index(group[0][0]), group[0][2], group[1])
        )
    ]
    number = f"{len(lines)} errors" if len(lines) > 1 else "an error"
    return "\n".join([f"Strict mode found {number}:", *lines])


def to_json(found: Sequence[Finding]) -> str:
    """Return the findings as JSON: a list of objects."""
    return json.dumps([asdict(finding) | {"category": finding.category.value} for finding in found])
