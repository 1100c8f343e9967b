"""Where modules are, and what their texts say, without importing them."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import os
import sys
from pathlib import Path

MOST_BYTES = 2_000_000  # of a module's text


def parsed(file: Path) -> ast.Module:
    """Return a module's text, parsed; an empty module if it cannot be."""
    try:
        if file.stat().st_size > MOST_BYTES:
            return ast.Module([], [])
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def find_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where a module would be imported from. No package is imported for it."""
    places: list[str] | None = list(sys.path)
    spec = None
    for part in name.split("."):
        if places is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations) if spec.submodule_search_locations else None
    return spec


def file_of(name: str) -> Path | None:
    """Return the file with a module's text: the one that describes it for editors (.pyi), if it has one."""
    package, _, last = name.rpartition(".")
    spec = find_module(name)
    if spec is None or not spec.origin:  # mpi4py looks for its compiled module itself
        parent = find_module(package) if package else None
        places = list(parent.submodule_search_locations or ()) if parent is not None else []
        files = [Path(place) / f"{last}.pyi" for place in places]
    else:
        origin = Path(spec.origin)
        files = [origin.with_name(f"{origin.name.partition('.')[0]}.pyi"), origin]
    return next((file for file in files if file.suffix in (".py", ".pyi") and file.exists()), None)


def importable_without_effect(name: str) -> bool:
    """Return whether a module is Python's own and has no text in Python, such as `math`."""
    if name not in sys.stdlib_module_names:
        return False
    spec = find_module(name)
    return name in sys.builtin_module_names or (spec is not None and not str(spec.origin).endswith(".py"))


def submodules(package: str) -> list[str]:
    """Return the names of a package's modules, or of all top-level modules if it is empty."""
    if not package:
        places = [place or os.getcwd() for place in sys.path]
        known = {name for name in sys.builtin_module_names if not name.startswith("_")}
    else:
        module = sys.modules.get(package)
        path = vars(module).get("__path__") if type(module) is type(sys) else None
        spec = find_module(package) if path is None else None
        places = list(path or (spec and spec.submodule_search_locations) or ())
        known = set()
    for place in places:
        known.update(_modules_in(place))
    return sorted(known)


def _modules_in(place: str) -> frozenset[str]:
    try:
        return _modules_at(place, os.stat(place).st_mtime_ns)
    except OSError:
        return frozenset()


@functools.lru_cache(maxsize=100)
def _modules_at(place: str, changed_ns: int) -> frozenset[str]:
    names = set()
    for entry in os.scandir(place):
        name = inspect.getmodulename(entry.name.replace(".pyi", ".py"))
        if name is None and "." not in entry.name and entry.is_dir():
            name = entry.name if os.path.exists(f"{entry.path}/__init__.py") else None
        if name and name.isidentifier() and name != "__init__":
            names.add(name)
    return frozenset(names)
