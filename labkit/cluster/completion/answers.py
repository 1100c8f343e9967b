"""The answer to a request: completions at the cursor, or the help of what stands there."""

from __future__ import annotations

import builtins
import keyword
import os
import re
from collections.abc import Mapping
from typing import Any

from labkit.cluster.completion import modules
from labkit.cluster.completion.cursor import CursorPlace, expressions_at, place_in
from labkit.cluster.completion.objects import kind_of
from labkit.cluster.completion.scope import Scope, Source, module_named, statements_of
from labkit.cluster.completion.things import HIDDEN, Thing

MOST_MATCHES = 1000
MOST_CHARACTERS = 50_000  # of a page
PARAMETER = re.compile(r"\s*(\*{0,2})(\w+)")


def completions(code: str, cursor: int, names: Mapping[str, Source]) -> dict[str, Any]:
    """Return what could stand at the cursor, as `matches`: pairs of a text and its kind.

    `start` is where the texts begin in the code. `names` are those of the notebook's ranks.
    """
    place = place_in(code[:cursor])
    kinds = matches_for(place, code, cursor, names)
    matches = [
        (name, kind)
        for name, kind in kinds.items()
        if name.startswith(place.word) and (place.word.startswith(HIDDEN) or not name.startswith(HIDDEN))
    ]
    matches.sort(
        key=lambda match: (not match[0].endswith("="), match[0].startswith(HIDDEN), match[0].lower())
    )
    return {"matches": matches[:MOST_MATCHES], "start": cursor - len(place.word)}


def matches_for(place: CursorPlace, code: str, cursor: int, names: Mapping[str, Source]) -> dict[str, str]:
    """Return the names that fit a place, and the kind of each."""
    if place.kind == "import":
        return dict.fromkeys(modules.submodules(place.expression), "module")
    if place.kind == "text":
        return files_in(place.expression)
    kinds: dict[str, str] = {}
    if place.kind == "from":
        module = module_named(place.expression)
        kinds = dict.fromkeys(modules.submodules(place.expression), "module")
        return kinds | (module.names() if module is not None else {})
    if place.kind == "name":
        return matches_for_name(place, Scope(names, *statements_of(code, cursor)), names)
    value = Scope(names, *statements_of(code, cursor)).value_of_text(place.expression)
    if value is not None and place.kind == "attribute":
        kinds = value.names()
    elif value is not None:
        kinds = dict.fromkeys(value.keys(), "dict key")
    return kinds


def matches_for_name(place: CursorPlace, scope: Scope, names: Mapping[str, Source]) -> dict[str, str]:
    """Return all names that are seen, Python's words, and the parameters of the function that is called."""
    kinds = dict.fromkeys(keyword.kwlist, "keyword")
    kinds |= {name: kind_of(value) for name, value in vars(builtins).items()}
    for name, source in names.items():
        if name.startswith(place.word):
            kinds[name] = (source() or Thing()).kind
    kinds |= scope.defined_names()
    function = scope.value_of_text(place.calls[-1]) if place.calls else None
    if function is not None:
        kinds |= dict.fromkeys(keywords_of(function.signature), "param")
    return kinds


def keywords_of(signature: str) -> list[str]:
    """Return the parameters that can be given by name, each with its `=`."""
    inner, _, _ = signature.partition(" -> ")
    parts = split_at_commas(inner.strip()[1:-1])
    if "/" in parts:
        parts = parts[parts.index("/") + 1 :]
    keywords = []
    for part in parts:
        match = PARAMETER.match(part)
        if match and not match[1]:
            keywords.append(f"{match[2]}=")
    return keywords


def split_at_commas(text: str) -> list[str]:
    """Return the parts of a text between the commas that no bracket and no quotation mark encloses."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def files_in(folder: str) -> dict[str, str]:
    """Return the files of a folder, and its folders with a slash."""
    try:
        entries = list(os.scandir(os.path.expanduser(folder) or "."))
    except (OSError, ValueError):
        return {}
    return {f"{entry.name}/" if entry.is_dir() else entry.name: "path" for entry in entries}


def help_at(code: str, cursor: int, detail: int, names: Mapping[str, Source]) -> str:
    """Return the help of what stands at the cursor; empty if nothing is known.

    An argument is helped with only if it is a function, a class or a module: else the help of the function
    whose bracket is open is more useful.
    """
    scope = Scope(names, *statements_of(code, cursor))
    inside_call = bool(place_in(code[:cursor]).calls)
    others = []
    for expression in expressions_at(code, cursor):
        value = scope.value_of_text(expression)
        page = value.page() if value is not None else None
        if value is None or page is None:
            continue
        text = page.text(expression, detail)[:MOST_CHARACTERS]
        if value.kind in ("function", "class", "module", "property") or not inside_call:
            return text
        others.append(text)
    return others[0] if others else ""
