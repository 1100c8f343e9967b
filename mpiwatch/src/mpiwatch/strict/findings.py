"""The findings of strict mode, each with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from mpi4py.MPI import COMM_WORLD as RAW_WORLD

from mpiwatch.report import FindingKind, ranks_phrase
from mpiwatch.waiting import CollectiveError


class Category(Enum):
    """Categories of errors, as named by the MPI Bugs Initiative."""

    CALL_MATCHING = "call matching"
    PARAMETER_MATCHING = "parameter matching"
    REQUEST_LIFECYCLE = "request lifecycle"
    EPOCH_LIFECYCLE = "epoch lifecycle"
    RESOURCE_LEAK = "resource leak"
    MESSAGE_RACE = "message race"
    LOCAL_CONCURRENCY = "local concurrency"
    GLOBAL_CONCURRENCY = "global concurrency"


@dataclass(frozen=True)
class Finding:
    """An error that a rank of the world has found. If another rank is involved, `text` names it.

    `is_remark`: it does no harm, such as a communicator that lives as long as the program. `kind`: what it is
    about, more finely than the category.
    """

    category: Category
    text: str
    place: str
    rank: int
    is_remark: bool = False
    kind: FindingKind = FindingKind.OTHER


class StrictError(CollectiveError):
    """An error that strict mode raises at once, because the program cannot continue.

    `reason`: its text without the rank. `rank`: the rank of the communicator, if it is about one.
    """

    def __init__(self, reason: str, rank: int | None = None) -> None:
        super().__init__(reason if rank is None else f"rank {rank}: {reason}")
        self.reason, self.rank = reason, rank


_found: list[Finding] = []  # by this process, since the last `take`
on_error: Callable[[Finding], object] | None = None  # called at once for each error, but not for remarks


def add(
    category: Category,
    text: str,
    place: str,
    is_remark: bool = False,
    kind: FindingKind = FindingKind.OTHER,
) -> None:
    """Keep a finding of this rank for the end of the cell or program; keep equal findings once."""
    finding = Finding(category, text, place, RAW_WORLD.rank, is_remark, kind)
    if finding not in _found:
        _found.append(finding)
        if on_error is not None and not is_remark:
            on_error(finding)


def take() -> list[Finding]:
    """Return the findings since the last call."""
    taken, _found[:] = list(_found), []
    return taken


def render(findings: Iterable[Finding]) -> str:
    """Return the errors and the remarks, one line for each; equal findings of several ranks share a line."""
    findings = list(findings)
    parts = []
    for name, a_name, is_remark in ("errors", "an error", False), ("remarks", "a remark", True):
        lines = _lines(finding for finding in findings if finding.is_remark == is_remark)
        if lines:
            number = f"{len(lines)} {name}" if len(lines) > 1 else a_name
            verb = "has" if is_remark else "found"
            parts += [f"Strict mode {verb} {number}:", *lines]
    return "\n".join(parts)


def _lines(findings: Iterable[Finding]) -> list[str]:
    groups: dict[tuple[Category, str, str], list[int]] = {}
    for finding in findings:
        groups.setdefault((finding.category, finding.text, finding.place), []).append(finding.rank)
    order = list(Category)
    return [
        f"  {category.value}: {ranks_phrase(sorted(set(ranks)))}: {text}" + (f" ({place})" if place else "")
        for (category, text, place), ranks in sorted(
            groups.items(), key=lambda group: (order.index(group[0][0]), group[0][2], group[1])
        )
    ]


def to_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON: a list of objects."""
    return json.dumps(
        [
            asdict(finding) | {"category": finding.category.value, "kind": finding.kind.value}
            for finding in findings
        ]
    )
