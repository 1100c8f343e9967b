"""The error of a place that cannot run the ranks. IPython shows it as one message, without a traceback."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.text import wrapped


class ShownError(BaseException):
    """An error that IPython shows as its message, and below it the tracebacks of the ranks that caused it."""

    name = ""  # stands before the message

    def __init__(self, message: str, tracebacks: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tracebacks = tracebacks

    def _render_traceback_(self) -> list[str]:  # IPython calls this
        message = f"{self.name}: {self}" if self.name else str(self)
        return [wrapped(message), *(line for traceback in self.tracebacks for line in ("", traceback))]


class ClusterError(ShownError, RuntimeError):
    """The engines are not what the lab needs. The message says why, and what to do."""

    name = "ClusterError"
