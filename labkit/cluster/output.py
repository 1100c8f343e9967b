"""The output of a `%%px` cell, by rank: in JupyterLab, in saved notebooks and in their tests alike."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import ipyparallel as ipp
from IPython.display import publish_display_data

from labkit.cluster.adapter import client
from labkit.cluster.merged_lines import blocks
from labkit.text import NO_TAG, numbers_phrase, ranks_phrase

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
    collected = []
    for rank, output in client.outputs(result).items():
        for kind, name in ((Kind.STDOUT, "stdout"), (Kind.STDERR, "stderr")):
            text = after_returns(output[name] or "")
            if text:
                collected.append(Piece(rank, kind, 0, shortened(text)))
        for number, content in enumerate([*output["outputs"]]):
            collected.append(Piece(rank, Kind.DISPLAY, number, content))
        if output["execute_result"]:
            collected.append(Piece(rank, Kind.RESULT, 0, output["execute_result"]))
    return collected


def display_outputs(result: ipp.AsyncResult, groupby: str = "type") -> None:
    """Wait for the output of a cell and show it, in place of the method of AsyncResult with this name."""
    wait_until_complete(result)
    show(result, groupby)


def show(result: ipp.AsyncResult, order: str) -> None:
    """Print and display the output of a cell as far as it has arrived.

    What several ranks have printed or returned alike is shown once, unless the output is grouped by engine.
    """
    has_tags = not client.is_single(result)
    previous = None  # the rank that the last tag of a display names, if only displays of that rank followed
    output = sorted(pieces(result), key=SORT_KEYS[order])
    for _, group in groups_of_a_kind(output, merging=has_tags and order != "engine"):
        first = group[0]
        if first.kind in (Kind.STDOUT, Kind.STDERR):
            print(text_of_streams(group, has_tags), end="", file=getattr(sys, first.kind.name.lower()))
            previous = None
            continue
        for ranks, content in alike(group):
            data = content["data"]
            if first.kind is Kind.RESULT:
                data = {**data, "text/plain": labelled(ranks, content)}
            # JupyterLab shows the richest form of a result alone, without the label that its text has.
            metadata = content.get("metadata") or {}
            needs_tag = has_tags and (first.kind is Kind.DISPLAY or set(data) != {"text/plain"})
            needs_tag = needs_tag and NO_TAG not in metadata
            if needs_tag and ranks[0] != previous:
                publish_display_data({"text/plain": f"[output:{ranks[0]}]"})
            publish_display_data(data, metadata)
            previous = ranks[0] if needs_tag else None


def groups_of_a_kind(output: Sequence[Piece], *, merging: bool) -> Iterator[tuple[Kind, list[Piece]]]:
    """Yield neighbouring pieces of one kind together if they may be merged, otherwise each alone."""
    if not merging:
        yield from ((piece.kind, [piece]) for piece in output)
        return
    for kind, group in itertools.groupby(output, key=attrgetter("kind")):
        yield kind, [*group]


def text_of_streams(group: Sequence[Piece], has_tags: bool) -> str:
    """Return what ranks have printed to a stream, each part with a tag that names its ranks."""
    if not has_tags:
        return str(group[0].content)
    name = group[0].kind.name.lower()
    texts = {piece.rank: piece.content.removesuffix("\n").split("\n") for piece in group}
    parts = []
    for ranks, lines in blocks(texts):
        tag = f"[{name}:{ranks[0]}]" if len(ranks) == 1 else f"[{ranks_phrase(ranks)}]"
        parts.append(tagged(tag, "\n".join(lines)))
    return "".join(parts)


def alike(group: Sequence[Piece]) -> list[tuple[list[int], Any]]:
    """Return displays or results with their ranks; a result that is the same text on many ranks only once."""
    ranks: dict[object, list[int]] = {}
    contents: dict[object, Any] = {}
    for position, piece in enumerate(group):
        data = piece.content["data"]
        is_text = piece.kind is Kind.RESULT and set(data) == {"text/plain"}
        key = (data["text/plain"], piece.content["execution_count"]) if is_text else position
        ranks.setdefault(key, []).append(piece.rank)
        contents[key] = piece.content
    return [(those, contents[key]) for key, those in ranks.items()]


def labelled(ranks: list[int], content: Any) -> str:
    """Return the text of a result with a label: `Out[2:5]: 4`, or `Out[0–3:5]: 4` of several ranks."""
    text = content["data"].get("text/plain", "")
    break_ = "\n" if "\n" in text and not text.startswith("\n") else ""
    return f"{RED}Out[{numbers_phrase(ranks)}:{content['execution_count']}]: {NORMAL}{break_}{text}"


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
