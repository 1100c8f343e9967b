"""Convert images to the shape that a model expects: (channels, height, width), or flat."""

from __future__ import annotations

import math

import numpy as np

Shape = tuple[int, ...]


def check_shape(name: str, shape: Shape | None, image: Shape) -> Shape:
    """Return the shape to convert each image to; flat if None. Raise ValueError, with all shapes, for others.

    `image` is the data set's own (channels, height, width). Every image is available flat, too, and grey ones
    as (1, 28, 28), (1, 32, 32) or, with three equal channels, (3, 32, 32).
    """
    flat = (math.prod(image),)
    available = [flat, image, (1, 28, 28), (1, 32, 32), (3, 32, 32)] if image[0] == 1 else [flat, image]
    shape = flat if shape is None else tuple(shape)
    if shape not in available:
        shapes = ", ".join(map(str, dict.fromkeys(available)))
        raise ValueError(f"data set {name!r} has no shape {shape}; available: {shapes}")
    return shape


def enlarge(images: np.ndarray, side: int) -> np.ndarray:
    """Return square images enlarged to side×side by bilinear interpolation.

    Shapes: images (n, h, h) float32; result (n, side, side) float32, within the range of the input.
    """
    old = images.shape[-1]
    # The centres of the new pixels in coordinates of the old ones, clipped at the edge.
    centres = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    left = np.minimum(centres.astype(int), old - 2)
    weights = np.zeros((side, old), np.float32)
    weights[np.arange(side), left] = 1 - (centres - left)
    weights[np.arange(side), left + 1] = centres - left
    return weights @ images @ weights.T


def scaled(pixels: np.ndarray, image: Shape, shape: Shape) -> np.ndarray:
    """Return images as float32 in 0 … 1, in another shape: padded with zeros on all sides, channels repeated.

    Shapes: pixels (n, channels·height·width) uint8; image (channels, height, width); result (n, *shape).
    """
    values = np.divide(pixels, 255, dtype=np.float32)
    if len(shape) == 1:
        return values
    values = values.reshape(-1, *image)
    edge = (shape[1] - image[1]) // 2
    if edge:  # MNIST at 32×32, the input size of LeNet-5
        values = np.pad(values, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    return np.broadcast_to(values, (len(values), *shape))
