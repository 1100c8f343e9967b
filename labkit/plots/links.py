"""Figures about slow links and stragglers: what they cost an algorithm, and what remedies save."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.plots.style import COLOURS, INK, MARKERS, Curve, one_panel, panels, plain_numbers


def times_by_slow_link(
    factors: Curve,
    simulated: Mapping[str, Curve],
    least: Mapping[str, Curve],
    measured: Mapping[str, tuple[Curve, Curve]],
) -> Figure:
    """Return the time of each algorithm against how many times slower one rank's link is.

    Shapes: factors, simulated, least (n,), times in s, by algorithm. `least` is the least time that the bytes
    need to pass the link, drawn wide and pale. `measured` holds factors and times (s); it may be empty.
    """
    figure, axes = one_panel((8, 4.2), "How many times slower the last rank's link is", "Time (ms)")
    for k, (name, seconds) in enumerate(simulated.items()):
        axes.plot(factors, 1e3 * np.asarray(least[name]), color=COLOURS[k], linewidth=7, alpha=0.3)
        axes.plot(factors, 1e3 * np.asarray(seconds), color=COLOURS[k], label=name)
        if name in measured:
            slower, times = measured[name]
            axes.plot(slower, 1e3 * np.asarray(times), MARKERS[k], color=COLOURS[k])
    axes.plot([], [], color="grey", label="simulated")
    axes.plot([], [], color="grey", linewidth=7, alpha=0.3, label="bytes sent / bandwidth")
    if measured:
        axes.plot([], [], "o", color="grey", label="measured")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(factors), [f"{factor:g}" for factor in factors])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_numbers(axes.yaxis)
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def times_with_remedies(times: Mapping[str, Mapping[str, Curve]], x_label: str) -> Figure:
    """Return a panel for each bottleneck: a bar for each remedy's median time, and a stroke for each seed.

    Shapes: times: bottleneck → remedy → (seeds,), in s, with the same remedies everywhere. The remedy
    "healthy" is grey.
    """
    figure, sides = panels((9.5, 3.6), columns=len(times), sharey=True, sharex=True)
    for axes, (bottleneck, by_remedy) in zip(sides, times.items(), strict=True):
        for row, (remedy, of_seeds) in enumerate(by_remedy.items()):
            bar_colour = "grey" if remedy == "healthy" else COLOURS[row % len(COLOURS)]
            median = float(np.median(of_seeds))
            axes.barh(row, median, 0.7, color=bar_colour, alpha=0.5)
            axes.plot(of_seeds, [row] * len(of_seeds), "|", color=INK, markersize=11)
            axes.text(max(of_seeds), row, f"  {median:.2f} s", va="center")
        axes.set_yticks(range(len(by_remedy)), list(by_remedy))
        axes.set(title=f"One {bottleneck}", xlabel=x_label)
    sides[0].invert_yaxis()
    sides[0].margins(x=0.2)
    return figure
