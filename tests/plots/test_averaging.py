"""Figures of averaging: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from labkit.plots import averaging as plot

CURVES = {"root": [2.0, 6.0], "ring": [2.0, 3.0]}


def rendered(figure: Figure) -> Figure:
    figure.savefig(io.BytesIO())
    return figure


def curves(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_cost_panels_share_one_legend():
    figure = rendered(plot.cost_by_ranks([2, 4], {"Sent": CURVES, "Memory": CURVES}, "Gradients"))
    sent, memory = figure.axes
    assert curves(sent) == curves(memory) == CURVES
    assert (sent.get_title(), sent.get_ylabel(), sent.get_xlabel()) == (
        "Sent",
        "Gradients",
        "Number of ranks p",
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CURVES)
    thick, thin = (line.get_linewidth() for line in sent.lines)
    assert thick > thin, "a curve is hidden by another that is the same"


def test_losses_that_are_not_finite_leave_a_gap():
    figure = rendered(plot.losses_by_step({"sum": {"p = 4": [2.0, np.inf, np.nan]}, "mean": CURVES}))
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 2, 3]
    assert figure.axes[0].get_yscale() == "log" and curves(figure.axes[1]) == CURVES


def test_the_initial_loss_is_drawn_beside_the_last_losses():
    (axes,) = rendered(plot.loss_by_learning_rate([0.25, 0.5], CURVES, first=2.3)).axes
    assert {name: curves(axes)[name] for name in CURVES} == CURVES
    assert curves(axes)["before the first step"] == [2.3, 2.3]


@pytest.mark.parametrize("ranks", [1, 4, 9])
def test_ranks_are_dots_and_aggregates_are_bars(ranks):
    values = np.arange(3.0 * ranks).reshape(ranks, 3)
    middles = {"mean": values.mean(axis=0), "median": np.median(values, axis=0)}
    (axes,) = rendered(plot.values_and_aggregates({"strided": (values, middles)}, "Digit", "Gradient")).axes
    np.testing.assert_array_equal([line.get_ydata() for line in axes.lines], values)
    for bars, middle in zip(axes.collections, middles.values(), strict=True):
        assert [segment[0, 1] for segment in bars.get_segments()] == list(middle)


def test_time_bars_are_in_milliseconds_from_top_to_bottom():
    (axes,) = rendered(plot.time_bars({"flat": 1e-3, "all": 2.5e-3}, {"best": 1e-3})).axes
    assert [bar.get_width() for bar in axes.patches] == [1, 2.5] and axes.yaxis_inverted()
    assert [text.get_text() for text in axes.texts] == ["1.00 ms", "2.50 ms"]
    assert list(axes.lines[0].get_xdata()) == [1, 1]
