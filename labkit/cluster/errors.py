"""What `connect()` and `%%px` raise in a notebook.

IPython shows each error as one message, without a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cluster.places.errors import ClusterError, ShownError

__all__ = ["CellFailed", "CellHung", "CellStopped", "ClusterError", "ErrorOfCell", "RankDied", "ShownError"]


class RankDied(ShownError, RuntimeError):
    """A rank died, and MPI ended the others with it."""

    name = "RankDied"


class ErrorOfCell(ShownError):
    """A cell failed on ranks. `failed_ranks`: those that raised an error, first the causes."""

    failed_ranks: Sequence[int] = ()


class CellFailed(ErrorOfCell, RuntimeError):
    """Ranks raised errors. The message has a line for each distinct one, which names it."""


class CellHung(ErrorOfCell, RuntimeError):
    """The ranks raised a HangError, shown once here, above the tracebacks of the errors that caused it."""

    name = "HangError"


class CellStopped(ErrorOfCell, KeyboardInterrupt):
    """The user stopped the cell. The message says what each rank was doing."""

    name = "KeyboardInterrupt"
