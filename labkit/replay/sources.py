"""The lines of the cells whose functions have made the calls of a recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mpiwatch.trace import Trace

IN_CELL = re.compile(r"cell (?:\[(\d+)\] )?line (\d+)")
FIRST_LINE = re.compile(r"\s*# cell \[\d+\]: (%%.*)")  # what the ranks run in place of the line with %%px


class ShownLines(NamedTuple):
    """The lines to show, each with its number in its cell (empty: a heading), and where a call's line is.

    `row_of(line)` returns the row, from 1, of the line that an event names; 0 if it is not shown.
    """

    rows: list[tuple[str, str]]
    row_of: Callable[[str], int]


def cells_named(lines: Iterable[str]) -> set[str]:
    """Return the numbers of the earlier cells in which calls were made: "cell [9] line 15" names cell 9."""
    return {number for line in lines for number, _ in _places(line) if number}


def shown_lines(trace: Trace, source: str, cells: Mapping[str, str]) -> ShownLines:
    """Return the lines of the cell that was run, and of the `cells` (by number) in which calls were made.

    The cell itself is left out if all calls were made in others.
    """
    lines = {event.line for log in trace.logs.values() for event in log.events if event.line}
    innermost = [place for place in (_innermost(line, cells) for line in lines) if place is not None]
    first_row: dict[str, int] = {}
    rows: list[tuple[str, str]] = []
    for number in sorted({number for number, _ in innermost}, key=lambda number: int(number or 0)):
        text = cells[number] if number else source
        if number:
            rows.append(("", f"cell [{number}]"))
        first_row[number] = len(rows)
        rows += [(str(index), _as_typed(line)) for index, line in enumerate(text.splitlines(), 1)]

    def row_of(line: str) -> int:
        place = _innermost(line, cells)
        if place is None or place[0] not in first_row:
            return 0
        row = first_row[place[0]] + place[1]
        return row if row <= len(rows) else 0

    return ShownLines(rows, row_of)


def _places(line: str) -> list[tuple[str, int]]:
    """Return the cells' lines that a call's line names, the innermost last; "" is the cell that was run."""
    named = (IN_CELL.match(part) for part in re.sub("`[^`]*`", "", line).split(" via "))
    return [(match[1] or "", int(match[2])) for match in named if match]


def _innermost(line: str, cells: Mapping[str, str]) -> tuple[str, int] | None:
    known = [place for place in _places(line) if not place[0] or place[0] in cells]
    return known[-1] if known else None


def _as_typed(line: str) -> str:
    """Return a line of a cell as the student sees it."""
    match = FIRST_LINE.match(line)
    return match[1] if match else line.rstrip("\n")
