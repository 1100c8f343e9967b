"""Figures about averaging gradients: its effect on training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.plots.style import Curve, curve_style, legend_above, plain_numbers


def losses_by_step(panels: Mapping[str, Mapping[str, Curve]], x_label: str = "Step") -> Figure:
    """Return the losses of several runs by step: one panel per group of runs, all on one log scale.

    Shapes: panels: group → run → (steps,); one panel has no title. `x_label` names the axis if it does
    not count steps. A loss that is not finite leaves a gap.
    """
    figure = Figure(figsize=(max(6.0, 3.2 * len(panels) + 0.6), 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, runs) in zip(sides, panels.items(), strict=True):
        for k, (name, losses) in enumerate(runs.items()):
            steps = np.arange(1, len(losses) + 1)
            axes.plot(steps, losses, **curve_style(k), markevery=(k, max(1, len(steps) // 6)), label=name)
        axes.set_yscale("log")
        axes.set_xlabel(x_label)
        if len(panels) > 1:
            axes.set_title(title)
        axes.grid(alpha=0.3)
    low, high = sides[0].get_ylim()  # of all panels
    few = 1.0, 2.0, 5.0
    more = 1.0, 1.5, 2.0, 3.0, 5.0, 7.0
    for axes in sides:
        axes.yaxis.set_major_locator(LogLocator(subs=few if high > 10 * low else more))
        plain_numbers(axes.yaxis)
    sides[0].set_ylabel("Loss (mean over samples)")
    legend_above(figure, sides)
    return figure
