"""Check what a file holds before it becomes a dataclass: a checkpoint can be whole and yet make no sense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

# The types that a field may be annotated with, and those that JSON makes of their values.
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "Buffers": (str,),
    "bool": (bool,),
    "None": (type(None),),
    "tuple[str, ...]": (list, tuple),
    "dict[str, float]": (dict,),
}


def check_fields(kind: type, values: Any) -> None:
    """Raise ValueError unless `values` maps names to values that the fields of a dataclass can have.

    Names that are no field are left alone, and fields may be missing. A field's metadata may limit its values
    by `choices`, `least`, `above` and `below`.
    """
    check_type("a description", values, dict)
    for field in fields(kind):
        if field.name not in values:
            continue
        value, annotation = values[field.name], str(field.type)
        types = {type_ for name in annotation.split(" | ") for type_ in TYPES[name]}
        if type(value) not in types or not _within(value, field.metadata):
            raise ValueError(f"expected {field.name} to be {annotation}, found {shortened(value)}")


def _within(value: Any, limits: Mapping[str, Any]) -> bool:
    if isinstance(value, str):
        return "choices" not in limits or value in limits["choices"]
    if isinstance(value, (list, tuple)):
        return all(isinstance(entry, str) for entry in value)
    if type(value) in (int, float) and limits:
        above_least = value >= limits.get("least", 1) if isinstance(value, int) else True
        in_range = limits.get("above", -math.inf) < value < limits.get("below", math.inf)
        return math.isfinite(value) and above_least and in_range
    return True


def check_type(name: str, value: Any, *types: type) -> None:
    """Raise ValueError, which names the value, unless it is of one of the types."""
    if type(value) not in types:
        expected = " or ".join(kind.__name__ for kind in types)
        raise ValueError(f"expected {name} to be of type {expected}, found {shortened(value)}")


def shortened(value: object) -> str:
    """Return a value as a message shows it, in one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
