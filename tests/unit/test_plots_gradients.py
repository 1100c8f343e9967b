"""Figures of gradients: what is drawn, from what data, under which labels."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.plots import gradients


def test_tangent_and_chord_of_a_parabola_are_parallel() -> None:
    values = np.linspace(-1, 3, 101)
    (axes,) = gradients.slope(values, values**2, at=(1.0, 1.0), by_hand=2.0).axes
    lines = {str(line.get_label()).split(":")[0]: line.get_xydata() for line in axes.lines}
    for name in "tangent", "chord":
        rise = np.diff(np.asarray(lines[name]), axis=0)[0]
        assert rise[1] / rise[0] == pytest.approx(2, rel=1e-3), name
    assert "weight" in axes.get_xlabel() and "Loss" in axes.get_ylabel()


def test_errors_are_drawn_by_dtype_on_log_axes() -> None:
    steps = np.array([1e-3, 1e-2])
    (axes,) = gradients.difference_errors(steps, {"float64": [1e-9, 1e-8], "float32": [1e-3, 1e-4]}).axes
    assert [line.get_label() for line in axes.lines] == ["float64", "float32"]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_class_images_put_each_column_in_its_place() -> None:
    first, second = np.arange(8.0).reshape(4, 2), -np.arange(8.0).reshape(4, 2)
    axes, colourbar = gradients.class_images({"a": first, "b": second}, "Weight", side=2).axes
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert mosaic.shape == (5, 5)
    np.testing.assert_array_equal(mosaic[:2, 3:], first[:, 1].reshape(2, 2))
    np.testing.assert_array_equal(mosaic[3:, :2], second[:, 0].reshape(2, 2))
    assert np.all(np.isnan(mosaic[2])) and np.all(np.isnan(mosaic[:, 2]))
    assert axes.images[0].get_clim() == (-7, 7)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]
    assert colourbar.get_ylabel() == "Weight"
