"""Figures of gradients: what is drawn, from what data, under which labels."""

from __future__ import annotations

import numpy as np

from labkit.plots import gradients


def test_images_have_scales_of_their_own_around_zero() -> None:
    small, large = np.array([[0.5, -1.0]]), np.array([[8.0], [2.0]])
    drawn = gradients.images({"small": small, "large": large}).axes
    assert [axes.get_title().split("\n") for axes in drawn] == [
        ["small", "values: −1 … 0.5"],
        ["large", "values: 2 … 8"],
    ]
    assert [axes.images[0].get_clim() for axes in drawn] == [(-1, 1), (-8, 8)]
    assert all("pixels" in axes.get_xlabel() and "pixels" in axes.get_ylabel() for axes in drawn)


def test_activations_are_left_of_their_gradients_and_name_their_layer() -> None:
    outputs = {"conv": np.arange(8.0).reshape(2, 2, 2), "pool": np.ones((3, 1, 1))}
    back = {name: -10 * channels for name, channels in outputs.items()}
    left, right, below, _ = gradients.forward_and_backward(outputs, back, shown=2).axes
    mosaic = np.ma.filled(left.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(mosaic[:, :2], outputs["conv"][0])
    np.testing.assert_array_equal(mosaic[:, 3:], outputs["conv"][1])
    assert np.all(np.isnan(mosaic[:, 2]))
    assert right.images[0].get_clim() == (-70, 70)
    assert "2 channels,\n2 × 2" in left.get_ylabel() and below.get_ylabel().startswith("pool")
    assert "backward" in right.get_title()


def test_dots_run_from_input_to_output_and_zeros_have_no_dot() -> None:
    values = {"outputs": {"conv": 100, "tanh": 100}, "parameters": {"conv": 10, "tanh": 0}}
    (axes,) = gradients.values_by_layer(values, "Values").axes
    np.testing.assert_array_equal([line.get_xdata() for line in axes.lines], [[100, 100], [10, np.nan]])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["conv", "tanh"]
    assert axes.yaxis_inverted() and axes.get_xlabel() == "Values"
