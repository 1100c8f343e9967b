"""Pictures in the shape a model wants: (channels, height, width), or flat."""

from __future__ import annotations

import math

import numpy as np

Shape = tuple[int, ...]


def check_shape(name: str, shape: Shape | None, image: Shape) -> Shape:
    """Return the shape to give each picture of a set; flat if None. A ValueError names those there are.

    `image` is the set's own (channels, height, width). A picture can also be had flat, and a small grey one
    larger, up to 32×32, with its one channel or with three alike.
    """
    flat = (math.prod(image),)
    known = [flat, image, (1, 28, 28), (1, 32, 32), (3, 32, 32)] if image[0] == 1 else [flat, image]
    shape = flat if shape is None else tuple(shape)
    if shape not in known:
        raise ValueError(
            f"no shape {shape} for {name!r}: there are {', '.join(map(str, dict.fromkeys(known)))}"
        )
    return shape


def enlarge(pictures: np.ndarray, side: int) -> np.ndarray:
    """Return square pictures enlarged to side×side, each new pixel interpolated between its neighbours.

    Shapes: pictures (n, h, h) float32; result (n, side, side) float32, within the range of the input.
    """
    old = pictures.shape[-1]
    # Where the centres of the new pixels lie among those of the old ones; beyond the outermost, the edge.
    at = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    left = np.minimum(at.astype(int), old - 2)
    weights = np.zeros((side, old), np.float32)
    weights[np.arange(side), left] = 1 - (at - left)
    weights[np.arange(side), left + 1] = at - left
    return weights @ pictures @ weights.T


def scaled(pixels: np.ndarray, image: Shape, shape: Shape) -> np.ndarray:
    """Return pictures as float32, 0 … 1, in another shape: padded with zeros on all sides, channels repeated.

    Shapes: pixels (n, channels·height·width) uint8; image (channels, height, width); result (n, *shape).
    """
    values = np.divide(pixels, 255, dtype=np.float32)
    if len(shape) == 1:
        return values
    values = values.reshape(-1, *image)
    edge = (shape[1] - image[1]) // 2
    if edge:  # MNIST at 32×32, as LeNet-5 takes it
        values = np.pad(values, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    return np.broadcast_to(values, (len(values), *shape))
