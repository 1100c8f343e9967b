"""Keep a student's code away from the references, which are in the same package.

This stops shortcuts, not an attacker: the file with the references is on the student's disk.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOM = "labkit.exercises"


class _Blocker(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if _is_in(fullname, ROOM):
            raise ImportError(_refusal(fullname))
        return None


def allowed_modules(prelude: str) -> list[str]:
    """Return the modules of labkit that an exercise's prelude imports: the student may import them, too."""
    found = []
    for node in ast.walk(ast.parse(prelude)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("labkit.")]


def seal(allowed: Sequence[str]) -> dict[str, Any]:
    """Forget the references, and return the built-in functions for the student's code.

    Its `import` refuses modules of labkit except those `allowed`: they hold what the exercise asks for.
    """
    rooms = {name: vars(module) for name, module in sys.modules.items() if _is_in(name, ROOM)}
    references = [each.reference for names in rooms.values() for each in names.get("EXERCISES", ())]
    for names in rooms.values():
        names.pop("EXERCISES", None)
        for name in [name for name, value in names.items() if any(value is each for each in references)]:
            del names[name]
    for name in rooms:
        del sys.modules[name]
    sys.meta_path.insert(0, _Blocker())

    def guarded(
        wanted: str, names: Any = None, local: Any = None, parts: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        full = [wanted, *(f"{wanted}.{part}" for part in parts or ())]
        if _is_in(wanted, "labkit") and not any(_is_in(each, a) for each in full for a in allowed):
            raise ImportError(_refusal(wanted))
        return __import__(wanted, names, local, parts or (), level)

    return {**vars(builtins), "__import__": guarded}


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _refusal(name: str) -> str:
    return f"{name} cannot be used in this exercise"
