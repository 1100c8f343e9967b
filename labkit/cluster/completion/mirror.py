"""What the notebook's kernel knows of the ranks' names if no rank answers.

Before `connect()` these are the names that it will define. After it, a copy of the ranks' names and types
from the last moment in which no cell ran. The kernel loads no MPI: mpi4py's methods come from the file that
describes them for editors (MPI.pyi).
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from labkit.children import ChildError, run_child
from labkit.cluster.completion.definitions import DefinedClass, DefinedFunction
from labkit.cluster.completion.scope import Scope, Source, module_named
from labkit.cluster.completion.things import Page, Thing

FROM_CONNECT: dict[str, dict[str, Any]] = {
    "comm": {"kind": "instance", "module": "mpi4py.MPI", "name": "Intracomm"},
    "rank": {"kind": "instance", "module": "builtins", "name": "int"},
    "size": {"kind": "instance", "module": "builtins", "name": "int"},
    "MPI": {"kind": "module", "module": "mpi4py.MPI"},
    "np": {"kind": "module", "module": "numpy"},
}


class Mirror:
    """Names of the ranks with descriptions of their values; `on_ranks` makes these."""

    def __init__(self) -> None:
        self.described: Mapping[str, dict[str, Any]] = FROM_CONNECT
        self.of_mpi: dict[str, str] = {}

    def update(self, answer: Mapping[str, Any]) -> None:
        """Take over what a rank has answered."""
        self.described = answer["names"]
        self.of_mpi = answer["mpi"] or self.of_mpi

    def names(self) -> dict[str, Source]:
        """Return the names, each with a function that returns what is known of its value."""
        return {name: self.source(description) for name, description in self.described.items()}

    def source(self, description: Mapping[str, Any]) -> Callable[[], Thing | None]:
        return lambda: thing_from(description, self)


def thing_from(description: Mapping[str, Any], mirror: Mirror) -> Thing | None:
    """Return a value as its description says."""
    kind, module = description["kind"], description["module"]
    if kind == "module":
        return Documented.of(module_named(module) or Thing(), module, "", mirror)
    scope = Scope(mirror.names())
    node = definition_in(description.get("source", ""))
    if kind == "instance":
        if isinstance(node, ast.ClassDef) and module == "__main__":
            value: Thing | None = DefinedClass(node, scope, description["source"]).instance()
            return Instance(value or Thing(), description, mirror)
        module_thing = module_named(module) if module != "__main__" else None
        cls = module_thing.attribute(description["name"]) if module_thing is not None else None
        value = cls.instance() if cls is not None else None
        if module == "mpi4py.MPI" and value is not None:
            value = Documented.of(value, module, description["name"], mirror)
        return Instance(value or Thing(), description, mirror)
    if isinstance(node, ast.ClassDef):
        return DefinedClass(node, scope, description["source"])
    if node is not None:
        return DefinedFunction(node, scope, source=description["source"])
    module_thing = module_named(module)
    value = module_thing.attribute(description["name"]) if module_thing is not None else None
    return value or Signed(description)


def definition_in(source: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition that a text is."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    first = body[0] if body else None
    return first if isinstance(first, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else None


class Signed(Thing):
    """A function or class of which only its signature and docstring are known."""

    is_callable = True

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.kind = description["kind"]
        self.signature = description["signature"]

    def page(self) -> Page:
        return Page(self.kind, self.signature, self.description["documentation"])


class Instance(Thing):
    """An object: what its class has, its attributes, a dict's keys, and the first item of a list for all."""

    def __init__(self, value: Thing, description: Mapping[str, Any], mirror: Mirror) -> None:
        self.value = value
        self.description = description
        self.mirror = mirror

    def names(self) -> dict[str, str]:
        return self.value.names() | dict.fromkeys(self.description.get("stored", ()), "instance")

    def attribute(self, name: str) -> Thing | None:
        thing = self.value.attribute(name)
        return Thing() if thing is None and name in self.description.get("stored", ()) else thing

    def item(self, key: object) -> Thing | None:
        first = self.description.get("item")
        return thing_from(first, self.mirror) if first is not None else self.value.item(key)

    def keys(self) -> Iterable[str]:
        return self.description.get("keys", ())

    def page(self) -> Page:
        page = self.value.page()
        details = tuple((label, text) for label, text in self.description.get("details", ()))
        return Page(self.description["name"], "", page.documentation if page is not None else "", details)


class Documented(Thing):
    """A thing of mpi4py's, with the docstring that a rank has sent: MPI.pyi has none."""

    def __init__(self, thing: Thing, path: str, mirror: Mirror) -> None:
        self.thing = thing
        self.path = path
        self.mirror = mirror
        self.kind = thing.kind
        self.is_callable = thing.is_callable

    @staticmethod
    def of(thing: Thing, module: str, path: str, mirror: Mirror) -> Thing:
        """Return a thing of a module with its docstring; as it is if it is not mpi4py's."""
        return Documented(thing, path, mirror) if module.startswith("mpi4py") else thing

    @property
    def signature(self) -> str:  # type: ignore[override]
        return self.thing.signature

    def names(self) -> dict[str, str]:
        return self.thing.names()

    def attribute(self, name: str) -> Thing | None:
        inner = self.thing.attribute(name)
        return Documented(inner, f"{self.path}.{name}".removeprefix("."), self.mirror) if inner else None

    def result(self) -> Thing | None:
        return self.thing.result()

    def instance(self) -> Thing | None:
        return self.thing.instance()

    def page(self) -> Page | None:
        page = self.thing.page()
        owner, _, name = self.path.rpartition(".")
        classes = [owner, "Intracomm", "Comm"] if owner == "Intracomm" else [owner]
        known = [self.mirror.of_mpi.get(f"{cls}.{name}".removeprefix("."), "") for cls in classes]
        documentation = next(filter(None, known), "")
        if page is None or not documentation:
            return page
        return Page(page.type_name, page.signature, documentation, page.details)


# mpi4py's docstrings are in its compiled module. Without `rc.initialize`, importing it starts no MPI.
PRINT_DOCUMENTATION = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from labkit.cluster.completion.on_ranks import documentation_of_mpi
print(json.dumps(documentation_of_mpi()))
"""
DOCUMENTATION_S = 20.0  # for a process that prints it; it takes half a second


class Preparation:
    """Reads, in a thread, what the mirror needs: NumPy, if the kernel has not imported it, and MPI.pyi.

    `of_mpi`: mpi4py's docstrings, which a process of its own prints if no rank has sent them.
    """

    def __init__(self) -> None:
        self.of_mpi: dict[str, str] = {}
        self.is_done = threading.Event()
        self.has_begun = False

    def start(self) -> None:
        """Begin, if that has not happened yet."""
        if not self.has_begun:
            self.has_begun = True
            threading.Thread(target=self.read, name="labkit-completion-prepares", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait until all is read, but not longer than this; not at the first request, which begins it."""
        if self.has_begun:
            self.is_done.wait(max(0.0, seconds))

    def read(self) -> None:
        """Read both. A kernel in which nobody asks never does."""
        try:
            module_named("mpi4py.MPI")
            importlib.import_module("numpy.random")
        finally:
            self.is_done.set()
        with suppress(ChildError, OSError, ValueError):
            command = [sys.executable, "-P", "-c", PRINT_DOCUMENTATION]
            self.of_mpi = json.loads(run_child(command, deadline_s=DOCUMENTATION_S).stdout)
