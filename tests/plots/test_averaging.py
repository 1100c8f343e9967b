"""Figures of averaging: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure

from labkit.plots import averaging as plot

CURVES = {"root": [2.0, 6.0], "ring": [2.0, 3.0]}


def rendered(figure: Figure) -> Figure:
    figure.savefig(io.BytesIO())
    return figure


def curves(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_losses_that_are_not_finite_leave_a_gap():
    figure = rendered(plot.losses_by_step({"sum": {"p = 4": [2.0, np.inf, np.nan]}, "mean": CURVES}))
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 2, 3]
    assert figure.axes[0].get_yscale() == "log" and curves(figure.axes[1]) == CURVES


def test_the_last_losses_of_a_narrow_range_can_be_read():
    axes = rendered(plot.losses_by_step({"one": {"a": [2.3, 0.7]}})).axes[0]
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 4 and axes.get_title() == ""
