"""What `connect()` and `%%px` raise in a notebook. IPython shows each as one message, without a traceback."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The engines are not what the lab needs. The message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython calls this
        return [f"ClusterError: {self}"]


class RankDied(RuntimeError):
    """A rank died, and MPI ended the others with it."""

    def _render_traceback_(self) -> list[str]:
        return [f"RankDied: {self}"]


class CellHung(RuntimeError):
    """The ranks raised a HangError, shown once here."""

    def _render_traceback_(self) -> list[str]:
        return [f"HangError: {self}"]


class CellStopped(KeyboardInterrupt):
    """The user stopped the cell. The message says what each rank was doing."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]
