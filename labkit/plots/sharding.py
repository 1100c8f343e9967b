"""Figures about shards: which rank holds which samples, and the effect on gradients, losses and waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.plots.style import INK, colour, label_outer, rank_style, text_colour

# Text centred in a box; the layout ignores its size, since measuring each text is slow.
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "in_layout": False}


def shards(owners: Mapping[str, np.ndarray], labels: Sequence[object]) -> Figure:
    """Return one row of boxes per scheme, one box per sample: its colour is its rank, its text its label.

    Shapes: owners: scheme → (n,), the rank of each sample; labels (n,).
    """
    rows = {name: (owner, labels) for name, owner in owners.items()}
    return _boxes(rows, "rank", "Sample, in the order of the data set (text: its label)")


def samples_by_step(rows: Mapping[str, tuple[np.ndarray, Sequence[object]]]) -> Figure:
    """Return one row of boxes per run, one box per sample: darker for a later step; its text is its rank.

    Shapes: rows: run → the steps (n,) and the ranks (n,) of the samples.
    """
    steps = 1 + max(int(numbers.max()) for numbers, _ in rows.values())
    greys = [to_hex(colormaps["Greys"](0.2 + 0.6 * step / max(1, steps - 1))) for step in range(steps)]
    label = "Sample, in the order of the data set (text: the rank that holds it)"
    return _boxes(rows, "step", label, greys.__getitem__)


def label_counts(counts: Mapping[str, np.ndarray], columns: int = 3) -> Figure:
    """Return the number of samples of each label on each rank as text and shade: one panel per scheme.

    Shapes: counts: scheme → (ranks, labels), integers.
    """
    columns = min(columns, len(counts))
    rows = math.ceil(len(counts) / columns)
    ranks = len(next(iter(counts.values())))
    size = 3.6 * columns, rows * (1.6 + 0.4 * min(ranks, 16))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    most = max(int(table.max()) for table in counts.values())
    for axes, (name, table) in zip(panels.flat, counts.items(), strict=False):
        axes.imshow(table, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        for (rank, label), count in np.ndenumerate(table):
            ink = "white" if count > most / 2 else "black"
            axes.text(label, rank, str(count), **CENTRED, color=ink, fontsize=8)
        axes.set_title(name)
        axes.set_xticks(range(table.shape[1]))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    label_outer(panels, len(counts), "Label", "Rank")
    return figure


def gradient_arrows(gradients: Sequence[float], label: str) -> Figure:
    """Return the ranks' gradients of one parameter as arrows, head to tail, above the arrow of their sum.

    Shapes: gradients (ranks,). `label` names the parameter.
    """
    figure = Figure(figsize=(8, 0.45 * len(gradients) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 14}
    ends = np.concatenate([[0.0], np.cumsum(gradients)])
    for rank, value in enumerate(gradients):
        axes.annotate(
            "",
            (ends[rank + 1], rank),
            (ends[rank], rank),
            arrowprops={**arrow, "color": colour(rank), "linewidth": 2.5},
        )
        axes.plot([ends[rank + 1]] * 2, [rank, rank + 1], color="grey", linestyle=":", linewidth=1)
        axes.annotate(
            f"{value:+.4f}",
            (max(ends[rank], ends[rank + 1]), rank),
            xytext=(16, 0),
            textcoords="offset points",
            va="center",
        )
    total = len(gradients)
    axes.annotate("", (ends[-1], total), (0, total), arrowprops={**arrow, "color": "black", "linewidth": 3.5})
    axes.annotate(
        f"{ends[-1]:+.4f}",
        (max(0, ends[-1]), total),
        xytext=(16, 0),
        textcoords="offset points",
        va="center",
        weight="bold",
    )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(total + 1), [f"rank {rank}" for rank in range(total)] + ["sum"])
    axes.set_ylim(total + 0.6, -0.6)
    room = 0.22 * (ends.max() - ends.min() or 1.0)
    axes.set_xlim(ends.min() - room / 2, ends.max() + room)
    axes.set_xlabel(f"Gradient of {label}, the ranks' arrows head to tail")
    return figure


def loss_along_step(
    steps: np.ndarray, by_rank: Sequence[Sequence[float]], over_all: Sequence[float], unit: str
) -> Figure:
    """Return the loss along the direction of the averaged step: of each rank's shard, and of all in black.

    Shapes: steps (n,), in which 0 is the current model; by_rank (ranks, n); over_all (n,).
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    every = max(1, len(steps) // 10)
    for rank, curve in enumerate(by_rank):
        axes.plot(steps, curve, markersize=4, markevery=every, **rank_style(rank))
    axes.plot(steps, over_all, color="black", linewidth=2.5, label="all ranks")
    axes.axvline(0, color="black", linewidth=1, linestyle=":")
    axes.annotate(
        "now", (0, 0), xycoords=("data", "axes fraction"), xytext=(4, 6), textcoords="offset points"
    )
    axes.set_xlabel(f"Distance along the averaged step ({unit})")
    axes.set_ylabel("Loss (mean over samples)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def contributions_by_scheme(by_scheme: Mapping[str, Sequence[float]], parameter: str) -> Figure:
    """Return each rank's contribution under each scheme as bars, with lines at 100 % and at 1 / p.

    Shapes: by_scheme: scheme → (ranks,), fractions: 1 is 100 %.
    """
    figure = Figure(figsize=(2.4 * len(by_scheme) + 2.2, 4), layout="constrained")
    axes = figure.add_subplot()
    ranks = len(next(iter(by_scheme.values())))
    width = 0.8 / ranks
    for rank in range(ranks):
        positions = np.arange(len(by_scheme)) + (rank - (ranks - 1) / 2) * width
        percent = [100 * values[rank] for values in by_scheme.values()]
        axes.bar(positions, percent, width, color=colour(rank), label=f"rank {rank}")
    axes.axhline(100, color="black", linewidth=1, linestyle=":")
    axes.axhline(100 / ranks, color="black", linewidth=1, linestyle="--", label="equal contributions")
    axes.set_xticks(range(len(by_scheme)), list(by_scheme))
    axes.set_xlabel("Sharding scheme")
    axes.set_ylabel(f"Contribution to the gradient of {parameter} (%)")
    axes.legend()
    return figure


def local_and_global_loss(local: Sequence[float], over_all: Sequence[float], rank: int) -> Figure:
    """Return one rank's local loss and the global loss by epoch, side by side, each on its own scale.

    Shapes: both (epochs,).
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    sides = figure.subplots(1, 2)
    styles: tuple[dict[str, Any], ...] = (rank_style(rank), {"color": "black", "linewidth": 2.5})
    titles = f"Local loss of rank {rank}", "Global loss"
    for axes, curve, style, title in zip(sides, (local, over_all), styles, titles, strict=True):
        axes.plot(np.arange(1, len(curve) + 1), curve, **style)
        axes.set_title(title)
        axes.set_xlabel("Epoch")
        axes.set_ylabel("Loss (mean over samples)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return figure


def times_by_rank(seconds: Mapping[str, Sequence[float]], log: bool = True) -> Figure:
    """Return the ranks' times as points, one panel per name.

    The axis is logarithmic; with log=False it is linear and starts at 0.

    Shapes: seconds: name → (ranks,).
    """
    figure = Figure(figsize=(3.4 * len(seconds), 3.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(seconds), sharey=True))
    for axes, (name, times) in zip(panels, seconds.items(), strict=True):
        for rank, value in enumerate(times):
            axes.plot(rank, 1e3 * value, markersize=9, linestyle="", **rank_style(rank))
        axes.set_title(name)
        axes.set_xlabel("Rank")
        axes.set_xticks(range(len(times)))
        axes.set_xlim(-0.5, len(times) - 0.5)
        axes.grid(alpha=0.3)
    if log:
        panels[0].set_yscale("log")
    else:
        panels[0].set_ylim(0, 1.1e3 * max(map(max, seconds.values())))
    panels[0].set_ylabel("Time (ms)")
    return figure


def _boxes(
    rows: Mapping[str, tuple[np.ndarray, Sequence[object]]],
    noun: str,
    x_label: str,
    colour_of: Callable[[int], str] = colour,
) -> Figure:
    """Draw one row of boxes per entry of `rows`; the legend calls the numbers `noun`.

    Shapes: rows: name → the numbers (n,), from 0, that give the colours, and the texts (n,).
    """
    figure = Figure(figsize=(10, 0.55 * len(rows) + 1), layout="constrained")
    axes = figure.add_subplot()
    for row, (numbers, texts) in enumerate(rows.values()):
        for sample, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            axes.barh(row, 1, left=sample - 0.5, height=0.8, color=colour_of(number), edgecolor="white")
            ink = text_colour(colour_of(number))
            axes.text(sample, row, str(text), **CENTRED, color=ink, fontsize=9)
        axes.set_xlim(-0.5, len(numbers) - 0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    shown = sorted({int(number) for numbers, _ in rows.values() for number in numbers})
    handles = [
        Patch(facecolor=colour_of(number), edgecolor=INK, label=f"{noun} {number}") for number in shown
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(shown), 8))
    return figure
