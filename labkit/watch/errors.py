"""The errors of ranks that hang or are interrupted while they wait."""

from __future__ import annotations

from labkit.comm.errors import CollectiveError
from labkit.watch.flight_recorder.report import Report
from labkit.watch.flight_recorder.text import render


class HangError(CollectiveError):
    """A collective or message that cannot complete; every rank that waits raises it, with the same report.

    `report` (a `labkit.watch.flight_recorder.report.Report`) is the message as data. No data has moved in the
    collective, and the communicators can be used again: in the next cell, or after
    `labkit.watch.communicators.resume()`.
    """

    def __init__(self, report: Report, rank: int) -> None:
        super().__init__(render(report))
        self.report = report
        self.rank = rank

    def _render_traceback_(self) -> list[str]:  # by IPython on an engine; the notebook shows the report once
        return [f"HangError: {str(self).splitlines()[0]}"]


class Interrupted(KeyboardInterrupt):
    """The user interrupted a rank while it was waiting."""

    def _render_traceback_(self) -> list[str]:  # a traceback would show only the loop that waits
        return [f"KeyboardInterrupt: {self}"]


class ForkedError(RuntimeError):
    """A forked child of a rank has called MPI, which belongs to its parent."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"a forked child of rank {rank} called MPI, which only the process that initialised it may use: "
            "call MPI before the fork, or start the child with `subprocess` or multiprocessing's `spawn`."
        )
