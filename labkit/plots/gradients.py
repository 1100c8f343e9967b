"""Figures of gradients: the slope of a loss, how exact differences are, and one picture for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.plots.training import COLOURS, MARKERS


def slope(values: np.ndarray, losses: np.ndarray, at: tuple[float, float], by_hand: float) -> Figure:
    """Return the loss along one parameter, its tangent by hand, and the two points of a central difference.

    Shapes: values and losses (n,), the first and last value lie equally far from `at` = (value, loss).
    `by_hand` is the derivative there.
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(values, losses, color="black", linewidth=2, label="loss")
    step = (values[-1] - values[0]) / 4
    ends = np.array([at[0] - 2 * step, at[0] + 2 * step])
    axes.plot(ends, at[1] + by_hand * (ends - at[0]), color=COLOURS[0], label="tangent: derivative by hand")
    two = np.array([at[0] - step, at[0] + step])
    axes.plot(
        two,
        np.interp(two, values, losses),
        color=COLOURS[5],
        linestyle="--",
        marker="s",
        label="chord: central difference",
    )
    axes.plot(*at, color=COLOURS[0], marker="o", markersize=8, linestyle="")
    axes.set_xlabel("Value of one weight")
    axes.set_ylabel("Loss (mean over samples)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def difference_errors(steps: np.ndarray, errors: Mapping[str, Sequence[float]]) -> Figure:
    """Return the error of a central difference against its step, one curve for each dtype, on log axes.

    Shapes: steps (n,), errors: name of the dtype → (n,). Errors of 0 are not drawn.
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, (name, curve) in enumerate(errors.items()):
        axes.plot(steps, curve, color=COLOURS[k], marker=MARKERS[k], label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Step h")
    axes.set_ylabel("Relative error of the difference")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def class_images(rows: Mapping[str, np.ndarray], label: str, side: int = 8) -> Figure:
    """Return the columns of matrices as pictures: one row for each matrix, one column for each class.

    Shapes: rows: name → (side · side, K). All pictures share one scale, from orange (below 0) to purple
    (above 0), named `label`.
    """
    classes = next(iter(rows.values())).shape[1]
    limit = max(float(np.abs(matrix).max()) for matrix in rows.values()) or 1.0
    # One large picture with white gaps: an axes for each small one would take seconds to lay out.
    gap = 1
    pitch = side + gap
    mosaic = np.full((len(rows) * pitch - gap, classes * pitch - gap), np.nan)
    for row, matrix in enumerate(rows.values()):
        for k in range(classes):
            place = slice(row * pitch, row * pitch + side), slice(k * pitch, k * pitch + side)
            mosaic[place] = matrix[:, k].reshape(side, side)

    figure = Figure(figsize=(0.8 * classes + 2, 0.8 * len(rows) + 0.8), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(mosaic, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
    middle = (side - 1) / 2
    axes.set_yticks(np.arange(len(rows)) * pitch + middle, list(rows))
    axes.set_xticks(np.arange(classes) * pitch + middle, [f"{k}" for k in range(classes)])
    axes.set_xlabel("Class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(picture, ax=axes, label=label)
    return figure
