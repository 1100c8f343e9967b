"""The text of an answer: what of a cell is run, and what a task does not allow in it.

The check in the notebook, the grader and `labkit collect` read an answer by these functions, so that they
judge the same text.
"""

from __future__ import annotations

import ast
import symtable

from labkit.checks.exercise import Exercise
from labkit.text import lines_of

LAB = "labkit"
Import = ast.Import | ast.ImportFrom
LOOPS = ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
OF_CHECKS = "check", "hint", "answer", "whose"  # what a cell calls, and an answer does not need


def runnable(text: str) -> str:
    """Return a cell's text without its calls of `check` and the imports for them; lines keep their numbers.

    The check would otherwise run itself. A text that is not Python is returned as it is.
    """
    tree = parsed(text)
    if tree is None:
        return text
    lines = lines_of(text)
    for node in tree.body:
        if _is_for_checks(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def parsed(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it is not Python, or too deep for the parser."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_for_checks(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith(f"{LAB}.exercises") and all(
            alias.name in OF_CHECKS for alias in node.names
        )
    value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.Expr) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) in OF_CHECKS


def imports_of_lab(text: str, prelude: str) -> str:
    """Return the import of labkit in an answer that its task does not bring; empty if there is none."""
    tree, prelude_tree = parsed(text), parsed(prelude)
    if tree is None or prelude_tree is None:
        return ""
    known = {ast.unparse(node) for node in _all_imports(prelude_tree)}
    for node in _all_imports(tree):
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        if (module or "").partition(".")[0] == LAB and ast.unparse(node) not in known:
            return ast.unparse(node)
    return ""


def _all_imports(tree: ast.Module) -> list[Import]:
    """Return the imports in a tree, also inside functions, one for each name."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, Import)]
    return [single for node in nodes for single in single_imports(node)]


def single_imports(node: Import) -> list[Import]:
    """Return an import as several, one for each name."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]


def against_task(text: str, exercise: Exercise) -> str:
    """Return what the task rules out and an answer does, though its results are right; empty if nothing."""
    if not (exercise.without_loops or exercise.must_use):
        return ""
    tree = parsed(text)
    parts = [] if tree is None else _parts_used(tree, exercise.name)
    nodes = [node for part in parts for node in ast.walk(part)]
    loops = [node.lineno for node in nodes if isinstance(node, LOOPS)]
    if exercise.without_loops and loops:
        line = lines_of(text)[loops[0] - 1].strip()
        return (
            f"the results are right, but it loops at line {loops[0]}: `{line}`. The task says: without a "
            "loop. Write products and sums of whole arrays"
        )
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for names in exercise.must_use:
        name, *others = names.split(" or ")
        if nodes and not used & {name, *others}:
            return f"the results are right, but it does not use `{name}`, and the task says: with `{name}`"
    return ""


def _parts_used(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the last statement that defines a name, and those of the names that it uses, and so on.

    When a function is called, it sees the last definition of a name in the cell; a statement sees the last
    one above it. A function's local variables do not count.
    """
    bound = [bound_names(ast.Module([node], [])) for node in tree.body]
    used: list[ast.stmt] = []
    waiting = [(name, len(tree.body))]
    while waiting:
        wanted, end = waiting.pop()
        number = next((number for number in reversed(range(end)) if wanted in bound[number]), None)
        if number is None or tree.body[number] in used:
            continue
        part = tree.body[number]
        used.append(part)
        now, later = _names_in(part)
        waiting += [*((each, number) for each in now), *((each, len(tree.body)) for each in later)]
    return used


def _names_in(part: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement uses when it runs, and those that its functions use when called."""
    try:
        table = symtable.symtable(ast.unparse(part), "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # `ast.unparse` fails for some f-strings and for very long expressions.
        return set(), {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    now = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    return now, global_names(table)


def global_names(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that the functions and classes in a table use."""
    names: set[str] = set()
    for child in table.get_children():
        own = {symbol.get_name() for symbol in child.get_symbols() if symbol.is_global()}
        names |= own | global_names(child)
    return names


def names_used(text: str, prelude: str) -> list[str]:
    """Return the names that a text uses and neither defines itself nor gets from the prelude of its task.

    Of a text that is not Python, there are none.
    """
    tree, prelude_tree = parsed(text), parsed(prelude)
    if tree is None or prelude_tree is None:
        return []
    known = bound_names(tree) | bound_names(prelude_tree)
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(used) if name not in known]


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that the statements at the top of a text define."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.alias):
                names.add((part.asname or part.name).partition(".")[0])
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
    return names
