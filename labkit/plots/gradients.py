"""Figures about gradients: images, and activations and gradients by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MultipleLocator

from labkit.plots.style import COLOURS, MARKERS, one_panel


def images(by_title: Mapping[str, np.ndarray]) -> Figure:
    """Return images side by side, with the range of their values in their titles.

    Shapes: by_title: title → (H, W). Orange is below 0, purple above; each image has its own colour scale, as
    far in both directions.
    """
    figure = Figure(figsize=(3.2 * len(by_title), 3), layout="constrained")
    for axes, (title, image) in zip(
        figure.subplots(1, len(by_title), squeeze=False)[0], by_title.items(), strict=True
    ):
        limit = _limit(image)
        axes.imshow(image, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
        values = f"{image.min():.2g} … {image.max():.2g}".replace("-", "−")
        axes.set_title(f"{title}\nvalues: {values}", fontsize="medium")
        for axis, side in zip((axes.yaxis, axes.xaxis), image.shape, strict=True):
            axis.set_major_locator(MultipleLocator(8 if side > 8 else 1))  # the same for images of like sizes
        axes.set_xlabel("Column (pixels)")
        axes.set_ylabel("Row (pixels)")
    return figure


def forward_and_backward(
    activations: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> Figure:
    """Return one sample's activations by layer (left) and their gradients (right), as images.

    Shapes: both: layer → (C, H, W), the same layers; the first six channels are drawn. Each image has its
    own colour scale from orange (below 0) to purple (above 0), whose end is written below the image.
    """
    figure = Figure(
        figsize=(10, 1.05 * len(activations) + 0.4), layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0)
    )
    grid = figure.subplots(len(activations), 2, squeeze=False)
    columns = (
        ("Activations (forward pass)", activations),
        ("Gradients of the loss (backward pass)", gradients),
    )
    for column, (title, maps) in enumerate(columns):
        grid[0, column].set_title(title)
        for axes, (name, channels) in zip(grid[:, column], maps.items(), strict=True):
            mosaic = _side_by_side(channels[:6])
            limit = _limit(mosaic)
            axes.imshow(mosaic, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(f"largest entry {limit:.1g}", fontsize="small")
            if column == 0:
                count, height, width = channels.shape
                axes.set_ylabel(
                    f"{name}\n{count} channels,\n{height} × {width}", rotation=0, ha="right", va="center"
                )
    return figure


def values_by_layer(values: Mapping[str, Mapping[str, int]], label: str) -> Figure:
    """Return the numbers of values in each layer as dots on a log axis, with one row of dots per name.

    values: name → layer → number; every name has the same layers, drawn from top to bottom. A 0 has no dot.
    `label` labels the axis.
    """
    layers = list(next(iter(values.values())))
    figure, axes = one_panel((7, 0.42 * len(layers) + 1.2), label, "Layer, from input to output")
    for k, (name, numbers) in enumerate(values.items()):
        heights = np.arange(len(layers)) + (k - (len(values) - 1) / 2) * 0.3
        counts = [numbers[layer] or np.nan for layer in layers]
        axes.plot(counts, heights, MARKERS[k], color=COLOURS[k], markersize=8, label=name)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_yticks(np.arange(len(layers)), layers)
    axes.invert_yaxis()
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
