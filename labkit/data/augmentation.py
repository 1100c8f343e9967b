"""Data augmentation: train on images that are shifted and mirrored at random, anew in each epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MASK = 2**64 - 1


@dataclass(frozen=True)
class Augmentation:
    """Random shifts by up to `shift` pixels in each direction and, with `flip`, random horizontal flips.

    What happens to a sample depends only on the seed, the epoch and the sample's index in the data set. So it
    depends neither on the number of ranks nor on where a run was resumed.

    Raise ValueError for a negative shift.
    """

    shift: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"expected a shift of 0 or more pixels, got {self.shift}")

    def __call__(self, x: np.ndarray, indices: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the augmented images: a new array. `indices` are those of the samples in the data set.

        The image is padded with zeros on all sides, then cropped to its size at a random place; half of the
        images are mirrored. Shapes: x (n, channels, height, width), indices (n,), integers; result as x.
        Raise ValueError if x holds no images.
        """
        if x.ndim != 4:
            raise ValueError(
                f"expected images (n, channels, height, width) to augment, got shape {x.shape}; flat samples "
                "cannot be shifted"
            )
        numbers = random_numbers(indices, seed, epoch)
        pixels, places = self.shift, 2 * self.shift + 1
        padded = np.pad(x, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, x.shape[2:], axis=(2, 3))
        down, right = (numbers >> np.uint64(shift) & np.uint64(0xFFFF) for shift in (0, 16))
        out = windows[np.arange(len(x)), :, down % np.uint64(places), right % np.uint64(places)]
        if self.flip:
            mirrored = (numbers >> np.uint64(32) & np.uint64(1)).astype(bool)
            out[mirrored] = out[mirrored][..., ::-1]
        return out


def random_numbers(indices: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return one random 64-bit number for each sample: a hash of the seed, the epoch and the sample's index.

    A generator would have to draw the numbers of all samples to find those of a few. Shapes: indices (n,),
    0 or more; result (n,), uint64.
    """
    number = np.zeros(indices.shape, np.uint64)
    for part in seed & MASK, epoch, indices:
        number = _mixed(number ^ np.asarray(part).astype(np.uint64))
    return number


def _mixed(number: np.ndarray) -> np.ndarray:
    """Return the next number of SplitMix64: all bits of the result depend on all bits of the input.

    Source: G. L. Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)
