"""Figures about averaging gradients: its cost with more ranks, and its effect on training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.plots.style import COLOURS, LINES, Curve, curve_style, legend_above, plain_numbers, rank_style


def cost_by_ranks(ranks: Sequence[int], panels: Mapping[str, Mapping[str, Curve]], unit: str) -> Figure:
    """Return costs against the number of ranks, log-log: one panel per cost, one curve per algorithm.

    Shapes: ranks (n,); panels: cost → algorithm → (n,), all in `unit`.
    """
    figure = Figure(figsize=(3.2 * len(panels) + 0.6, 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, algorithms) in zip(sides, panels.items(), strict=True):
        for k, (name, values) in enumerate(algorithms.items()):
            axes.plot(ranks, values, **curve_style(k), label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in axes.xaxis, axes.yaxis:
            plain_numbers(axis)
        axes.set_xlabel("Number of ranks p")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel(unit)
    legend_above(figure, sides)
    return figure


def losses_by_step(panels: Mapping[str, Mapping[str, Curve]], x_label: str = "Step") -> Figure:
    """Return the losses of several runs by step: one panel per group of runs, all on one log scale.

    Shapes: panels: group → run → (steps,). `x_label` names the axis if it does not count steps. A loss
    that is not finite leaves a gap.
    """
    figure = Figure(figsize=(max(6.0, 3.2 * len(panels) + 0.6), 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, runs) in zip(sides, panels.items(), strict=True):
        for k, (name, losses) in enumerate(runs.items()):
            steps = np.arange(1, len(losses) + 1)
            axes.plot(steps, losses, **curve_style(k), markevery=(k, max(1, len(steps) // 6)), label=name)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        plain_numbers(axes.yaxis)
        axes.set_xlabel(x_label)
        axes.set_title(title)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel("Loss (mean over samples)")
    legend_above(figure, sides)
    return figure


def loss_by_learning_rate(rates: Curve, losses: Mapping[str, Curve], first: float) -> Figure:
    """Return the final loss against the learning rate, log-log, with a dotted line at the initial loss.

    Shapes: rates (n,); losses: run → (n,).
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, (name, values) in enumerate(losses.items()):
        axes.plot(rates, values, **curve_style(k), label=name)
    axes.axhline(first, color="black", linewidth=1, linestyle=":", label="before the first step")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in axes.xaxis, axes.yaxis:
        plain_numbers(axis)
    axes.set_xlabel("Learning rate")
    axes.set_ylabel("Final loss (mean over samples)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def values_and_aggregates(
    panels: Mapping[str, tuple[np.ndarray, Mapping[str, np.ndarray]]], x_label: str, y_label: str
) -> Figure:
    """Return the ranks' values of several entries as dots, with a bar for each aggregate (mean, median, …).

    Shapes: panels: title → values (ranks, entries) and aggregates: name → (entries,).
    """
    figure = Figure(figsize=(4.6 * len(panels), 3.9), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, (values, aggregates)) in zip(sides, panels.items(), strict=True):
        entries = np.arange(values.shape[1])
        for rank, row in enumerate(values):
            axes.plot(entries, row, linestyle="", markersize=5, **rank_style(rank))
        for k, (name, aggregate) in enumerate(aggregates.items()):
            axes.hlines(
                aggregate,
                entries - 0.4,
                entries + 0.4,
                color="black",
                linestyle=LINES[::3][k % 2],
                label=name,
            )
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.set_xticks(entries)
        axes.grid(alpha=0.3)
    sides[0].set_ylabel(y_label)
    legend_above(figure, sides)
    return figure


def time_bars(seconds: Mapping[str, float], references: Mapping[str, float] | None = None) -> Figure:
    """Return times as horizontal bars, each labelled with its time.

    `references`: name → time (s) at which to draw a dotted line across all bars.
    """
    figure = Figure(figsize=(8, 0.42 * len(seconds) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    times = 1e3 * np.array(list(seconds.values()))
    positions = np.arange(len(seconds))
    axes.barh(positions, times, color=COLOURS[0])
    for position, time in zip(positions, times, strict=True):
        axes.annotate(
            f"{time:.2f} ms", (time, position), xytext=(4, 0), textcoords="offset points", va="center"
        )
    for name, time in (references or {}).items():
        axes.axvline(1e3 * time, color="black", linewidth=1, linestyle=":", label=name)
    axes.set_yticks(positions, list(seconds))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * times.max())
    axes.set_xlabel("Time (ms)")
    if references:
        figure.legend(loc="outside upper right", frameon=False)
    return figure
