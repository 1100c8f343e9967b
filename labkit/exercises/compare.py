"""Compare a result with the expected one, and say where they differ: type, shape, dtype or values."""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral, Number
from typing import Any

import numpy as np

from labkit.exercises.transport import Foreign
from mpiwatch.report import counted

ROUNDINGS = 1024  # the tolerance, in units of the dtype's rounding, relative to the largest value
NUMBERS = "biufc"  # kinds of dtype
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
    for found in re.findall(
        r"\(([A-Za-z_]\w*(?:, [A-Za-z_]\w*)+)\)", (docstring or "").partition("Shape")[0]
    ):
        names = found.split(", ")
        if len(names) == count:
            return list(names)
    return []


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


def _are(name: str, got: Any, expected: Any) -> str:
    if got is None:
        return f"{name} is None, expected {kind(expected)}{_hint_at_return(got)}"
    if isinstance(got, (np.ndarray, list, tuple, dict)):
        return f"{name} is {kind(got)}, expected {show(expected)}"
    return f"{name} is {show(got)}, expected {show(expected)}"


def _arrays(got: Any, expected: np.ndarray, tolerance: float | None, name: str) -> str | None:
    if not isinstance(got, np.ndarray):
        return f"{name} is {kind(got)}, expected {kind(expected)}{_hint_at_return(got)}"
    if got.shape != expected.shape:
        return f"{name} has shape {got.shape}, expected {expected.shape}"
    if expected.dtype.kind in NUMBERS and got.dtype.kind in NUMBERS:
        wrong = _wrong(got, expected, _tolerance(tolerance, expected.dtype, got.dtype))
    else:
        wrong = np.asarray(got != expected)
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        many = f" ({int(wrong.sum())} of {wrong.size} values are wrong)" if wrong.size > 1 else ""
        index = ", ".join(map(str, place))
        return f"{_path(name)}[{index}] is {show(got[place])}, expected {show(expected[place])}{many}"
    are_integers = got.dtype.kind in "iu" and expected.dtype.kind in "iu"
    if got.dtype != expected.dtype and not are_integers:
        return f"{name} has dtype {got.dtype}, expected {expected.dtype}"
    return None


def _hint_at_return(got: Any) -> str:
    return ". Is a `return` missing?" if got is None else ""


def _wrong(got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Return where two arrays of numbers differ. NaN equals NaN; infinity equals itself."""
    with np.errstate(all="ignore"):
        finite = np.abs(expected[np.isfinite(expected)].astype(complex))
        largest = float(finite.max()) if finite.size else 0.0
        left, right = got.astype(complex), expected.astype(complex)
        near = np.abs(left - right) <= tolerance * largest
    both = np.isnan(left) & np.isnan(right)
    return np.asarray(~(near | both | (got == expected)))


def _tolerance(given: float | None, *dtypes: np.dtype) -> float:
    if given is not None:
        return given
    inexact = [np.finfo(dtype).eps for dtype in dtypes if dtype.kind in "fc"]
    return ROUNDINGS * float(max(inexact, default=0.0))


def _numbers(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    left, right = np.asarray(got), np.asarray(expected)
    if got is None or left.dtype.kind not in NUMBERS or left.size != 1 or left.ndim > right.ndim:
        if got is None:
            return _are(name, got, expected)
        return f"{name} is {kind(got)}, expected {kind(expected)}"
    if _wrong(left.reshape(()), right.reshape(()), _tolerance(tolerance, left.dtype, right.dtype)).any():
        return f"{name} is {show(left.item())}, expected {show(right.item())}"
    whole = right.dtype.kind in "iu" and isinstance(expected, (Integral, np.integer))
    if whole and left.dtype.kind not in "iu":
        return f"{name} is {kind(got)}, expected an int"
    if right.dtype.kind == "b" and left.dtype.kind != "b":
        return f"{name} is {kind(got)}, expected a bool"
    return None


def _others(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    return None if type(got) is type(expected) and got == expected else _are(name, got, expected)


def _dicts(got: Any, expected: dict[Any, Any], tolerance: float | None, name: str) -> str | None:
    if not isinstance(got, dict):
        return f"{name} is {kind(got)}, expected {kind(expected)}"
    missing = [key for key in expected if key not in got]
    extra = [key for key in got if key not in expected]
    if missing:
        return f"{name} has no key {show(missing[0])}"
    if extra:
        return f"{name} has the key {show(extra[0])}, which is not expected"
    return _first(
        lambda key: difference(got[key], expected[key], tolerance, f"{_path(name)}[{show(key)}]"), expected
    )


def _sequences(got: Any, expected: Any, tolerance: float | None, name: str) -> str | None:
    if hasattr(expected, "_fields") and type(got) is not type(expected):
        return f"{name} is {kind(got)}, expected {kind(expected)}"
    if not isinstance(got, (list, tuple)):
        return f"{name} is {kind(got)}, expected {kind(expected)}{_hint_at_return(got)}"
    if len(got) != len(expected):
        place = next(
            (
                index
                for index, (left, right) in enumerate(zip(got, expected, strict=False))
                if difference(left, right, tolerance)
            ),
            None,
        )
        where = "" if place is None else f"; the first that differs is number {place}"
        return f"{name} has {counted(len(got), 'value')}, expected {len(expected)}{where}"
    return _first(
        lambda index: difference(got[index], expected[index], tolerance, f"{_path(name)}[{index}]"),
        range(len(expected)),
    )


def _first(compare: Callable[[Any], str | None], keys: Any) -> str | None:
    return next((found for found in map(compare, keys) if found), None)


def _path(name: str) -> str:
    """Return the name that an index follows."""
    return "result" if name == "the result" else name
