"""The part of labkit and mpiwatch that a job in a sandbox sees: the modules that it imports, and no others.

The rest holds the references, and functions that do an exercise by themselves.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = "labkit", "mpiwatch"
ALL = "*"


def copy_modules(roots: list[str], prelude: str, folder: Path) -> None:
    """Copy these modules, and all of labkit and mpiwatch that they and the prelude import, to a folder.

    Of a package, what no other module imports from it stays behind.
    """
    names: dict[str, set[str]] = {}  # of each module, which of its names others import
    left = [(root, ALL) for root in roots] + list(_imports(ast.parse(prelude)))
    while left:
        module, name = left.pop()
        path = _path(module)
        if path is None or name in names.get(module, ()):
            continue
        is_new = module not in names
        names.setdefault(module, set()).add(name)
        if "." in module:
            left.append((module.rpartition(".")[0], ""))
        if path.name == "__init__.py":
            left += [(f"{module}.{name}", ALL)] * (name not in ("", ALL))
            left += _imports(_reduced(path, names[module]))
        elif is_new:
            left += _imports(ast.parse(path.read_bytes()))
    for module, wanted in names.items():
        path = _path(module)
        assert path is not None
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "__init__.py":
            target.write_text(ast.unparse(_reduced(path, wanted)))
        else:
            shutil.copy2(path, target)  # with its time: the compiled file holds it
            compiled = Path(importlib.util.cache_from_source(str(path)))
            if compiled.exists():
                there = target.parent / compiled.parent.name
                there.mkdir(exist_ok=True)
                shutil.copy2(compiled, there / compiled.name)


def _path(module: str) -> Path | None:
    """Return the file of a module of labkit or mpiwatch; None if there is no such module."""
    place = ROOT.joinpath(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    return found[0] if found and module.split(".", maxsplit=1)[0] in TOPS else None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the modules of ours that are imported, with the names that are imported from them."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in TOPS:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, ALL) for alias in node.names if alias.name.split(".")[0] in TOPS)


def _reduced(path: Path, wanted: set[str]) -> ast.Module:
    """Return the lines of a package that import the names wanted of it; all lines if those do not suffice."""
    tree = ast.parse(path.read_bytes())
    imported = {alias.asname or alias.name: alias for alias in _aliases(tree)}
    own = {name for name in wanted - imported.keys() - {"", ALL} if _path(f"{_name(path)}.{name}") is None}
    if own:
        return tree
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in wanted]
            kept += [node] if node.names else []
    tree.body = kept
    return tree


def _aliases(tree: ast.Module) -> Iterator[ast.alias]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from node.names


def _name(path: Path) -> str:
    return ".".join(path.parent.relative_to(ROOT).parts)
