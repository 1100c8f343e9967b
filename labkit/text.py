"""Phrases that the lab's messages share, and lines that fit a notebook's page."""

from __future__ import annotations

import re
from collections.abc import Collection

COLUMNS = 100  # of a line on a notebook's page: JupyterLab breaks longer ones in the middle of a word
# In the metadata of what a rank displays, if it does not matter which rank has: `%%px` then does not say so.
NO_TAG = "labkit_no_tag"
_QUOTED = re.compile(r"`[^`]*`")
_WORD = re.compile(r"(?:[^\s`]|`[^`]*`|`)+")  # what stands in backticks is part of a word
_COLUMNS_OF_A_TABLE = re.compile(r"\S {2,}\S")


def lines_of(code: str) -> list[str]:
    """Return the lines of a Python text as Python counts them; `splitlines` breaks at more characters."""
    return re.split(r"\r\n?|\n", code)


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`, `0 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranks_phrase(ranks: Collection[int], size: int | None = None) -> str:
    """Return `rank 2`, `ranks 0, 1, 5` or `ranks 0–3, 5`; with `size`, `all 4 ranks` if these are all."""
    if size is not None and len(ranks) == size > 1:
        return f"all {size} ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + numbers_phrase(ranks)


def numbers_phrase(numbers: Collection[int]) -> str:
    """Return `2`, `0, 1, 5` or `0–3, 5`."""
    texts: list[str] = []
    for group in runs(numbers):
        texts += [f"{group[0]}–{group[-1]}"] if len(group) > 2 else map(str, group)
    return ", ".join(texts)


def runs(numbers: Collection[int]) -> list[list[int]]:
    """Return the numbers in ascending order, each run of consecutive numbers as a list of its own."""
    runs_of_numbers: list[list[int]] = []
    for number in sorted(numbers):
        if runs_of_numbers and number == runs_of_numbers[-1][-1] + 1:
            runs_of_numbers[-1].append(number)
        else:
            runs_of_numbers.append([number])
    return runs_of_numbers


def wrapped(message: str, columns: int = COLUMNS) -> str:
    """Return a message with its long lines broken between words, not inside backticks if they fit a line.

    A continuation line is indented as its line. The rows of a hang report's table stay as they are.
    """
    return "\n".join(part for line in message.split("\n") for part in _wrapped_line(line, columns))


def _wrapped_line(line: str, columns: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    if len(line) <= columns or _COLUMNS_OF_A_TABLE.search(_QUOTED.sub("", line)):
        return [line]
    parts = [indent]
    for word in _WORD.findall(line):
        for piece in [word] if len(indent + word) <= columns else word.split(" "):
            if parts[-1] != indent and len(parts[-1]) + 1 + len(piece) > columns:
                parts.append(indent)
            if parts[-1] != indent:
                parts[-1] += " "
            parts[-1] += piece
    return parts
