"""What `connect()` and `%%px` raise in a notebook.

IPython shows each error as one message, without a traceback.
"""

from __future__ import annotations

from labkit.cluster.places.errors import ClusterError, ShownError

__all__ = ["CellFailed", "CellHung", "CellStopped", "ClusterError", "RankDied", "ShownError"]


class RankDied(ShownError, RuntimeError):
    """A rank died, and MPI ended the others with it."""

    name = "RankDied"


class CellFailed(ShownError, RuntimeError):
    """Ranks raised errors. The message has a line for each distinct one, which names it."""


class CellHung(ShownError, RuntimeError):
    """The ranks raised a HangError, shown once here, above the tracebacks of the errors that caused it."""

    name = "HangError"


class CellStopped(ShownError, KeyboardInterrupt):
    """The user stopped the cell. The message says what each rank was doing."""

    name = "KeyboardInterrupt"
