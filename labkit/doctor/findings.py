"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    `status` is "ok"; "note" if the lab works, but something costs time or a command typed by hand would fail;
    or "fault" if the lab does not work or computes wrong results. `why` says what harm it does, and `fix` how
    to fix it, with one command where possible; both are empty if the status is "ok".
    """

    check: str
    status: str
    found: str
    why: str = ""
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(check, "ok", found)


def note(check: str, found: str, why: str, fix: str) -> Finding:
    """Return a finding with which the lab works."""
    return Finding(check, "note", found, why, fix)


def fault(check: str, found: str, why: str, fix: str) -> Finding:
    """Return a finding with which the lab does not work."""
    return Finding(check, "fault", found, why, fix)
