"""Tracebacks of cells on the ranks: the student's lines, without those of libraries that wrap mpi4py.

A cell that recurses without end has a thousand frames, all alike; IPython would take a minute to format them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from functools import partial, wraps
from traceback import extract_tb
from types import TracebackType
from typing import Any

from labkit.cluster.adapter import functions
from labkit.cluster.engine_guards import restore_closed_streams
from mpiwatch.sessions import own_folders

ENDS_KEPT = 3  # frames at both ends of a long traceback
MOST_FRAMES = 20
CYTHON = ".pyx", ".pxi"  # mpi4py's sources, which are not installed
LINES_ABOVE = 2  # that IPython shows above the line of a frame
# A frame of a function that the notebook's kernel has sent to a rank, which has not its text.
_WITHOUT_SOURCE = re.compile(r"File (\S+):(\d+)(, in [^\n]*)?\n +\d+ 'Could not get source[^\n]*'")


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
    """Return a copy of a traceback without foreign frames; the first frame, if IPython's own, stays.

    None if all of its frames are foreign, as when a client asks for a name that no cell has defined.
    """
    entries = []
    is_first, is_below_ipyparallel = True, False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        # ipyparallel calls a function by a text, and reads a name by another one.
        is_ipyparallels = functions.is_own_file(file) or (is_below_ipyparallel and file == "<string>")
        if not is_ipyparallels and (is_first or not is_foreign(file)):
            entries.append(traceback)
        is_first, is_below_ipyparallel = False, is_ipyparallels
        traceback = traceback.tb_next
    if len(entries) > MOST_FRAMES:
        entries = entries[: ENDS_KEPT + 1] + entries[-ENDS_KEPT:]
    copy: TracebackType | None = None
    for entry in reversed(entries):
        copy = TracebackType(copy, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return copy


def is_foreign(file: str) -> bool:
    """Return whether a file belongs to the lab or to mpi4py."""
    return file.startswith(own_folders()) or file.endswith(CYTHON)


# In the notebook's kernel, which has the text of its cells.


def lines_of_cells(shell: Any, error: BaseException) -> str:
    """Return the lines of the notebook's cells that led to an error, as IPython shows them; else nothing."""
    frames = extract_tb(error.__traceback__)
    shown = [_excerpt(shell, frame.filename, frame.lineno or 0, "") for frame in frames]
    return "\n\n".join(filter(None, shown))


def with_sources(shell: Any, frames: str) -> str:
    """Return a rank's frames with the lines of the notebook's functions in place of a note without them."""
    return _WITHOUT_SOURCE.sub(partial(_with_source, shell), frames)


def _with_source(shell: Any, match: re.Match[str]) -> str:
    return _excerpt(shell, match[1], int(match[2]), match[3] or "") or match[0]


def _excerpt(shell: Any, file: str, line: int, function: str) -> str:
    """Return a line of a cell with those above it; empty if the file is not a cell of this notebook."""
    label = shell.compile.format_code_name(file)
    lines = [text.rstrip() for text in linecache.getlines(file)]
    if label is None or not 0 < line <= len(lines):
        return ""
    above = range(max(1, line - LINES_ABOVE), line)
    numbered = [f"{number:>7} {lines[number - 1]}".rstrip() for number in above]
    kind, name = label
    return "\n".join([f"{kind} {name}, line {line}{function}", *numbered, _marked(line, lines[line - 1])])


def _marked(line: int, text: str) -> str:
    """Return the line of a frame with an arrow: `----> 3 inverse(0)`."""
    number = str(line)
    arrow = "-" * max(2, 5 - len(number)) + "> "
    return f"{arrow}{number} {text}"
