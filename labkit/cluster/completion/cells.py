"""Which part of a notebook's cell the ranks run, and where the cursor stands in it."""

from __future__ import annotations

import re
from typing import NamedTuple

# The options of `%%px`, as ipyparallel has them; tests/cluster/test_adapter.py compares the two lists.
OPTIONS = (
    *("--block", "--group-outputs", "--local", "--no-stream", "--no-verbose", "--noblock", "--out"),
    *("--progress-after", "--signal-on-interrupt", "--stream", "--targets", "--verbose"),
)
# Lines above `%%px`: blank ones, comments, and other cell magics, as in `%%time`.
ABOVE = r"(?:[ \t]*(?:#[^\n]*)?\n|%%(?!(?:px|replay)\b)[^\n]*\n)*"
CELL = re.compile(ABOVE + r"%%(?:px|replay)(?P<options>(?:[ \t][^\n]*)?)(?P<body>\n[\s\S]*|\Z)")
LINE = re.compile(r"[ \t]*(?:\w+[ \t]*=[ \t]*)?%px(?P<options>[ \t])")
MAGIC_LINE = re.compile(r"^([ \t]*)%{1,2}(?:time|timeit|prun)\b(?=[ \t])|^([ \t]*)[%!][^\n]*", re.MULTILINE)
TARGETS = re.compile(r"(?:--targets|-t)[ =]?(\S+)")


class CellOnRanks(NamedTuple):
    """The code that ranks run, and the cursor in it. `start` is where the code begins in the notebook's cell.

    `targets` is the value of `--targets`, empty without one. The cursor is None if it stands on the line with
    `%%px`: then `option` is the word before it.
    """

    code: str
    cursor: int | None
    start: int
    targets: str = ""
    option: str = ""


def find_cell(text: str, position: int) -> CellOnRanks | None:
    """Return what ranks run of a cell, if the cursor at `position` stands there or in the options of `%%px`.

    None if the cell, or the line with the cursor, runs in the kernel.
    """
    match = CELL.match(text)
    if match is not None:
        if position < match.start("options"):
            return None
        targets_option = TARGETS.search(match["options"])
        targets = targets_option[1] if targets_option else ""
        if position <= match.end("options"):
            option = text[match.start("options") : position].rpartition(" ")[2]
            return CellOnRanks("", None, position - len(option), targets, option)
        start = match.start("body") + 1
        return CellOnRanks(without_magics(text[start:]), position - start, start, targets)
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    match = LINE.match(line)
    if match is None or line_start + match.end() > position:
        return None
    start = line_start + match.end()
    return CellOnRanks(line[match.end() :], position - start, start)


def without_magics(code: str) -> str:
    """Return code with blanks in place of line magics and shell commands, and of `%time` before code."""
    return MAGIC_LINE.sub(lambda match: " " * len(match[0]), code)
