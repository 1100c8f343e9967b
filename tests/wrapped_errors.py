"""Error messages as labkit words them, without the line breaks that a notebook's page needs."""

from __future__ import annotations


def unwrapped(traceback: list[str], message: str) -> list[str]:
    """Return what an error shows, with the message's own line breaks if labkit has broken its long lines."""
    shown, *rest = traceback or [""]
    for whole in (message, f"{shown.partition(':')[0]}: {message}"):
        if shown.split() == whole.split():
            return [whole, *rest]
    return traceback
