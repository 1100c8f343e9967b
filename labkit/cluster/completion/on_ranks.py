"""Answers on a rank: in a thread beside its cells, so that they come while a cell runs, too.

The thread calls no MPI and changes nothing; it reads the names that cells have defined so far.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Mapping
from typing import Any

from labkit.cluster.completion import answers
from labkit.cluster.completion.objects import (
    Live,
    class_of_mpi4py,
    dict_of,
    dict_of_class,
    documentation_of,
    function_of,
    is_class,
    is_wrapped_comm,
    kind_of,
    module_of,
    name_of,
    page_of,
)
from labkit.cluster.completion.scope import Source

ANSWER = "labkit_answer_request"  # the type of the message
MOST_NAMES = 2000
IPYTHONS = "In", "Out", "exit", "quit", "get_ipython"
MOST_CHARACTERS = 3000  # of a definition in the mirror
ATTEMPTS = 3  # to read names that a cell is changing
LOOK_S = 1.0  # for an answer that is being made, which takes milliseconds
_looking = threading.Lock()  # held while the thread refers to values


def answer(shell: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: `completions`, `help` or `mirror`. Never raise."""
    with _looking:
        try:
            return {"status": "ok", **answer_to(shell, content)}
        except Exception as error:
            return {"status": "error", "error": f"{type(error).__name__}: {error}"}


def let_go_of_values() -> None:
    """Wait, for LOOK_S at most, until the thread refers to no value: what a cell deletes ends with it."""
    if _looking.acquire(timeout=LOOK_S):
        _looking.release()


def answer_to(shell: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    values = values_of(shell)
    if content["kind"] == "mirror":
        mpi = documentation_of_mpi() if content["with_mpi"] else {}
        return {"names": described(values), "mpi": mpi}
    names: dict[str, Source] = {name: functools.partial(Live, value) for name, value in values.items()}
    if content["kind"] == "help":
        return {"help": answers.help_at(content["code"], content["cursor"], content["detail"], names)}
    return answers.completions(content["code"], content["cursor"], names)


def values_of(shell: Any) -> dict[str, Any]:
    """Return the names that cells have defined and their values, without IPython's own."""
    for attempt in range(ATTEMPTS):
        try:
            values = dict(shell.user_ns)
            break
        except RuntimeError:  # a cell has added a name meanwhile
            if attempt == ATTEMPTS - 1:
                raise
    return {
        name: value
        for name, value in values.items()
        if type(name) is str and not name.startswith("_") and name not in IPYTHONS
    }


def described(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the notebook's mirror needs of each name: a module, a type, or a definition as text."""
    return {name: description(value) for name, value in list(values.items())[:MOST_NAMES]}


def description(value: Any, with_items: bool = True) -> dict[str, Any]:
    """Return a value's kind, its module and class, and what else help needs of it."""
    if kind_of(value) == "module":
        return {"kind": "module", "module": str(dict_of(value).get("__name__"))}
    if is_class(value) or function_of(value) is not None:
        return description_of_definition(value)
    cls = type(value)
    if is_wrapped_comm(cls):
        cls = class_of_mpi4py(cls)
    source = page_of(cls, is_bound=False).source if module_of(cls) == "__main__" else ""
    fields: dict[str, Any] = {
        "kind": "instance",
        "module": module_of(cls),
        "name": name_of(cls),
        "source": source[:MOST_CHARACTERS],
        "stored": list(dict_of(value))[:MOST_NAMES] if cls is type(value) else [],
        "details": list(page_of(value, is_bound=False).details),
        "keys": list(Live(value).keys()),
    }
    if with_items and cls in (list, tuple) and value:
        fields["item"] = description(value[0], with_items=False)
    return fields


def description_of_definition(value: Any) -> dict[str, Any]:
    """Return what the mirror needs of a function or a class."""
    function = function_of(value)
    page = page_of(value, is_bound=False)
    return {
        "kind": kind_of(value),
        "module": str(dict_of(function).get("__module__") if function is not None else module_of(value)),
        "name": function.__qualname__ if function is not None else name_of(value),
        "source": page.source if len(page.source) <= MOST_CHARACTERS else shortened(page.source),
        "signature": page.signature,
        "documentation": page.documentation[:MOST_CHARACTERS],
    }


def shortened(source: str) -> str:
    """Return the head of a definition with its docstring."""
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, IndexError):
        return ""
    body = getattr(node, "body", [])
    has_docstring = ast.get_docstring(node) is not None  # type: ignore[arg-type]
    node.body = [*(body[:1] if has_docstring else []), ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(node)


def documentation_of_mpi() -> dict[str, str]:
    """Return the docstrings of mpi4py's functions, classes and methods, by their names in its module."""
    mpi = sys.modules.get("mpi4py.MPI")
    docstrings: dict[str, str] = {}
    for name, value in (dict_of(mpi) if mpi is not None else {}).items():
        if is_class(value) and module_of(value) == "mpi4py.MPI":
            for inner, raw in dict_of_class(value).items():
                if not inner.startswith("_"):
                    docstrings[f"{name}.{inner}"] = documentation_of(raw)
        if kind_of(value) in ("class", "function"):
            docstrings[name] = documentation_of(value)
    return docstrings
