"""The gradient check: a hand-written gradient against central differences, in float64.

float32 has too few digits for it: the difference of two nearly equal losses would be mostly rounding.

**Kinks.** ReLU and max-pooling have places without a derivative. Where a kink lies *within* a step of the
parameter, the difference mixes the slopes of both sides; a smaller step stays on one side, and there it must
agree. Where the parameter is *on* the kink (a ReLU of exactly 0, two equal maxima), the slopes to the left
and to the right differ however small the step; any value between them is a subgradient, and a gradient by
hand that lies there is not called wrong, but such entries are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labkit.nn.model import Model

# The error of a central difference is about step² (truncation) + 1e-16/step (rounding); this balances the
# two.
STEP = 1e-5
SMALLER = (1e-6, 1e-7)  # to step past kinks
LIMIT = 1e-6  # a correct gradient agrees to about 1e-9


@dataclass(frozen=True)
class Check:
    """The worst disagreement in one parameter: where it is, both gradients there, their relative error.

    Of `size` entries `checked` were looked at; `near` of them lay so near to a kink that it took a smaller
    step, and `on_kink` on one, where there is no derivative; these have no part in the error.
    """

    name: str
    where: tuple[int, ...]
    by_hand: float
    by_difference: float
    error: float
    size: int = 0
    checked: int = 0
    near: int = 0
    on_kink: int = 0

    @property
    def passed(self) -> bool:
        """Whether every entry that was checked agrees."""
        return self.error < LIMIT


def numerical_gradient(loss: Callable[[], float], array: np.ndarray, step: float = STEP) -> np.ndarray:
    """Return ∂loss/∂array by central differences: (loss(a + h) - loss(a - h)) / 2h for each entry a.

    `loss` takes no argument and reads `array` (any shape, float64), which is left as it was found.
    Result: the shape of `array`, float64. A ValueError refuses other dtypes.
    """
    _refuse_float32(array)
    gradient = np.empty_like(array)
    for where in np.ndindex(*array.shape):
        below, above = _beside(loss, array, where, step)
        gradient[where] = (above - below) / (2 * step)
    return gradient


def relative_error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a - b|, entry by entry, relative to the largest entry of either array (0 if all are 0)."""
    scale = max(np.abs(a).max(), np.abs(b).max())
    return np.abs(a - b) / (scale or 1.0)


def check_gradient(
    loss: Callable[[], float],
    array: np.ndarray,
    by_hand: np.ndarray,
    name: str = "array",
    entries: int | None = None,
) -> Check:
    """Return where `by_hand`, the gradient of loss with respect to array, disagrees most with differences.

    `loss` takes no argument and reads `array` (any shape, float64), which is left as it was found; `by_hand`
    has its shape. `entries` picks that many at random, always the same, rather than all. The error is
    relative to the largest entry of either gradient, but never asks for more than a difference can resolve:
    so a gradient that is 0 but for rounding passes. A ValueError refuses other shapes and dtypes.
    """
    _refuse_float32(array)
    if by_hand.shape != array.shape:
        raise ValueError(f"the gradient of {name!r} has shape {by_hand.shape}, expected {array.shape}")
    drawn = np.arange(array.size)
    if entries is not None and entries < array.size:
        drawn = np.sort(np.random.default_rng(0).choice(array.size, entries, replace=False))
    places = [tuple(int(i) for i in np.unravel_index(index, array.shape)) for index in drawn]

    here = loss()
    rounding = 50 * np.finfo(np.float64).eps * max(1.0, abs(here))  # of one loss, and so of a difference
    differences = np.zeros(len(places))
    for k, where in enumerate(places):
        below, above = _beside(loss, array, where, STEP)
        differences[k] = (above - below) / (2 * STEP)
    scale = max(np.abs(by_hand).max(), np.abs(differences).max(), rounding / STEP / LIMIT)

    errors, near, on_kink = np.zeros(len(places)), 0, 0
    for k, where in enumerate(places):
        apart = abs(by_hand[where] - differences[k])
        errors[k] = apart / scale
        for step in SMALLER if errors[k] >= LIMIT else ():
            slack = LIMIT * scale + rounding / step
            if apart < 2 * slack:  # too small a step to tell which of the two is right
                break
            below, above = _beside(loss, array, where, step)
            left, right = (here - below) / step, (above - here) / step
            if abs(by_hand[where] - (left + right) / 2) < slack:
                differences[k], errors[k], near = (left + right) / 2, 0.0, near + 1
                break
            between = min(left, right) - slack < by_hand[where] < max(left, right) + slack
            if step == SMALLER[-1] and abs(right - left) > 2 * slack and between:
                errors[k], on_kink = 0.0, on_kink + 1
    worst = int(errors.argmax())
    where = places[worst]
    return Check(
        name,
        where,
        float(by_hand[where]),
        float(differences[worst]),
        float(errors[worst]),
        size=array.size,
        checked=len(places),
        near=near,
        on_kink=on_kink,
    )


def check_gradients(
    model: Model, x: np.ndarray, y: np.ndarray, entries: int | None = None, names: Iterable[str] | None = None
) -> list[Check]:
    """Return, for each parameter of a float64 model, the entry whose gradient disagrees most.

    `entries` samples that many entries of each parameter, `names` picks the parameters (else all): ranks can
    share the work. The model's parameters and buffers are left as they were; its `grads` hold the gradient by
    hand. A ValueError names the parameters there are if one of `names` is not among them.
    """
    parameters = model.named_parameters()
    names = list(parameters) if names is None else list(names)
    if unknown := [name for name in names if name not in parameters]:
        raise ValueError(f"no parameter {unknown[0]!r} in {model.name!r}: there are {', '.join(parameters)}")
    kept = model.buffers.copy()
    model.loss_and_gradient(x, y)
    gradients = model.named_gradients()
    checks = [
        check_gradient(
            lambda: model.loss(x, y, training=True), parameters[name], gradients[name], name, entries
        )
        for name in names
    ]
    model.buffers[...] = kept
    return checks


def report(checks: Iterable[Check]) -> str:
    """Return the checks as a table, a line for each, with a verdict at the end."""
    checks = list(checks)
    width = max([len(check.name) for check in checks] + [9])
    lines = [f"{'parameter':{width}}  {'checked':>16}  worst error  where"]
    for check in checks:
        share = f"{check.checked} of {check.size}"
        place = f"{check.where}: by hand {check.by_hand:+.6e}, by difference {check.by_difference:+.6e}"
        mark = "" if check.passed else "  ← wrong"
        lines.append(f"{check.name:{width}}  {share:>16}  {check.error:11.1e}  {place}{mark}")
    wrong = [check for check in checks if not check.passed]
    if near := sum(check.near for check in checks):
        lines.append(f"{near} entries near a kink of ReLU or max agree with a smaller step.")
    if on_kink := sum(check.on_kink for check in checks):
        lines.append(f"{on_kink} entries on a kink: there is no derivative, only one to each side; left out.")
    if wrong:
        worst = max(wrong, key=lambda check: check.error)
        lines.append(
            f"WRONG: {len(wrong)} of {len(checks)} parameters disagree by more than {LIMIT:.0e}, most "
            f"{worst.name} at {worst.where}."
        )
    else:
        lines.append(f"RIGHT: all {len(checks)} parameters agree with central differences to {LIMIT:.0e}.")
    return "\n".join(lines)


def _beside(
    loss: Callable[[], float], array: np.ndarray, where: tuple[int, ...], step: float
) -> tuple[float, float]:
    """Return the loss with one entry of the array a step below and a step above; put the entry back."""
    kept = array[where]
    array[where] = kept - step
    below = loss()
    array[where] = kept + step
    above = loss()
    array[where] = kept
    return below, above


def _refuse_float32(array: np.ndarray) -> None:
    if array.dtype != np.float64:
        raise ValueError(
            f"the array is {array.dtype}, expected float64: float32 has too few digits for differences"
        )
