"""`collect`: the student's functions, assembled into one program, my_ddp.py, that needs nothing of the lab.

The program is `my_ddp.template`, in which a line `# <name>` marks the place of an exercise's function. Each
place gets the text that was kept when the student's answer passed its check, cut to what the function needs,
or else the reference, with a comment that says why.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import symtable
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from itertools import groupby
from pathlib import Path
from textwrap import indent
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from labkit import data
from labkit.checks import answers
from labkit.checks.exercise import Exercise
from labkit.exercises import catalogue, record
from labkit.exercises.checking import cell_text, whose
from labkit.files import atomic_write, kept_beside, read_input
from labkit.text import COLUMNS, counted, wrapped
from mpiwatch.sessions import is_cell

TEMPLATE = Path(__file__).with_name("my_ddp.template")
NAME, DIGITS = "my_ddp.py", "digits.npz"
MARK = re.compile(r"^# <(\w+)>$", re.MULTILINE)
IMPORTS = re.compile(r"^import argparse\n(?:.*\n)*?from mpi4py import MPI\n", re.MULTILINE)
CELL_NUMBER = re.compile(r"# cell \[\d+\]")
SIGNED = "\n# Written by `labkit collect`, {}. If you change this file, the next one is written beside it.\n"
LIBRARIES = {"numpy", "mpi4py", *sys.stdlib_module_names}
Definition = ast.FunctionDef | ast.ClassDef


class NotCarried(Exception):
    """A student's answer cannot become a part of the program; the text says why."""


class Statement(NamedTuple):
    """A statement at the top level of a cell, with the comments above.

    It defines the names `binds` and changes what those in `changes` stand for. It needs the names `now` when
    it runs, and `later` when a function that it defines is called. `same` is equal for statements that differ
    only in comments and docstrings.
    """

    text: str
    binds: frozenset[str]
    changes: frozenset[str]
    now: frozenset[str]
    later: frozenset[str]
    same: str
    kind: type[ast.stmt]

    @property
    def is_import(self) -> bool:
        return self.kind in (ast.Import, ast.ImportFrom)


class Piece(NamedTuple):
    """What stands at the place of an exercise: the student's own function, or else the reference and why."""

    exercise: Exercise
    statements: Sequence[Statement]
    why: str = ""


def statements(text: str) -> list[Statement]:
    """Return the statements of a cell in their order. Raise SyntaxError or ValueError if it is not Python."""
    lines, found, end, nodes = text.splitlines(), [], 0, ast.parse(text).body
    uses = Counter(line for node in nodes for line in {node.lineno, node.end_lineno})
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            # One statement for each name: the program imports only what it uses.
            if getattr(node, "module", "") != "__future__":
                found += [_statement(ast.unparse(each), each) for each in answers.single_imports(node)]
            end = node.end_lineno or end
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1
        while first > end and lines[first - 1].startswith("#") and not CELL_NUMBER.match(lines[first - 1]):
            first -= 1
        end = node.end_lineno or first
        while end < len(lines) and re.match(r"\s+#", lines[end]):  # a comment that ends a function
            end += 1
        shares_a_line = max(uses[node.lineno], uses[node.end_lineno]) > 1  # as in a = 1; b = 2
        part = ast.unparse(node) if shares_a_line else "\n".join(lines[first:end])
        value = getattr(node, "value", None)
        if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "check"):  # not f = check(f)
            found.append(_statement(part, node))
    return found


def _statement(text: str, node: ast.stmt) -> Statement:
    table = symtable.symtable(text, "<cell>", "exec")
    symbols = table.get_symbols()
    binds = frozenset(each.get_name() for each in symbols if each.is_assigned() or each.is_imported())
    parts = [] if isinstance(node, Definition) else list(ast.walk(node))
    updated = {ast.unparse(part.target) for part in parts if isinstance(part, ast.AugAssign)}
    referenced = {each.get_name() for each in symbols if each.is_referenced()}
    now = frozenset(referenced | (updated & binds))  # x += 1 needs the x above it
    changes = frozenset(name for part in parts if (name := _changed(part))) - binds
    tree = ast.parse(ast.unparse(node))
    for each in ast.walk(tree):
        if isinstance(each, Definition | ast.AsyncFunctionDef) and ast.get_docstring(each) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return Statement(text, binds, changes, now, frozenset(_globals(table)), ast.dump(tree), type(node))


def _changed(node: ast.AST) -> str:
    """Return `x` for the changes `x[…] = …`, `x.y = …` and `x.append(…)`; empty for anything else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node = node.value.func
    elif not isinstance(getattr(node, "ctx", None), ast.Store):
        return ""
    is_part = isinstance(node, ast.Subscript | ast.Attribute)
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if is_part and isinstance(node, ast.Name) else ""


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that the functions and classes in a table use."""
    found: set[str] = set()
    for child in table.get_children():
        found |= {each.get_name() for each in child.get_symbols() if each.is_global()} | _globals(child)
    return found


def needed(exercise: Exercise, text: str, given: frozenset[str] = frozenset()) -> list[Statement]:
    """Return the statements of an answer, after the exercise's prelude, that its function needs.

    Names that are `given` come from elsewhere. Raise NotCarried if it needs a name that nothing defines, or
    if the exercise has changed since.
    """
    if not text:
        raise NotCarried("the exercise has changed since you wrote it; check yours again")
    try:
        own = statements(text)
    except (SyntaxError, ValueError, RecursionError):
        raise NotCarried("the kept answer is damaged; check yours again") from None
    # The program has its own versions of the lab's functions, so it needs no import of labkit for them.
    of_lab = [each for each in own if each.is_import and _modules(each.text) == {"labkit"}]
    own = [each for each in own if each not in of_lab or not each.binds <= given]
    bound = frozenset().union(*(each.binds for each in own))
    everything = [each for each in statements(exercise.prelude) if not each.binds & bound] + own
    if exercise.name not in bound:
        raise NotCarried("the kept answer is damaged; check yours again")
    wanted, seen, kept = [exercise.name], set[str](), set[int]()
    while wanted:
        name = wanted.pop()
        if name in seen or (name in given and name not in bound):
            continue
        seen.add(name)
        found = _definitions(name, everything)
        if not found and not hasattr(builtins, name):
            raise NotCarried(f"it uses `{name}`, which its cell does not define")
        kept |= set(found)
        wanted += [other for index in found for other in everything[index].now | everything[index].later]
    return [everything[index] for index in sorted(kept)]


def _definitions(name: str, found: Sequence[Statement]) -> list[int]:
    """Return where a name is last defined, what that builds on, and what changes the object of this name."""
    indices, defined = list[int](), False
    for index in reversed(range(len(found))):
        each = found[index]
        if name in each.binds:
            # A change of an imported module, such as np.random.seed(0), is none of the function's own.
            indices, defined = [index] if each.is_import else [*indices, index], True
            if name not in each.now:
                break
        elif name in each.changes:
            indices.append(index)
    return indices if defined else []


def pieces(kept: Mapping[str, str]) -> list[Piece]:
    """Return what stands at each place of the template, given the kept answers by name."""
    template = TEMPLATE.read_text()
    exercises = {name: catalogue.find(name) for name in MARK.findall(template)}
    places = frozenset(exercises)
    parts = {name: each for each in statements(template) for name in each.binds}
    given = places | frozenset(parts)
    references = {name: needed(each, each.text, given) for name, each in exercises.items()}
    # The helpers that belong to the tasks come first: a student's helper of the same name gives way.
    claims = {name: part.same for name, part in parts.items()}
    for name, found in references.items():
        claims |= {bound: each.same for each in found for bound in each.binds - {name}}
    made = []
    for name, exercise in exercises.items():
        why, found = f"not written yet (notebook {exercise.notebook})", references[name]
        if name in kept:
            try:
                own = needed(exercise, kept[name], given)
                new = _fitting(name, own, claims, places)
                why, found, claims = "", own, claims | new
            except NotCarried as error:
                why = f"your answer is left out: {error}"
        made.append(Piece(exercise, found, why))
    return made


def _fitting(
    name: str, own: Sequence[Statement], claims: Mapping[str, str], places: frozenset[str]
) -> dict[str, str]:
    """Return the names that an answer adds to the program. Raise NotCarried if they do not fit into it."""
    new: dict[str, str] = {}
    for each in own:
        if foreign := _modules(each.text) - LIBRARIES:
            raise NotCarried(f"it imports {min(foreign)}, and the program needs only NumPy and mpi4py")
        for bound in each.binds - {name}:
            if bound in places:
                raise NotCarried(f"its cell has a `{bound}` of its own, which is another exercise")
            if claims.get(bound, each.same) != each.same:
                raise NotCarried(
                    f"the program has another `{bound}`; give yours another name and check it again"
                )
            new[bound] = each.same if bound not in new else new[bound] + each.same
        if early := each.now & places:
            raise NotCarried(f"its cell calls `{min(early)}` before the program has defined it")
    return new


def _modules(text: str) -> set[str]:
    """Return the packages that a statement imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return found


def assemble(found: Sequence[Piece]) -> str:
    """Return the text of the program."""
    template = TEMPLATE.read_text()
    imports = {each.text for each in statements(template) if each.is_import}
    by_name, placed = {piece.exercise.name: piece for piece in found}, set[str]()

    def place(match: re.Match[str]) -> str:
        piece, text = by_name[match[1]], ""
        for each in piece.statements:
            if each.is_import:
                imports.add(each.text)
            elif each.same not in placed:
                placed.add(each.same)
                text += ("\n\n\n" if each.kind in (ast.FunctionDef, ast.ClassDef) else "\n") * bool(text)
                if piece.why and match[1] in each.binds:
                    text += indent(wrapped(f"Reference: {piece.why}.", COLUMNS), "# ") + "\n"
                text += each.text
        return text

    text = MARK.sub(place, template)
    blocks: list[list[str]] = [[], []]  # the standard library's, then NumPy and mpi4py
    for line in sorted(imports, key=lambda line: (line.startswith("from"), line)):
        blocks[bool(_modules(line) & {"numpy", "mpi4py"})].append(f"{line}\n")
    return _signed(IMPORTS.sub(lambda match: "\n".join("".join(block) for block in blocks), text, count=1))


def _signed(text: str) -> str:
    """Return a program with the line that shows later whether the student has changed it."""
    return text + SIGNED.format(sha256(text.encode()).hexdigest()[:8])


def collect(folder: str | Path = ".") -> None:
    """Write my_ddp.py and its digits to a folder, and print which of its functions are the student's own."""
    kept = record.kept()
    found = pieces(kept)
    text, target = assemble(found), Path(folder) / NAME
    try:
        lines = []
        old = read_input(target).decode(errors="replace") if target.exists() else text
        if old not in (text, _signed(old.rpartition("\n# Written by ")[0])):
            lines.append(f"You have changed {NAME}: your version is now {kept_beside(target)}.")
        for path, content in {target: text.encode(), target.with_name(DIGITS): _digits()}.items():
            if not path.exists() or read_input(path) != content:
                with atomic_write(path) as file:
                    file.write(content)
    except OSError as error:
        name = Path(error.filename).name if isinstance(error.filename, str) else NAME
        raise OSError(f"{name} cannot be written to {Path(folder).resolve()}: {error.strerror}.") from None
    own = [piece.exercise.name for piece in found if not piece.why]
    others = [piece for piece in found if piece.why]
    reached = max((piece.exercise.notebook for piece in found if piece.exercise.name in kept), default="")
    later = [piece for piece in others if piece.exercise.notebook > reached]
    length = counted(len(text.splitlines()), "line")
    lines.append(f"{NAME}: {length}, {len(own)} of its {len(found)} functions are yours.")
    lines += [wrapped(f"Yours: {', '.join(own)}.", COLUMNS)] * bool(own)
    begun = sorted((piece for piece in others if piece not in later), key=lambda piece: piece.why)
    for why, same in groupby(begun, key=lambda piece: piece.why):
        names = ", ".join(piece.exercise.name for piece in same)
        lines.append(wrapped(f"Reference, {why}: {names}.", COLUMNS))
    if later:
        notebooks = {piece.exercise.notebook for piece in later}
        span = " to ".join(sorted({min(notebooks), max(notebooks)}))
        lines.append(f"Reference, not written yet (notebooks {span}): {counted(len(later), 'function')}.")
    print(*lines, f"Run it: mpiexec -n 4 python {target}", sep="\n")


def _digits() -> bytes:
    """Return the file of all digits: pixels (n, 64), 0 … 16, and labels (n,), both uint8."""
    digits, file = data.digits(), BytesIO()
    test = np.arange(len(digits.y_train) + len(digits.y_test)) % 5 == 4
    pixels, labels = np.empty((test.size, 64), np.uint8), np.empty(test.size, np.uint8)
    pixels[test], pixels[~test] = 16 * digits.x_test, 16 * digits.x_train
    labels[test], labels[~test] = digits.y_test, digits.y_train
    np.savez_compressed(file, pixels=pixels, labels=labels)
    return file.getvalue()


def own(name: str) -> tuple[Callable[..., Any], bool]:
    """Return the function of an exercise, and whether it is the student's own, kept when it passed its check.

    Otherwise it is the reference.
    """
    exercise, kept, is_own = catalogue.find(name), record.kept(), True
    try:
        found = needed(exercise, kept[name])
    except (KeyError, NotCarried):
        found, is_own = needed(exercise, exercise.text), False
    names: dict[str, Any] = {"__name__": f"<answer of {name}>"}
    for each in found:
        exec(each.text, names)
    function: Callable[..., Any] = names[name]
    return function, is_own


def to_ranks(view: Any, *functions: Callable[..., Any]) -> None:
    """Define functions of the notebook on the engines of a view, with what they need of their cells.

    That is imports, constants, and other functions, also of other cells. What a cell prints or computes
    besides is not repeated.
    """
    references = {each.__name__: each for each in functions if whose(each) != "your"}
    view.push(references, block=True)
    own = [each for each in functions if each.__name__ not in references]
    view.execute(code_of(*own), block=True)


def code_of(*functions: Callable[..., Any]) -> str:
    """Return the code of functions that cells define, with what they need of these and other cells."""
    cells: dict[str, list[Statement]] = {}  # by the name of the cell's file
    waiting = [inspect.unwrap(each) for each in functions]
    for function in waiting:
        file = function.__code__.co_filename
        if file not in cells:
            cells[file] = statements(answers.runnable(cell_text(function)))
        found = [each for each in cells[file] if function.__name__ in each.binds]
        for name in {name for each in found for name in each.now | each.later}:
            value = function.__globals__.get(name)
            other = inspect.unwrap(value) if callable(value) else None
            if (
                isinstance(other, FunctionType)
                and is_cell(other.__code__.co_filename)
                and other not in waiting
            ):
                waiting.append(other)
    everything = [each for file in reversed(cells) for each in cells[file]]  # helpers first
    kept, names = set[int](), [each.__name__ for each in waiting]
    for name in names:
        new = set(_definitions(name, everything)) - kept
        kept |= new
        names += [other for k in new for other in everything[k].now | everything[k].later]
    return "\n\n".join(everything[index].text for index in sorted(kept))
