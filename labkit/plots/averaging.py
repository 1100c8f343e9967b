"""Figures of averaging: what it costs with more ranks, and how the training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.plots.training import COLOURS, MARKERS

Curve = Sequence[float] | np.ndarray
LINES = ("-", "--", "-.", ":")


def cost_by_ranks(ranks: Sequence[int], panels: Mapping[str, Mapping[str, Curve]], unit: str) -> Figure:
    """Return costs against the number of ranks, log-log: a panel for each cost, a curve for each way.

    Shapes: ranks (n,); panels: cost → way → (n,), all in `unit`.
    """
    figure = Figure(figsize=(3.2 * len(panels) + 0.6, 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, algorithms) in zip(sides, panels.items(), strict=True):
        for k, (name, values) in enumerate(algorithms.items()):
            axes.plot(ranks, values, **_style(k), label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in axes.xaxis, axes.yaxis:
            _plain(axis)
        axes.set_xlabel("Number of ranks p")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel(unit)
    _legend_above(figure, sides)
    return figure


def losses_by_step(panels: Mapping[str, Mapping[str, Curve]], count: str = "Step") -> Figure:
    """Return the losses of several runs by step, a panel for each group of runs, all on one log scale.

    Shapes: panels: group → run → (steps,). `count` says what is counted along the axis, if not steps. A loss
    that is not finite is left out.
    """
    figure = Figure(figsize=(3.2 * len(panels) + 0.6, 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, runs) in zip(sides, panels.items(), strict=True):
        for k, (name, losses) in enumerate(runs.items()):
            steps = np.arange(1, len(losses) + 1)
            axes.plot(steps, losses, **_style(k), markevery=(k, max(1, len(steps) // 6)), label=name)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        _plain(axes.yaxis)
        axes.set_xlabel(count)
        axes.set_title(title)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel("Loss (mean over samples)")
    _legend_above(figure, sides)
    return figure


def last_losses(rates: Curve, losses: Mapping[str, Curve], first: float) -> Figure:
    """Return the last loss against the learning rate, log-log, with a dotted line at the first loss.

    Shapes: rates (n,); losses: run → (n,).
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, (name, values) in enumerate(losses.items()):
        axes.plot(rates, values, **_style(k), label=name)
    axes.axhline(first, color="black", linewidth=1, linestyle=":", label="before the first step")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in axes.xaxis, axes.yaxis:
        _plain(axis)
    axes.set_xlabel("Learning rate")
    axes.set_ylabel("Last loss (mean over samples)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def ranks_and_middles(
    panels: Mapping[str, tuple[np.ndarray, Mapping[str, np.ndarray]]], what: str, label: str
) -> Figure:
    """Return the ranks' values of some entries as dots, and across each entry a bar for each middle of them.

    Shapes: panels: title → two of (ranks, entries) and name of the middle → (entries,).
    """
    figure = Figure(figsize=(4.6 * len(panels), 3.9), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, (values, middles)) in zip(sides, panels.items(), strict=True):
        entries = np.arange(values.shape[1])
        for rank, row in enumerate(values):
            look = {"color": COLOURS[rank % len(COLOURS)], "marker": MARKERS[rank % len(MARKERS)]}
            axes.plot(entries, row, linestyle="", markersize=5, label=f"rank {rank}", **look)
        for k, (name, middle) in enumerate(middles.items()):
            axes.hlines(
                middle, entries - 0.4, entries + 0.4, color="black", linestyle=LINES[::3][k % 2], label=name
            )
        axes.set_title(title)
        axes.set_xlabel(what)
        axes.set_xticks(entries)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel(label)
    _legend_above(figure, sides)
    return figure


def time_bars(seconds: Mapping[str, float], above: Mapping[str, float] | None = None) -> Figure:
    """Return times as bars, one below the other, each with its time written beside it.

    `above`: name → the time (s) at which a dotted line is drawn over all bars.
    """
    figure = Figure(figsize=(8, 0.42 * len(seconds) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    times = 1e3 * np.array(list(seconds.values()))
    places = np.arange(len(seconds))
    axes.barh(places, times, color=COLOURS[0])
    for place, time in zip(places, times, strict=True):
        axes.annotate(f"{time:.2f} ms", (time, place), xytext=(4, 0), textcoords="offset points", va="center")
    for name, time in (above or {}).items():
        axes.axvline(1e3 * time, color="black", linewidth=1, linestyle=":", label=name)
    axes.set_yticks(places, list(seconds))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * times.max())
    axes.set_xlabel("Time (ms)")
    if above:
        figure.legend(loc="outside upper right", frameon=False)
    return figure


def _style(k: int) -> dict[str, Any]:
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": MARKERS[k % len(MARKERS)],
        "markersize": 5,
        "linestyle": LINES[k % len(LINES)],
        "linewidth": max(1.2, 4 - k),  # a curve shows beside the next one even where both are the same
    }


def _plain(axis: Axis) -> None:
    """Write 0.5 and 100, not powers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _legend_above(figure: Figure, sides: Sequence[Axes]) -> None:
    """Put one legend for all panels above them."""
    named: dict[str, Artist] = {}
    for axes in sides:
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(named.values()), list(named), loc="outside upper center", ncols=min(len(named), 6), frameon=False
    )
