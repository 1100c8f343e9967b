"""Copies of mpiwatch, and of those modules of labkit that a job in a sandbox imports. It sees no others.

The others hold the references, and functions that do an exercise by themselves.
"""

from __future__ import annotations

import ast
import compileall
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from py_compile import PycInvalidationMode

import mpiwatch
from labkit.checks.exercise import Case, Exercise

SOURCES = Path(__file__).resolve().parents[2]
PACKAGE = "labkit"
JOB = "labkit.checks.job"
RANKS = "labkit.checks.sandboxed_ranks"  # forks the ranks of a job on ranks
EVERYTHING = "*"  # stands for all names of a module
NOTHING = ""  # for none: the module itself is imported


def copies_for_job(exercise: Exercise, cases: Sequence[Case], folder: Path) -> dict[str, Path]:
    """Return folders in this one with what a job of this exercise imports; make those that are not there.

    All jobs share that of mpiwatch, and all jobs of an exercise that of labkit's modules. They hold compiled
    modules, too: a job cannot write there, so each of its processes would compile all of them.
    """
    name = f"{exercise.reference.__module__}.{exercise.name}"
    return {
        "labkit": _made(folder / name, lambda part: copy_for_job(exercise, cases, part)),
        "mpiwatch": _made(folder / "mpiwatch", copy_mpiwatch),
    }


def _made(place: Path, copy: Callable[[Path], None]) -> Path:
    """Return a folder; let `copy` fill it if it is not there. Several judges may do this at once."""
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=place.parent))
        part.chmod(0o755)  # the user of a sandbox that root has made reads it
        copy(part)
        compileall.compile_dir(part, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        with suppress(OSError):  # another judge was quicker
            part.rename(place)
        shutil.rmtree(part, ignore_errors=True)
    return place


def copy_mpiwatch(folder: Path) -> None:
    """Copy mpiwatch to a folder."""
    package = Path(mpiwatch.__file__).parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def copy_for_job(exercise: Exercise, cases: Sequence[Case], folder: Path) -> None:
    """Copy to a folder those modules of labkit that a job of this exercise imports."""
    # The job begins with its own program and with what the exercise gives it: pickles hold modules' names.
    pickled = pickle.dumps((list(cases), exercise.wrap, exercise.digest))
    names = {name.decode() for name in re.findall(rb"labkit(?:\.\w+)+", pickled)}
    names.add(JOB)
    if exercise.on_ranks:
        names.add(RANKS)
    copy_modules(sorted(names), exercise.prelude, folder)


def copy_modules(modules: Sequence[str], prelude: str, folder: Path) -> None:
    """Copy these modules, and all of labkit that they and the prelude import, to a folder.

    Of a package, what no other module imports from it stays behind.
    """
    imported: dict[str, set[str]] = {}  # of each module, which of its names others import
    waiting = [(module, EVERYTHING) for module in modules]
    waiting += _imports(ast.parse(prelude))
    while waiting:
        module, name = waiting.pop()
        path = _file_of(module)
        if path is None or name in imported.get(module, ()):
            continue
        is_new = module not in imported
        imported.setdefault(module, set()).add(name)
        if "." in module:
            waiting.append((module.rpartition(".")[0], NOTHING))
        if path.name == "__init__.py":
            if name not in (NOTHING, EVERYTHING):
                waiting.append((f"{module}.{name}", EVERYTHING))
            waiting += _imports(_reduced(path, imported[module]))
        elif is_new:
            waiting += _imports(ast.parse(path.read_bytes()))
    for module, names in imported.items():
        path = _file_of(module)
        assert path is not None
        copy = folder / path.relative_to(SOURCES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "__init__.py":
            copy.write_text(ast.unparse(_reduced(path, names)))
        else:
            copy.write_bytes(path.read_bytes())


def _file_of(module: str) -> Path | None:
    """Return the file of a module of labkit; None if there is no such module."""
    if module.partition(".")[0] != PACKAGE:
        return None
    place = SOURCES.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the modules of ours that are imported, with the names that are imported from them."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, EVERYTHING) for alias in node.names)


def _reduced(path: Path, names: set[str]) -> ast.Module:
    """Return the lines of a package that import these names of it; all lines if those do not suffice.

    Calls stay, too: by `mpiwatch.register("labkit")`, the lab's own lines stand in no finding.
    """
    tree = ast.parse(path.read_bytes())
    package = ".".join(path.parent.relative_to(SOURCES).parts)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    known = {alias.asname or alias.name for node in imports for alias in node.names}
    others = names - known - {NOTHING, EVERYTHING}
    if any(_file_of(f"{package}.{name}") is None for name in others):
        return tree
    calls = [node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    called = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    for node in imports:
        node.names = [alias for alias in node.names if (alias.asname or alias.name) in names | called]
    needed: list[ast.stmt] = [node for node in imports if node.names]
    modules = [node for node in tree.body if isinstance(node, ast.Import)]
    needed += [node for node in modules if any(alias.name in called for alias in node.names)]
    tree.body = [*needed, *calls]
    return tree
