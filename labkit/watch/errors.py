"""The errors that say that ranks hang."""

from __future__ import annotations

from typing import Any

from labkit.comm.errors import CollectiveError


class HangError(CollectiveError):
    """Ranks wait in vain, or have come with calls that do not fit; `report` says the same as data.

    Raised on every rank that waits. No data has moved in a collective that ends so, and the communicators
    can be used again: in the next cell, or after `labkit.watch.communicators.resume()`.
    """

    def __init__(self, report: dict[str, Any], rank: int) -> None:
        super().__init__(report["text"])
        self.report = report
        self.rank = rank

    def _render_traceback_(self) -> list[str]:  # by IPython on an engine: the notebook shows the report, once
        return [f"HangError: rank {self.rank} has waited in vain."]


class Interrupted(KeyboardInterrupt):
    """The user's interrupt of a rank that waits."""

    def _render_traceback_(
        self,
    ) -> list[str]:  # a rank that waits has little to tell, and shall do so at once
        return [f"KeyboardInterrupt: {self}"]
