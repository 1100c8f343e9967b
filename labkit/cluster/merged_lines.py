"""Show what several ranks have printed alike once: `[ranks 0–3]`. The lines of each rank keep their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

MOST_LINES = 500  # of all different texts together: the time to compare them grows with the square


class Block(NamedTuple):
    """Lines that these ranks have printed, in the order of their numbers."""

    ranks: list[int]
    lines: list[str]


def blocks(texts: Mapping[int, Sequence[str]]) -> list[Block]:
    """Return the lines of all ranks as blocks; lines that all ranks with output have are shown once.

    `texts` holds each rank's lines. All blocks with a rank, in their order, are the lines of this rank.
    """
    groups = _grouped(texts)
    if len(groups) < 2 or sum(len(group.lines) for group in groups) > MOST_LINES:
        return groups
    merged: list[Block] = []
    every_rank = sorted(rank for group in groups for rank in group.ranks)
    heads = [0] * len(groups)  # the first line of each group that is not in a block yet
    ends = tuple(len(group.lines) for group in groups)
    for positions in [*_common_lines([group.lines for group in groups]), ends]:
        between: dict[int, Sequence[str]] = {}
        for group, head, position in zip(groups, heads, positions, strict=True):
            between |= dict.fromkeys(group.ranks, group.lines[head:position])
        merged += _grouped(between)
        if positions != ends:
            line = groups[0].lines[positions[0]]
            if merged and merged[-1].ranks == every_rank:
                merged[-1].lines.append(line)
            else:
                merged.append(Block(every_rank, [line]))
        heads = [position + 1 for position in positions]
    return merged


def _grouped(texts: Mapping[int, Sequence[str]]) -> list[Block]:
    """Return a block for each different text that has lines, by the first of its ranks."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(texts):
        ranks.setdefault(tuple(texts[rank]), []).append(rank)
    return [Block(those, [*lines]) for lines, those in ranks.items() if lines]


def _common_lines(texts: Sequence[Sequence[str]]) -> Iterator[tuple[int, ...]]:
    """Yield the lines that all texts have in the same order: for each, its position in every text.

    Empty lines alone do not count: they would cut each rank's text into small pieces.
    """
    common: list[tuple[int, ...]] = [(position,) for position in range(len(texts[0]))]
    for text in texts[1:]:
        so_far = [texts[0][positions[0]] for positions in common]
        matches = SequenceMatcher(None, so_far, text, autojunk=False).get_matching_blocks()
        common = [
            (*common[match.a + step], match.b + step) for match in matches for step in range(match.size)
        ]
    for neighbours in _adjacent(common):
        if any(texts[0][positions[0]].strip() for positions in neighbours):
            yield from neighbours


def _adjacent(common: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the common lines in lists of those that follow each other directly in every text."""
    sequences: list[list[tuple[int, ...]]] = []
    for positions in common:
        if sequences and positions == tuple(position + 1 for position in sequences[-1][-1]):
            sequences[-1].append(positions)
        else:
            sequences.append([positions])
    return sequences
