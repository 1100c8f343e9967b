"""The gradient check: compare a gradient computed by hand with central differences, in float64.

float32 has too few digits: the difference of two nearly equal losses would be mostly rounding error.

**Kinks.** ReLU and max pooling have points without a derivative. If a kink is *within* one step of the
parameter, the difference mixes the slopes of both sides; a smaller step stays on one side, and there the
gradients must agree. If the parameter is *on* the kink (a ReLU of exactly 0, two equal maxima), the slopes to
the left and to the right differ however small the step. Every value between them is a subgradient, so the
check accepts it, but counts such entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labkit.nn.model import Model

# The error of a central difference is about step² (truncation) + 1e-16/step (rounding); this step balances
# them.
STEP = 1e-5
SMALLER_STEPS = (1e-6, 1e-7)  # they stay on one side of most kinks
LIMIT = 1e-6  # a correct gradient agrees to about 1e-9


@dataclass(frozen=True)
class GradientCheck:
    """The largest error in one array: its index `where`, both gradients there, and the relative error.

    Of `size` entries, `checked` were checked. Of these, `near_kink` needed a smaller step because of a kink,
    and `on_kink` are on a kink, where there is no derivative; the latter do not count as errors.
    """

    name: str
    where: tuple[int, ...]
    by_hand: float
    by_difference: float
    error: float
    size: int = 0
    checked: int = 0
    near_kink: int = 0
    on_kink: int = 0

    @property
    def passed(self) -> bool:
        """Return whether every entry that was checked agrees."""
        return self.error < LIMIT


def relative_error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a - b| for each entry, relative to the largest entry of both arrays (0 if all are 0)."""
    scale = max(np.abs(a).max(), np.abs(b).max())
    return np.abs(a - b) / (scale or 1.0)


def check_gradient(
    loss: Callable[[], float],
    array: np.ndarray,
    by_hand: np.ndarray,
    name: str = "array",
    entries: int | None = None,
) -> GradientCheck:
    """Check `by_hand`, the gradient of `loss` with respect to one array, against central differences.

    `loss` takes no argument and reads `array` (any shape, float64), which is restored afterwards; `by_hand`
    has its shape. With `entries`, check only that many entries, drawn at random but the same in every call.
    The error is relative to the largest entry of both gradients, and no smaller than differences can resolve,
    so that a gradient that is 0 except for rounding passes. Raise ValueError for other shapes and dtypes.
    """
    if array.dtype != np.float64:
        raise ValueError(
            f"expected a float64 array, got {array.dtype}: float32 has too few digits for differences"
        )
    if by_hand.shape != array.shape:
        raise ValueError(f"the gradient of {name!r} has shape {by_hand.shape}, expected {array.shape}")
    drawn = np.arange(array.size)
    if entries is not None and entries < array.size:
        drawn = np.sort(np.random.default_rng(0).choice(array.size, entries, replace=False))
    positions = [tuple(int(i) for i in np.unravel_index(index, array.shape)) for index in drawn]

    here = loss()
    rounding = 50 * np.finfo(np.float64).eps * max(1.0, abs(here))  # error of one loss or difference
    differences = np.zeros(len(positions))
    for k, where in enumerate(positions):
        below, above = _losses_beside(loss, array, where, STEP)
        differences[k] = (above - below) / (2 * STEP)
    scale = max(np.abs(by_hand).max(), np.abs(differences).max(), rounding / STEP / LIMIT)

    errors, near_kink, on_kink = np.zeros(len(positions)), 0, 0
    for k, where in enumerate(positions):
        gap = abs(by_hand[where] - differences[k])
        errors[k] = gap / scale
        for step in SMALLER_STEPS if errors[k] >= LIMIT else ():
            slack = LIMIT * scale + rounding / step
            if gap < 2 * slack:  # with so small a step, rounding hides which gradient is right
                break
            below, above = _losses_beside(loss, array, where, step)
            left, right = (here - below) / step, (above - here) / step
            if abs(by_hand[where] - (left + right) / 2) < slack:
                differences[k], errors[k], near_kink = (left + right) / 2, 0.0, near_kink + 1
                break
            between = min(left, right) - slack < by_hand[where] < max(left, right) + slack
            if step == SMALLER_STEPS[-1] and abs(right - left) > 2 * slack and between:
                errors[k], on_kink = 0.0, on_kink + 1
    worst = int(errors.argmax())
    where = positions[worst]
    return GradientCheck(
        name,
        where,
        float(by_hand[where]),
        float(differences[worst]),
        float(errors[worst]),
        size=array.size,
        checked=len(positions),
        near_kink=near_kink,
        on_kink=on_kink,
    )


def check_gradients(
    model: Model, x: np.ndarray, y: np.ndarray, entries: int | None = None, names: Iterable[str] | None = None
) -> list[GradientCheck]:
    """Check the gradient of every parameter of a float64 model against central differences.

    Return one check per parameter. With `entries`, check only that many entries of each; with `names`, only
    these parameters, so that ranks can divide the work. The parameters and buffers are restored afterwards,
    and `grads` holds the gradient by hand. Raise ValueError, listing the parameters, for an unknown name.
    """
    parameters = model.named_parameters()
    names = list(parameters) if names is None else list(names)
    unknown = [name for name in names if name not in parameters]
    if unknown:
        raise ValueError(
            f"model {model.name!r} has no parameter {unknown[0]!r}, only {', '.join(parameters)}"
        )
    buffers = model.buffers.copy()
    model.loss_and_gradient(x, y)
    gradients = model.named_gradients()
    checks = [
        check_gradient(
            lambda: model.loss(x, y, training=True), parameters[name], gradients[name], name, entries
        )
        for name in names
    ]
    model.buffers[...] = buffers
    return checks


def gradient_report(checks: Iterable[GradientCheck]) -> str:
    """Return the checks as a table with one line each and a verdict at the end."""
    checks = list(checks)
    width = max([len(check.name) for check in checks] + [9])
    lines = [f"{'parameter':{width}}  {'checked':>16}  worst error  where"]
    for check in checks:
        checked = f"{check.checked} of {check.size}"
        place = f"{check.where}: by hand {check.by_hand:+.6e}, by difference {check.by_difference:+.6e}"
        mark = "" if check.passed else "  ← wrong"
        lines.append(f"{check.name:{width}}  {checked:>16}  {check.error:11.1e}  {place}{mark}")
    wrong = [check for check in checks if not check.passed]
    near_kink = sum(check.near_kink for check in checks)
    if near_kink:
        lines.append(f"Entries near a kink of ReLU or max that agree with a smaller step: {near_kink}.")
    on_kink = sum(check.on_kink for check in checks)
    if on_kink:
        lines.append(f"Entries on a kink, where there is no derivative, left out: {on_kink}.")
    if wrong:
        worst = max(wrong, key=lambda check: check.error)
        lines.append(
            f"WRONG: {len(wrong)} of {len(checks)} parameters disagree by more than {LIMIT:.0e}; the "
            f"largest error is in {worst.name} at {worst.where}."
        )
    else:
        lines.append(f"RIGHT: all {len(checks)} parameters agree with central differences to {LIMIT:.0e}.")
    return "\n".join(lines)


def _losses_beside(
    loss: Callable[[], float], array: np.ndarray, where: tuple[int, ...], step: float
) -> tuple[float, float]:
    """Return the losses with one entry of the array a step lower and a step higher; restore the entry."""
    value = array[where]
    array[where] = value - step
    below = loss()
    array[where] = value + step
    above = loss()
    array[where] = value
    return below, above


def difference_lines(name: str, by_hand: np.ndarray, by_difference: np.ndarray) -> list[str]:
    """Return what a gradient check says of one gradient: its largest error and where, and how the two differ.

    Errors are relative to the largest entry of either. If all entries are wrong by the same factor, the text
    has the factor; of another wrong gradient it has both arrays. Shapes: of the parameter, all alike.
    """
    error = relative_error(by_hand, by_difference)
    place = tuple(map(int, np.unravel_index(error.argmax(), error.shape)))
    line = f"  {name}: largest relative error {error.max():.0e} at {place}"
    if error.max() <= LIMIT:
        return [line]
    ratios = by_hand / by_difference
    if np.ptp(ratios) < LIMIT:
        return [f"{line}; {ratios.mean():.2f} times the central difference at every entry"]
    rows = {"by hand      ": by_hand, "by difference": by_difference}
    return [line, *(f"    {label} {np.round(row, 2).tolist()}" for label, row in rows.items())]


def linear_layer_check(
    layer_backward: Callable[[np.ndarray, np.ndarray, np.ndarray], Iterable[np.ndarray]],
) -> tuple[float, list[str]]:
    """Return the largest relative error of the gradients of a linear layer, and lines about dx, dw and db.

    `layer_backward(dy, x, w)` returns (dx, dw, db) of x w + b; the loss is the mean squared error. All sizes
    are 3, so that a wrong axis raises no error.
    """
    rng = np.random.default_rng(1)
    arrays = {"x": rng.normal(size=(3, 3)), "w": rng.normal(size=(3, 3)), "b": rng.normal(size=3)}
    target = rng.normal(size=(3, 3))

    def residual() -> np.ndarray:
        return arrays["x"] @ arrays["w"] + arrays["b"] - target

    def loss() -> float:
        return float(np.mean(residual() ** 2))

    by_hand = layer_backward(2 / target.size * residual(), arrays["x"], arrays["w"])
    errors, lines = [], []
    for hand, (name, array) in zip(by_hand, arrays.items(), strict=True):
        by_difference = np.empty_like(array)
        for where in np.ndindex(*array.shape):
            below, above = _losses_beside(loss, array, where, STEP)
            by_difference[where] = (above - below) / (2 * STEP)
        errors.append(relative_error(hand, by_difference).max())
        lines += difference_lines(f"d{name}", hand, by_difference)
    return max(errors), lines
