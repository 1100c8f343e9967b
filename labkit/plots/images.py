"""Arrays as images, with their values in colour."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator


def images(by_title: Mapping[str, np.ndarray]) -> Figure:
    """Return images side by side, with the range of their values in their titles.

    Shapes: by_title: title → (H, W). Orange is below 0, purple above; each image has its own colour scale, as
    far in both directions.
    """
    figure = Figure(figsize=(3.2 * len(by_title), 3), layout="constrained")
    for axes, (title, image) in zip(
        figure.subplots(1, len(by_title), squeeze=False)[0], by_title.items(), strict=True
    ):
        limit = float(np.nanmax(np.abs(image))) or 1.0  # 1 if all values are 0
        axes.imshow(image, cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
        values = f"{image.min():.2g} … {image.max():.2g}".replace("-", "−")
        axes.set_title(f"{title}\nvalues: {values}", fontsize="medium")
        for axis, side in zip((axes.yaxis, axes.xaxis), image.shape, strict=True):
            axis.set_major_locator(MultipleLocator(8 if side > 8 else 1))  # the same for images of like sizes
        axes.set_xlabel("Column (pixels)")
        axes.set_ylabel("Row (pixels)")
    return figure
