"""Compare a result with the expected one, and say where they differ: type, shape, dtype or values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from numbers import Integral, Number
from typing import Any

import numpy as np

from labkit.checks.transport import Foreign
from labkit.text import counted

ROUNDINGS = 1024  # the tolerance, in units of the dtype's rounding, relative to the largest value
NUMBER_KINDS = "biufc"  # kinds of dtype
NEARLY = (
    1e-3  # a relative difference below which the digits of a wrong value are lost, and no others computed
)
LOST_DIGITS = "Look for what loses digits: float32, a missing ε, a difference of two large numbers"
FLOATS = float, np.floating
SHOWN = 60  # characters of a value in a message


def difference(got: Any, expected: Any, tolerance: float | None, name: str = "the result") -> str | None:
    """Return how a result differs from the expected one: "db[2] is 3, expected 4"; None if it does not."""
    if isinstance(got, Foreign):
        return f"{name} is of type {got.type_name}, expected {kind(expected)}"
    if isinstance(expected, np.ndarray) and expected.ndim:
        compare: Callable[..., str | None] = _arrays
    elif isinstance(expected, (Number, np.generic, np.ndarray)):
        compare = _numbers
    elif isinstance(expected, dict):
        compare = _dicts
    elif isinstance(expected, (list, tuple)):
        compare = _sequences
    else:
        compare = _others
    return compare(got, expected, tolerance, name)


def names_of_parts(docstring: str | None, count: int) -> list[str]:
    """Return the names of a tuple's parts, as "Return (dx, dw, db)" lists them; numbers if it does not."""
    text = (docstring or "").partition("Shape")[0]
    lists_of_names = [
        names.split(", ") for names in re.findall(r"\(([A-Za-z_]\w*(?:, [A-Za-z_]\w*)+)\)", text)
    ]
    return next((names for names in lists_of_names if len(names) == count), [])


def kind(value: Any) -> str:
    """Return what a value is, in words: "an array of shape (3, 2), float32"."""
    if isinstance(value, Foreign):
        return value.type_name
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, (list, tuple, dict)) and not hasattr(value, "_fields"):
        size = len(value)
        return f"a {type(value).__name__} of {counted(size, 'value')}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def show(value: Any) -> str:
    """Return a value, shortened."""
    if isinstance(value, np.generic):
        value = value.item()
    text = f"{value:.6g}" if isinstance(value, (float, complex)) else repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _is_of_kind(name: str, got: Any, expected: Any) -> str:
    """Return a finding for a value whose kind differs from that of the expected value."""
    question = ". Does every path return it?" if got is None else ""
    return f"{name} is {kind(got)}, expected {kind(expected)}{question}"


def _arrays(  # noqa: PLR0911 (a return for each difference)
    got: Any, expected: np.ndarray, tolerance: float | None, name: str
) -> str | None:
    if not isinstance(got, np.ndarray):
        return _is_of_kind(name, got, expected)
    if got.shape != expected.shape:
        return f"{name} has shape {got.shape}, expected {expected.shape}"
    if expected.dtype.kind in NUMBER_KINDS and got.dtype.kind in NUMBER_KINDS:
        wrong = _wrong(got, expected, _tolerance(tolerance, expected.dtype))
        if wrong.any() and _is_rounded(got, expected):
            return f"{name} has dtype {got.dtype}, expected {expected.dtype}: digits are lost"
    elif expected.dtype.kind in NUMBER_KINDS or got.dtype.kind in NUMBER_KINDS:  # but not both
        return f"{name} has dtype {got.dtype}, expected {expected.dtype}"
    else:
        wrong = np.asarray(got != expected)
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        many = f" ({int(wrong.sum())} of {wrong.size} values are wrong)" if wrong.size > 1 else ""
        index = ", ".join(map(str, place))
        return f"{_path(name)}[{index}] is {_both(got[place], expected[place])}{many}"
    are_integers = got.dtype.kind in "iu" and expected.dtype.kind in "iu"
    if got.dtype != expected.dtype and not are_integers:
        return f"{name} has dtype {got.dtype}, expected {expected.dtype}"
    return None


def _is_rounded(got: np.ndarray, expected: np.ndarray) -> bool:
    """Tell whether a result is right, but for the rounding of its own dtype, which is too coarse."""
    is_coarser = got.dtype.kind == expected.dtype.kind == "f" and got.dtype.itemsize < expected.dtype.itemsize
    return is_coarser and not _wrong(got, expected, _tolerance(None, got.dtype)).any()


def _both(got: Any, expected: Any) -> str:
    """Return "is x, expected y" without its first word, with as many digits as tell the two apart."""
    left, right = show(got), show(expected)
    if left == right:
        left, right = str(got), str(expected)
    apart = abs(got - expected) / abs(expected) if expected and isinstance(expected, FLOATS) else 1.0
    near = f": a relative difference of {apart:.1g}. {LOST_DIGITS}" if apart < NEARLY else ""
    return f"{left}, expected {right}{near}"


def _wrong(got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Return where two arrays of numbers differ. Integers must be equal. NaN equals NaN, infinity itself."""
    if got.dtype.kind in "iub" and expected.dtype.kind in "iub":
        return np.asarray(got != expected)
    with np.errstate(all="ignore"):
        finite = np.abs(expected[np.isfinite(expected)].astype(complex))
        largest = float(finite.max()) if finite.size else 0.0
        left, right = got.astype(complex), expected.astype(complex)
        near = np.abs(left - right) <= tolerance * largest
    both = np.isnan(left) & np.isnan(right)
    return np.asarray(~(near | both | (got == expected)))


def _tolerance(chosen: float | None, dtype: np.dtype) -> float:
    """Return the chosen tolerance, or without one a number of roundings of the expected value's dtype."""
    if chosen is not None:
        return chosen
    return ROUNDINGS * float(np.finfo(dtype).eps) if dtype.kind in "fc" else 0.0


def _numbers(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    left, right = np.asarray(got, _dtype(got)), np.asarray(expected)
    if got is None or left.dtype.kind not in NUMBER_KINDS or left.size != 1 or left.ndim > right.ndim:
        return _is_of_kind(name, got, expected)
    if _wrong(left.reshape(()), right.reshape(()), _tolerance(tolerance, right.dtype)).any():
        if _is_rounded(left.reshape(()), right.reshape(())):
            return f"{name} is {kind(got)}, expected {kind(expected)}: digits are lost"
        return f"{name} is {_both(left.item(), right.item())}"
    whole = right.dtype.kind in "iu" and isinstance(expected, (Integral, np.integer))
    if whole and left.dtype.kind not in "iu":
        return f"{name} is {kind(got)}, expected an int"
    if right.dtype.kind == "b" and left.dtype.kind != "b":
        return f"{name} is {kind(got)}, expected a bool"
    return None


def _dtype(value: Any) -> type | None:
    """Return the dtype for an array of a value that is no number: arrays of unequal lengths, for example."""
    return object if isinstance(value, (list, tuple)) else None


def _others(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    if isinstance(got, np.generic):  # an entry of an array of texts, for example
        got = got.item()
    if type(got) is type(expected) and got == expected:
        return None
    if got is None:
        return _is_of_kind(name, got, expected)
    is_large = isinstance(got, (np.ndarray, list, tuple, dict))
    return f"{name} is {kind(got) if is_large else show(got)}, expected {show(expected)}"


def _dicts(got: Any, expected: dict[Any, Any], tolerance: float | None, name: str) -> str | None:
    if not isinstance(got, dict):
        return f"{name} is {kind(got)}, expected {kind(expected)}"
    for key in expected:
        if key not in got:
            return f"{name} has no key {show(key)}"
    for key in got:
        if key not in expected:
            return f"{name} has the key {show(key)}, which is not expected"
    path = _path(name)
    return _first(difference(got[key], expected[key], tolerance, f"{path}[{show(key)}]") for key in expected)


def _sequences(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    if hasattr(expected, "_fields") and type(got) is not type(expected):
        return f"{name} is {kind(got)}, expected {kind(expected)}"
    if isinstance(got, np.ndarray) and got.ndim == 1 and isinstance(expected, tuple):
        got = list(got)  # a pair of numbers may be an array
    if not isinstance(got, (list, tuple)):
        return _is_of_kind(name, got, expected)
    if len(got) != len(expected):
        pairs = enumerate(zip(got, expected, strict=False))
        place = next((index for index, pair in pairs if difference(*pair, tolerance)), None)
        where = "" if place is None else f"; the first that differs is number {place}"
        return f"{name} has {counted(len(got), 'value')}, expected {len(expected)}{where}"
    parts = enumerate(zip(got, expected, strict=True))
    return _first(difference(*pair, tolerance, f"{_path(name)}[{index}]") for index, pair in parts)


def _first(differences: Iterable[str | None]) -> str | None:
    return next(filter(None, differences), None)


def _path(name: str) -> str:
    """Return the name that an index follows."""
    return "result" if name == "the result" else name
