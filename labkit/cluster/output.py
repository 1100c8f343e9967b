"""The output of a `%%px` cell, by rank: in JupyterLab, in saved notebooks and in their tests alike."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any, NamedTuple

import ipyparallel as ipp
from IPython.display import publish_display_data

from labkit.cluster.adapter import client

ARRIVAL_S = 1.0  # how long after the last output to wait for more, once the cell has ended
LONGEST_TEXT = 500_000  # characters of one rank's text; much more freezes a browser
RED, NORMAL = "\x1b[0;31m", "\x1b[0m"


class Kind(IntEnum):
    """What a piece of output is, in the order in which the kinds are shown."""

    STDOUT, STDERR, DISPLAY, RESULT = range(4)


class Piece(NamedTuple):
    """What one rank has printed, displayed or returned. `number` counts its displays."""

    rank: int
    kind: Kind
    number: int
    content: Any  # a text, or the content of a message with a display or a result


# By what `%%px --group-outputs` offers.
SORT_KEYS = {
    "type": lambda piece: (piece.kind, piece.rank, piece.number),
    "engine": lambda piece: (piece.rank, piece.kind, piece.number),
    "order": lambda piece: (piece.kind, piece.number, piece.rank),
}


def wait_until_complete(result: ipp.AsyncResult) -> None:
    """Wait until the output of a cell that has ended is here, or until none has arrived for ARRIVAL_S."""
    arrived = pieces(result)
    while result.done() and not result.wait_for_output(ARRIVAL_S):
        before, arrived = arrived, pieces(result)
        if arrived == before:
            return


def pieces(result: ipp.AsyncResult) -> list[Piece]:
    """Return the output of a cell as far as it has arrived, also while the cell runs."""
    found = []
    for rank, output in client.outputs(result).items():
        for kind, name in ((Kind.STDOUT, "stdout"), (Kind.STDERR, "stderr")):
            text = after_returns(output[name] or "")
            if text:
                found.append(Piece(rank, kind, 0, shortened(text)))
        for number, content in enumerate([*output["outputs"]]):
            found.append(Piece(rank, Kind.DISPLAY, number, content))
        if output["execute_result"]:
            found.append(Piece(rank, Kind.RESULT, 0, output["execute_result"]))
    return found


def display_outputs(result: ipp.AsyncResult, groupby: str = "type") -> None:
    """Wait for the output of a cell and show it, in place of the method of AsyncResult with this name."""
    wait_until_complete(result)
    show(result, groupby)


def show(result: ipp.AsyncResult, groupby: str) -> None:
    """Print and display the output of a cell as far as it has arrived."""
    has_tags = not client.is_single(result)
    previous = None  # the rank that the last tag of a display names, if only displays of that rank followed
    for piece in sorted(pieces(result), key=SORT_KEYS[groupby]):
        if piece.kind in (Kind.STDOUT, Kind.STDERR):
            name = piece.kind.name.lower()
            text = tagged(f"[{name}:{piece.rank}]", piece.content) if has_tags else piece.content
            print(text, end="", file=getattr(sys, name))
            previous = None
            continue
        data = piece.content["data"]
        if piece.kind is Kind.RESULT:
            text = data.get("text/plain", "")
            break_ = "\n" if "\n" in text and not text.startswith("\n") else ""
            label = f"{RED}Out[{piece.rank}:{piece.content['execution_count']}]: {NORMAL}"
            data = {**data, "text/plain": f"{label}{break_}{text}"}
        # JupyterLab shows the richest form of a result alone, without the label that its text has.
        needs_tag = has_tags and (piece.kind is Kind.DISPLAY or set(data) != {"text/plain"})
        if needs_tag and piece.rank != previous:
            publish_display_data({"text/plain": f"[output:{piece.rank}]"})
        publish_display_data(data, piece.content.get("metadata"))
        previous = piece.rank if needs_tag else None


def tagged(tag: str, text: str) -> str:
    """Return a text with a tag: before a single line, on a line of its own before several."""
    text = text.removesuffix("\n")
    return f"{tag}\n{text}\n" if "\n" in text else f"{tag} {text}\n"


def after_returns(text: str) -> str:
    r"""Return what a terminal shows of a text: of each line, what follows the last \r, without blanks."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))


def shortened(text: str) -> str:
    """Return a text without its middle part if it is too long for a notebook."""
    gap = (
        f"\n… {len(text) - LONGEST_TEXT:,} characters are left out here. "
        "`%%px -o result` keeps all of them, in `result.stdout`. …\n"
    )
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else text[:half] + gap + text[-half:]
