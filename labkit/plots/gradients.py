"""Figures about gradients: slopes, errors of differences, images, and activations and gradients by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from labkit.plots.style import COLOURS, MARKERS


def slope(values: np.ndarray, losses: np.ndarray, at: tuple[float, float], by_hand: float) -> Figure:
    """Return the loss along one parameter, its tangent, and the chord of a central difference.

    Shapes: values and losses (n,); the first and the last value are equally far from `at` = (value, loss).
    `by_hand` is the derivative at this point.
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
    """Return the error of a central difference against its step, log-log, with one curve per dtype.

    Shapes: steps (n,), errors: dtype name → (n,). Errors of 0 are not drawn.
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
    """Return the columns of matrices as images: one row per matrix, one column per class.

    Shapes: rows: name → (side · side, K). All images share one colour scale, from orange (below 0) to purple
    (above 0), with the name `label`.
    """
    classes = next(iter(rows.values())).shape[1]
    limit = max(float(np.abs(matrix).max()) for matrix in rows.values()) or 1.0
    # Draw one large image with white gaps: one axes per small image would take seconds to lay out.
    gap = 1
    pitch = side + gap
    mosaic = np.full((len(rows) * pitch - gap, classes * pitch - gap), np.nan)
    for row, matrix in enumerate(rows.values()):
        for k in range(classes):
            place = slice(row * pitch, row * pitch + side), slice(k * pitch, k * pitch + side)
            mosaic[place] = matrix[:, k].reshape(side, side)

    figure = Figure(figsize=(0.8 * classes + 2, 0.8 * len(rows) + 0.8), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(mosaic, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
    middle = (side - 1) / 2
    axes.set_yticks(np.arange(len(rows)) * pitch + middle, list(rows))
    axes.set_xticks(np.arange(classes) * pitch + middle, [f"{k}" for k in range(classes)])
    axes.set_xlabel("Class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=label)
    return figure


def images(by_title: Mapping[str, np.ndarray]) -> Figure:
    """Return images side by side, each with its own colour scale, whose range is in its title.

    Shapes: by_title: title → (H, W). Orange is below 0, purple above.
    """
    figure = Figure(figsize=(3.2 * len(by_title), 3), layout="constrained")
    for axes, (title, image) in zip(
        figure.subplots(1, len(by_title), squeeze=False)[0], by_title.items(), strict=True
    ):
        limit = _limit(image)
        axes.imshow(image, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_title(f"{title}\ncolours: {-limit:.2g} … {limit:.2g}", fontsize="medium")
        for axis in axes.xaxis, axes.yaxis:
            axis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("Column (pixels)")
        axes.set_ylabel("Row (pixels)")
    return figure


def forward_and_backward(
    activations: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], shown: int = 6
) -> Figure:
    """Return one sample's activations by layer (left) and their gradients (right), as images.

    Shapes: both: layer → (C, H, W), the same layers; the first `shown` channels are drawn. Each image has its
    own colour scale from orange (below 0) to purple (above 0), whose end is written below the image.
    """
    figure = Figure(
        figsize=(10, 1.05 * len(activations) + 0.4), layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0)
    )
    grid = figure.subplots(len(activations), 2, squeeze=False)
    columns = ("Activations (forward pass)", activations), ("Their gradients (backward pass)", gradients)
    for column, (title, maps) in enumerate(columns):
        grid[0, column].set_title(title)
        for axes, (name, channels) in zip(grid[:, column], maps.items(), strict=True):
            mosaic = _side_by_side(channels[:shown])
            limit = _limit(mosaic)
            axes.imshow(mosaic, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(f"largest entry {limit:.1g}", fontsize="small")
            if column == 0:
                size = " × ".join(map(str, channels.shape))
                axes.set_ylabel(f"{name}\n{size}", rotation=0, ha="right", va="center")
    return figure


def values_by_layer(values: Mapping[str, Mapping[str, int]], label: str) -> Figure:
    """Return the numbers of values in each layer as bars, on a log axis, with one bar per name.

    values: name → layer → number; every name has the same layers, drawn from top to bottom. A 0 has no bar.
    `label` labels the axis.
    """
    layers = list(next(iter(values.values())))
    figure = Figure(figsize=(7, 0.42 * len(layers) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    thick = 0.8 / len(values)
    for k, (name, numbers) in enumerate(values.items()):
        positions = np.arange(len(layers)) + (k - (len(values) - 1) / 2) * thick
        axes.barh(positions, [numbers[layer] for layer in layers], thick, color=COLOURS[k], label=name)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.minorticks_off()
    axes.set_yticks(np.arange(len(layers)), layers)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_ylabel("Layer, from input to output")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(values))
    return figure


def _limit(image: np.ndarray) -> float:
    """Return the largest absolute value, or 1 if all are 0: the end of a colour scale around 0."""
    return float(np.nanmax(np.abs(image))) or 1.0


def _side_by_side(channels: np.ndarray) -> np.ndarray:
    """Return the channels (C, H, W) in one image, left to right, with gaps of NaN between them."""
    count, height, width = channels.shape
    gap = max(1, width // 8)
    mosaic = np.full((height, count * (width + gap) - gap), np.nan)
    for k, channel in enumerate(channels):
        mosaic[:, k * (width + gap) : k * (width + gap) + width] = channel
    return mosaic
