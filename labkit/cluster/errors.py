"""What `connect()` and `%%px` raise in a notebook, and `%%px` in a notebook without engines.

IPython shows each error as one message, without a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiwatch.wording import wrapped

NO_ENGINES = "there are no engines yet: run the notebook's cell with `connect()` first."
NOT_CONNECTED = (
    "this notebook has no engines, because `connect()` failed. Do what its message says, then run its cell "
    "again."
)


class ClusterError(RuntimeError):
    """The engines are not what the lab needs. The message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython calls this
        return [wrapped(f"ClusterError: {self}")]


class RankDied(RuntimeError):
    """A rank died, and MPI ended the others with it."""

    def _render_traceback_(self) -> list[str]:
        return [wrapped(f"RankDied: {self}")]


class CellFailed(RuntimeError):
    """Ranks raised errors. The message has a line for each distinct one; `tracebacks` are shown below it."""

    def __init__(self, message: str, tracebacks: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tracebacks = tracebacks

    def _render_traceback_(self) -> list[str]:
        return _with_tracebacks(str(self), self.tracebacks)


class CellHung(RuntimeError):
    """The ranks raised a HangError, shown once here, above the tracebacks of the errors that caused it."""

    def __init__(self, report: str, tracebacks: Sequence[str] = ()) -> None:
        super().__init__(report)
        self.tracebacks = tracebacks

    def _render_traceback_(self) -> list[str]:
        return _with_tracebacks(f"HangError: {self}", self.tracebacks)


class CellStopped(KeyboardInterrupt):
    """The user stopped the cell. The message says what each rank was doing."""

    def __init__(self, message: str, tracebacks: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tracebacks = tracebacks

    def _render_traceback_(self) -> list[str]:
        return _with_tracebacks(f"KeyboardInterrupt: {self}", self.tracebacks)


def _with_tracebacks(message: str, tracebacks: Sequence[str]) -> list[str]:
    return [wrapped(message), *(line for traceback in tracebacks for line in ("", traceback))]


def refuse_cells(shell: Any, message: str) -> None:
    """Let `%%px` and its relatives raise ClusterError with this message until `connect()` replaces them."""

    def px(line: str, cell: str | None = None) -> None:
        """Run a cell on the ranks, after `connect()`."""
        raise ClusterError(message)

    shell.register_magic_function(px, "line_cell", "px")
    for name in ("autopx", "pxconfig", "pxresult"):
        shell.register_magic_function(px, "line", name)
