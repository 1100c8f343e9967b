"""What `connect()` and `%%px` raise in a notebook. IPython shows each as one message, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

COLUMNS = 100  # of a message's lines: JupyterLab breaks longer ones in the middle of a word
_QUOTED = re.compile(r"`[^`]*`")
_WORD = re.compile(r"(?:[^\s`]|`[^`]*`|`)+")  # what stands in backticks is part of a word
_NO_SPACE = re.compile(r"\S+")
_COLUMNS_OF_A_TABLE = re.compile(r"\S {2,}\S")


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


def wrapped(message: str) -> str:
    """Return a message with its long lines broken between words, not inside backticks if they fit a line.

    A continuation line is indented as its line. The rows of a hang report's table stay as they are.
    """
    return "\n".join(part for line in message.split("\n") for part in _wrapped_line(line))


def _wrapped_line(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    if len(line) <= COLUMNS or _COLUMNS_OF_A_TABLE.search(_QUOTED.sub("", line)):
        return [line]
    longest = COLUMNS - len(indent)
    parts: list[str] = []
    start = end = len(indent)  # of the next part
    for word_start, word_end in _words(line, longest):
        if start < end and word_end - start > longest:
            parts.append(indent + line[start:end])
            start = word_start
        end = word_end
    return [*parts, indent + line[start:end]]


def _words(line: str, longest: int) -> Iterator[tuple[int, int]]:
    """Yield where each word starts and ends; the words of a long text in backticks one by one."""
    for word in _WORD.finditer(line):
        if word.end() - word.start() <= longest:
            yield word.span()
        else:
            yield from (part.span() for part in _NO_SPACE.finditer(line, *word.span()))
