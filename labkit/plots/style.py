"""The style that all figures share: colours, markers, line styles, axes and legends.

A rank has the same colour in all figures: labkit/colours.py. Curves also differ in their markers and lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit.colours import COLOURS, colour  # noqa: F401  (notebooks import colour from here)
from labkit.files import atomic_write

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
INK = "#444444"

Curve = Sequence[float] | np.ndarray


def text_colour(background: str) -> str:
    """Return "white" or "black", whichever is legible on this background."""
    return "white" if np.dot(to_rgb(background), (0.299, 0.587, 0.114)) < 0.4 else "black"


def curve_style(k: int) -> dict[str, Any]:
    """Return the style of the k-th curve; curves get thinner, so that equal ones remain visible."""
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": MARKERS[k % len(MARKERS)],
        "markersize": 5,
        "linestyle": LINES[k % len(LINES)],
        "linewidth": max(2.0, 4 - 0.7 * k),
    }


def one_panel(size: tuple[float, float], x: str, y: str) -> tuple[Figure, Axes]:
    """Return a figure of this size in inches with one panel: labelled axes and a faint grid."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def plain_numbers(axis: Axis) -> None:
    """Label an axis with plain numbers such as 0.5 and 100, not with powers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def panels(
    size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[Any]]:
    """Return a figure of this size in inches with panels that have no frame above and to the right."""
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, every


def save(path: Path, figure: Figure) -> None:
    """Write a figure as a PNG file."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)


def centred(axes: Axes, x: float, y: float, text: object, size: float, **style: Any) -> None:
    """Write a text around a point."""
    size = math.floor(2 * size) / 2  # few sizes of a font
    axes.text(x, y, str(text), fontsize=size, **{"ha": "center", "va": "center", **style})


def legend_above(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend for all panels above them."""
    by_label: dict[str, Artist] = {}
    for axes in panels:
        by_label |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    style: dict[str, Any] = {"loc": "outside upper center", "ncols": min(len(by_label), 6), "frameon": False}
    figure.legend(list(by_label.values()), list(by_label), **style)
