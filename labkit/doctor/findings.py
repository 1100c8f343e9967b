"""What a check hands back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    `status` is "ok"; "note" where the lab works, but something costs time or refuses what is typed by hand;
    or "fault" where the lab does not work, or would compute something else than it says.
    `why` it hurts and how to `mend` it (one command where one does it) are empty where all is well.
    """

    check: str
    status: str
    found: str
    why: str = ""
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def note(check: str, found: str, why: str, mend: str) -> Finding:
    return Finding(check, "note", found, why, mend)


def fault(check: str, found: str, why: str, mend: str) -> Finding:
    return Finding(check, "fault", found, why, mend)
