"""The statements of a student's cell, and which of them a function needs, so that it works elsewhere."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from labkit.checks import answers
from labkit.checks.exercise import Exercise
from labkit.text import lines_of

CELL_NUMBER = re.compile(r"# cell \[\d+\]")
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


def statements(text: str) -> list[Statement]:
    """Return the statements of a cell in their order. Raise SyntaxError or ValueError if it is not Python."""
    nodes = ast.parse(text).body
    lines = lines_of(text)
    collected = []
    end = 0  # of the statement before, as a number of lines
    uses = Counter(line for node in nodes for line in {node.lineno, node.end_lineno})
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            # One statement for each name: the program imports only what it uses.
            if getattr(node, "module", "") != "__future__":
                collected += [
                    _statement(ast.unparse(single_import), single_import)
                    for single_import in answers.single_imports(node)
                ]
            end = node.end_lineno or end
            continue
        first = (
            min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]) - 1
        )
        while first > end and lines[first - 1].startswith("#") and not CELL_NUMBER.match(lines[first - 1]):
            first -= 1
        end = node.end_lineno or first
        while end < len(lines) and re.match(r"\s+#", lines[end]):  # a comment that ends a function
            end += 1
        shares_a_line = max(uses[node.lineno], uses[node.end_lineno]) > 1  # as in a = 1; b = 2
        part = ast.unparse(node) if shares_a_line else "\n".join(lines[first:end])
        value = getattr(node, "value", None)
        if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "check"):  # not f = check(f)
            collected.append(_statement(part, node))
    return collected


def _statement(text: str, node: ast.stmt) -> Statement:
    table = symtable.symtable(text, "<cell>", "exec")
    symbols = table.get_symbols()
    binds = frozenset(symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
    parts = [] if isinstance(node, Definition) else list(ast.walk(node))
    updated = {ast.unparse(part.target) for part in parts if isinstance(part, ast.AugAssign)}
    referenced = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    now = frozenset(referenced | (updated & binds))  # x += 1 needs the x above it
    changes = frozenset(filter(None, map(_changed, parts))) - binds
    tree = ast.parse(ast.unparse(node))
    for inner in ast.walk(tree):
        if isinstance(inner, Definition | ast.AsyncFunctionDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return Statement(
        text, binds, changes, now, frozenset(answers.global_names(table)), ast.dump(tree), type(node)
    )


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


def needed(exercise: Exercise, text: str, defined_elsewhere: frozenset[str] = frozenset()) -> list[Statement]:
    """Return the statements of an answer, after the exercise's prelude, that its function needs.

    Raise NotCarried if it needs a name that nothing defines, or if the exercise has changed since.
    """
    if not text:
        raise NotCarried("the exercise has changed since you wrote it; check yours again")
    try:
        of_student = statements(text)
    except (SyntaxError, ValueError, RecursionError):
        raise NotCarried("the kept answer is damaged; check yours again") from None
    # The program has its own versions of the lab's functions, so it needs no import of labkit for them.
    of_student = [
        statement
        for statement in of_student
        if not (_is_import_of_lab(statement) and statement.binds <= defined_elsewhere)
    ]
    bound = frozenset().union(*(statement.binds for statement in of_student))
    of_prelude = [statement for statement in statements(exercise.prelude) if not statement.binds & bound]
    everything = of_prelude + of_student
    if exercise.name not in bound:
        raise NotCarried("the kept answer is damaged; check yours again")
    wanted = [exercise.name]
    seen = set[str]()
    indices = set[int]()
    while wanted:
        name = wanted.pop()
        if name in seen or (name in defined_elsewhere and name not in bound):
            continue
        seen.add(name)
        defining = definitions(name, everything)
        if not defining and not hasattr(builtins, name):
            raise NotCarried(f"it uses `{name}`, which its cell does not define")
        indices |= set(defining)
        wanted += [other for index in defining for other in everything[index].now | everything[index].later]
    return [everything[index] for index in sorted(indices)]


def _is_import_of_lab(statement: Statement) -> bool:
    return statement.is_import and modules(statement.text) == {"labkit"}


def definitions(name: str, candidates: Sequence[Statement]) -> list[int]:
    """Return where a name is last defined, what that builds on, and what changes the object of this name."""
    indices = list[int]()
    is_defined = False
    for index in reversed(range(len(candidates))):
        statement = candidates[index]
        if name in statement.binds:
            # A change of an imported module, such as np.random.seed(0), is none of the function's own.
            indices = [index] if statement.is_import else [*indices, index]
            is_defined = True
            if name not in statement.now:
                break
        elif name in statement.changes:
            indices.append(index)
    return indices if is_defined else []


def modules(text: str) -> set[str]:
    """Return the packages that a statement imports, also inside functions."""
    packages = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or ".").partition(".")[0])
    return packages
