"""The book's API page: the public names of each room, with their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

# The rooms whose names notebooks and programs import, in the order of a training run.
ROOMS = (
    "data",
    "nn",
    "schedules",
    "comm",
    "train",
    "watch",
    "cluster",
    "exercises",
    "reports",
    "plots",
    "bench",
)
HEAD = """\
# API

The names that each room exports, in the order of a training run. Shapes and dtypes, units and errors are
part of each entry.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n\n".join([HEAD, *(block for room in ROOMS for block in of_room(room))]) + "\n"


def of_room(room: str) -> Iterator[str]:
    """Yield the blocks of one room: its docstring and an entry for each public name."""
    module = importlib.import_module(f"labkit.{room}")
    yield f"## labkit.{room}"
    yield _text(module)
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield f"### {value.__name__}\n\n{_text(value)}"
            for inner, each in vars(value).items():
                if (
                    inspect.isfunction(each)
                    and each.__module__ == value.__name__
                    and not inner.startswith("_")
                ):
                    yield from entry(f"{name}.{inner}", each, 4)
        else:
            yield from entry(name, value, 3)


def entry(name: str, value: Any, level: int) -> Iterator[str]:
    """Yield the heading of a name, its signature, its docstring and, for a class, its methods."""
    yield f"{'#' * level} {name}"
    if callable(value):
        keyword = "class" if inspect.isclass(value) else "def"
        yield f"```python\n{keyword} {name.rpartition('.')[2]}{_signature(value)}\n```"
        yield _text(value)
    elif isinstance(value, Mapping):
        yield f"One entry for each of {', '.join(f'`{key}`' for key in value)}."
    else:
        yield f"`{value!r}`"
    if inspect.isclass(value):
        for method, each in vars(value).items():
            if inspect.isfunction(each) and not method.startswith("_") and each.__doc__:
                yield f"```python\ndef {method}{_signature(each)}\n```\n\n{_text(each)}"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # of a class that Python makes
        return "(…)"


def _text(value: Any) -> str:
    return (inspect.getdoc(value) or "").replace("*", r"\*")
