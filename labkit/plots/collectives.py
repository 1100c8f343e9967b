"""Figures of a collective: what each rank held before and after it.

The figures are drawn from the ranks' real buffers, so they show the result of a wrong program, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.colours import colour
from labkit.plots.style import INK, centred, text_colour

Held = Sequence[float] | np.ndarray | None  # a rank's values, or None if it has no buffer

UNKNOWN_COLOUR = "#BBBBBB"
MIN_WIDTH, MAX_WIDTH = 7.6, 9.5  # of figures, in inches
MAX_SUBSETS = 8  # with more ranks, only sums over all of them are recognised


def before_after(
    title: str,
    before: Sequence[Held],
    after: Sequence[Held],
    call: str = "",
    coloured_by: Sequence[Held] | None = None,
) -> Figure:
    """Return what each rank held before and after a call: one row per rank, one cell per value.

    A value has the colour of the rank that held it before; a sum has stripes in the colours of all ranks
    whose values it includes; zeros are white; any other value is grey with a question mark. None is a dash.

    Shapes: before and after (ranks, values); ranks may hold different numbers of values. `call` labels the
    arrow between them. `coloured_by`, if given, is what the ranks held at first and replaces `before` as the
    origin of colours: use it when `before` already holds sums.
    """
    size, held_first = len(before), before if coloured_by is None else coloured_by
    labels = [_label(value) for held in (*before, *after) for value in _values(held)]
    width = max(0.55, 0.09 * max(map(len, labels), default=0) + 0.25)  # of a cell, in inches
    columns = [max([len(_values(held)) for held in side] + [1]) for side in (before, after)]
    names, gap = 0.95, max(1.1, 0.085 * len(call) + 0.5)
    total = names + sum(columns) * width + gap + 0.1
    # Sizes are in inches; shrink a figure that would be wider than a notebook.
    scale = min(1.0, MAX_WIDTH / total)
    width_all, height = max(total, MIN_WIDTH), 0.42 * size + 1.15
    figure = Figure(figsize=(width_all * scale, height * scale))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim((total - width_all) / 2, (total + width_all) / 2)
    axes.set_ylim(height, 0)
    axes.axis("off")

    notes: set[str] = set()
    starts = names, names + columns[0] * width + gap
    for heading, side, start, count in zip(
        ("before", "after"), (before, after), starts, columns, strict=True
    ):
        centred(axes, start + count * width / 2, 0.55, heading, 9.5 * scale, weight="bold")
        for rank, held in enumerate(side):
            top = 0.72 + 0.42 * rank
            if held is None:
                centred(axes, start + width / 2, top + 0.19, "–", 11 * scale, color=INK)
                notes.add("–  no buffer (None)")
            for column, value in enumerate(_values(held)):
                where = start + column * width, top, width * 0.94, 0.36
                notes |= _cell(axes, where, value, origins(value, held_first, rank), 9.5 * scale)
    for rank in range(size):
        top = 0.72 + 0.42 * rank
        axes.add_patch(Rectangle((0.1, top + 0.08), 0.2, 0.2, facecolor=colour(rank), edgecolor=INK, lw=0.6))
        centred(axes, 0.38, top + 0.19, f"rank {rank}", 9.5 * scale, ha="left")

    middle = 0.72 + 0.21 * size - 0.03
    tail, tip = starts[0] + columns[0] * width + 0.1, starts[1] - 0.14
    axes.annotate(
        "", (tip, middle), (tail, middle), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5}
    )
    centred(axes, (tail + tip) / 2, middle - 0.14, call, 8.5 * scale, family="monospace")
    centred(axes, total / 2, 0.22, title, 11 * scale, weight="bold")
    centred(axes, total / 2, height - 0.18, "     ".join(sorted(notes)), 8 * scale, color=INK)
    return figure


def origins(value: float, before: Sequence[Held], rank: int) -> tuple[int, ...] | None:
    """Return the ranks whose values make up `value`, found on `rank`: one rank, or several for a sum.

    Return () for 0, and None for a value that is neither a rank's value nor a sum of several ranks' values at
    one position. If several ranks held the value, prefer `rank` itself.
    """
    if value == 0:
        return ()
    held = [_values(buffer) for buffer in before]
    for source in sorted(range(len(held)), key=lambda other: other != rank):
        if np.any(_equal(value, held[source], np.abs(held[source]))):
            return (source,)
    for position in range(max(map(len, held), default=0)):
        sources = [source for source in range(len(held)) if position < len(held[source])]
        if len(sources) > 1:
            column = np.array([held[source][position] for source in sources])
            subsets = _subsets(len(sources))
            matching = np.flatnonzero(_equal(value, subsets @ column, subsets @ np.abs(column)))
            if len(matching):
                return tuple(
                    source for source, chosen in zip(sources, subsets[matching[0]], strict=True) if chosen
                )
    return None


def _equal(value: float, sums: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Return which sums equal `value`: exactly for integers, otherwise to float32 rounding."""
    if sums.dtype.kind in "iu" and float(value).is_integer():
        return sums == value
    return np.abs(sums - value) <= 1e-6 * magnitudes


@cache
def _subsets(count: int) -> np.ndarray:
    """Return the subsets of at least two of `count` ranks, largest first. Shape: (subsets, count), 0 or 1."""
    if count > MAX_SUBSETS:
        return np.ones((1, count), dtype=np.int64)
    subsets = [subset for subset in product((1, 0), repeat=count) if sum(subset) > 1]
    return np.array(sorted(subsets, key=sum, reverse=True), dtype=np.int64)


def _values(held: Held) -> np.ndarray:
    return np.empty(0) if held is None else np.ravel(held)


def _label(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}".replace("-", "−")


def _cell(
    axes: Axes,
    where: tuple[float, float, float, float],
    value: float,
    ranks: tuple[int, ...] | None,
    font: float,
) -> set[str]:
    """Draw one value that is made of values of `ranks`; return the legend entry that it needs, if any."""
    left, top, width, height = where
    fills = [UNKNOWN_COLOUR] if ranks is None else [colour(rank) for rank in ranks] or ["white"]
    for stripe, fill in enumerate(fills):
        start = left + stripe * width / len(fills)
        axes.add_patch(Rectangle((start, top), width / len(fills), height, facecolor=fill, lw=0))
    axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=INK, lw=0.8))
    middle = left + width / 2, top + height / 2
    if ranks is None:
        centred(axes, *middle, f"{_label(value)} ?", font)
        return {"grey, ?  neither a rank's value nor a sum of ranks' values"}
    if not ranks:
        centred(axes, *middle, _label(value), font, color="#767676")
        return {"0  nothing there yet"}
    if len(ranks) > 1:
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        centred(axes, *middle, _label(value), font, bbox=box)
        return {"stripes  sum of these ranks' values"}
    centred(axes, *middle, _label(value), font, color=text_colour(fills[0]))
    return set()
