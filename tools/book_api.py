"""The book's API pages: the public names of each package, with their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, get_origin

from labkit import plots

# The packages whose names notebooks and programs import, in the order of a training run, by the page of each.
TOP_PACKAGES = {
    package: f"labkit.{package}"
    for package in (
        "data",
        "nn",
        "schedules",
        "comm",
        "train",
        "cluster",
        "exercises",
        "reports",
        "plots",
    )
} | {"mpiwatch": "mpiwatch"}
MODULES = {
    "nn": ["lr_schedules"],
    "plots": [found.name for found in pkgutil.iter_modules(plots.__path__)],
}
HEAD = """\
# API

The names that each package exports, in the order of a training run. Shapes and dtypes, units and errors are
part of each entry.

| Package | What it holds |
|---|---|
"""
WIDTH = 90  # columns of a signature, beyond which each parameter gets a line of its own


def pages() -> dict[str, str]:
    """Return the Markdown of each page under its name: `index`, which lists the packages, and theirs."""
    packages = {package: "\n\n".join(of_package(package)) + "\n" for package in TOP_PACKAGES}
    return {"index": HEAD + "\n".join(map(_row, TOP_PACKAGES)) + "\n", **packages}


def of_package(package: str) -> Iterator[str]:
    """Yield the blocks of one package: its docstring and an entry for each public name."""
    module = importlib.import_module(TOP_PACKAGES[package])
    yield f"# {TOP_PACKAGES[package]}"
    yield _text(module)
    for name in public_names(module):
        value = getattr(module, name)
        yield from entry(name, value, 2)
    for found in MODULES.get(package, ()):  # notebooks import them
        yield from of_module(importlib.import_module(f"labkit.{package}.{found}"))


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a package exports: its `__all__`, or what its `__init__` imports and defines."""

    def is_exported(name: str, value: Any) -> bool:
        ours = str(getattr(value, "__module__", "labkit")).startswith(("labkit", "mpiwatch"))
        return not name.startswith("_") and (ours or get_origin(value) is not None)

    if hasattr(module, "__all__"):
        return list(module.__all__)
    public = (name for name, value in vars(module).items() if is_exported(name, value))
    return sorted(name for name in public if not inspect.ismodule(vars(module)[name]))


def of_module(module: ModuleType) -> Iterator[str]:
    """Yield the blocks of a module inside a package: its docstring and an entry for each public function."""
    yield f"## {module.__name__}\n\n{_text(module)}"
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield from entry(f"{module.__name__.rpartition('.')[2]}.{name}", value, 3)


def entry(name: str, value: Any, level: int) -> Iterator[str]:
    """Yield the heading of a name, its signature, its docstring and, for a class, its methods."""
    yield f"{'#' * level} {name}"
    if get_origin(value) is not None:  # a name for a type, such as a kind of callback
        yield f"`{str(value).replace('typing.', '').replace('collections.abc.', '')}`"
    elif callable(value):
        keyword = "class" if inspect.isclass(value) else "def"
        yield _signature(f"{keyword} {name.rpartition('.')[2]}", value)
        yield _text(value)
    elif isinstance(value, Mapping):
        yield f"One entry for each of {', '.join(f'`{key}`' for key in value)}."
    else:
        yield f"`{value!r}`"
    if inspect.isclass(value):
        for method, member in vars(value).items():
            if not method.startswith("_") and member.__doc__:
                yield from _member(method, member)


def _member(name: str, value: Any) -> Iterator[str]:
    """Yield the entry of a method or property of a class; nothing for other attributes."""
    if inspect.isfunction(value):
        yield f"{_signature(f'def {name}', value)}\n\n{_text(value)}"
    elif isinstance(value, (classmethod, staticmethod)):
        decorator = f"@{type(value).__name__}"
        yield f"{_signature(f'{decorator}{chr(10)}def {name}', value.__func__)}\n\n{_text(value)}"
    elif isinstance(value, property):
        yield f"`{name}`: {_text(value)}"


class _Plain(str):
    """An annotation that is printed without quotes, as it stands in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(head: str, value: Any) -> str:
    """Return the block of code that shows how a function or class is called."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of a class that Python makes
        return f"```python\n{head}(…)\n```"
    parameters = [
        parameter.replace(annotation=_plain(parameter.annotation), default=_named(parameter.default))
        for parameter in signature.parameters.values()
    ]
    signature = signature.replace(
        parameters=parameters, return_annotation=_plain(signature.return_annotation)
    )
    text = f"{head}{signature}"
    if len(text) > WIDTH:
        result = str(signature.replace(parameters=[])).removeprefix("()")
        lines = "".join(f"    {parameter},\n" for parameter in _with_marks(parameters))
        text = f"{head}(\n{lines}){result}"
    return f"```python\n{text}\n```"


def _with_marks(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield the parameters as text, with the `*` before those that have no position."""
    has_star = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            has_star = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield str(parameter)


def _plain(annotation: Any) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)  # a NamedTuple's annotations are references
    return _Plain(text) if isinstance(text, str) else annotation


def _named(default: Any) -> Any:
    return _Plain(default.__name__) if inspect.isfunction(default) else default


def _row(package: str) -> str:
    text = _text(importlib.import_module(TOP_PACKAGES[package]))
    return f"| [{TOP_PACKAGES[package]}]({package}.md) | {' '.join(text.split(chr(10) * 2)[0].split())} |"


def _text(value: Any) -> str:
    return (inspect.getdoc(value) or "").replace("*", r"\*")
