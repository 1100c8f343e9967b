"""Tracebacks of cells on the ranks: the student's lines, without those of libraries that wrap mpi4py.

A cell that recurses without end has a thousand frames, all alike; IPython would take a minute to format them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from types import TracebackType
from typing import Any

from labkit.cluster.engine_guards import restore_closed_streams
from mpiwatch.places import own_folders

ENDS_KEPT = 3  # frames at both ends of a long traceback
MOST_FRAMES = 20
CYTHON = ".pyx", ".pxi"  # mpi4py's sources, which are not installed


def shorten_tracebacks(shell: Any) -> None:
    """Let an IPython shell show tracebacks without foreign frames, and without the middle of long ones."""
    formatter = shell.InteractiveTB
    plain = formatter.structured_traceback

    @wraps(plain)
    def structured_traceback(
        kind: Any = None, error: Any = None, traceback: Any = None, *rest: Any, **options: Any
    ) -> Any:
        restore_closed_streams()  # IPython fails without them, and the cell's own error is not shown
        for cause in chain(error):
            cause.__traceback__ = shortened(cause.__traceback__)
        return plain(kind, error, shortened(traceback), *rest, **options)

    formatter.structured_traceback = structured_traceback


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors that have caused an error, but not the error itself."""
    seen = {id(error)}
    while error is not None:
        error = error.__cause__ or error.__context__
        if error is None or id(error) in seen:
            return
        seen.add(id(error))
        yield error


def shortened(traceback: TracebackType | None) -> TracebackType | None:
    """Return a copy of a traceback without foreign frames; the first frame, IPython's own, stays."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    if not entries:
        return None
    own = [entry for entry in entries[1:] if not is_foreign(entry.tb_frame.f_code.co_filename)]
    if len(own) > MOST_FRAMES:
        own = own[:ENDS_KEPT] + own[-ENDS_KEPT:]
    copy: TracebackType | None = None
    for entry in reversed([entries[0], *own]):
        copy = TracebackType(copy, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return copy


def is_foreign(file: str) -> bool:
    """Return whether a file belongs to the lab or to mpi4py."""
    return file.startswith(own_folders()) or file.endswith(CYTHON)
