"""The gradient check: a hand-written gradient against central differences, in float64.

float32 has too few digits for it: the difference of two nearly equal losses would be mostly rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.nn.network import Model

# The error of a central difference is about step² (truncation) + 1e-16/step (rounding); this balances the
# two.
STEP = 1e-5


@dataclass(frozen=True)
class Check:
    """The worst disagreement in one parameter: where it is, both gradients there, their relative error."""

    name: str
    where: tuple[int, ...]
    by_hand: float
    by_difference: float
    error: float


def numerical_gradient(loss: Callable[[], float], array: np.ndarray, step: float = STEP) -> np.ndarray:
    """Return ∂loss/∂array by central differences: (loss(a + h) - loss(a - h)) / 2h for each entry a.

    `loss` takes no argument and reads `array` (any shape, float64), which is left as it was found.
    Result: the shape of `array`, float64. A ValueError refuses other dtypes.
    """
    if array.dtype != np.float64:
        raise ValueError(
            f"the array is {array.dtype}, expected float64: float32 has too few digits for differences"
        )
    gradient = np.empty_like(array)
    for where in np.ndindex(*array.shape):
        kept = array[where]
        array[where] = kept + step
        above = loss()
        array[where] = kept - step
        below = loss()
        array[where] = kept
        gradient[where] = (above - below) / (2 * step)
    return gradient


def relative_error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a - b|, entry by entry, relative to the largest entry of either array (0 if all are 0)."""
    scale = max(np.abs(a).max(), np.abs(b).max())
    return np.abs(a - b) / (scale or 1.0)


def check_model(model: Model, x: np.ndarray, y: np.ndarray) -> list[Check]:
    """Return, for each parameter of a float64 model, the entry whose gradient disagrees most.

    Correct gradients agree to about 1e-9; 1e-6 is a good limit. The model's parameters are left as they were;
    its `grads` hold the gradient by hand.
    """
    model.loss_and_gradient(x, y)
    checks = []
    for name, by_hand in model.named_gradients().items():
        differences = numerical_gradient(lambda: model.loss(x, y), model.named_parameters()[name])
        errors = relative_error(by_hand, differences)
        where = tuple(int(i) for i in np.unravel_index(errors.argmax(), errors.shape))
        checks.append(
            Check(name, where, float(by_hand[where]), float(differences[where]), float(errors[where]))
        )
    return checks
