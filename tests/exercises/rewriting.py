"""Rewrite syntax trees by examples: a pattern such as `A @ B`, and what replaces it, `np.matmul(A, B)`.

A name of one capital letter stands for any expression; X, Y and Z stand for arrays. In a call, `*R` stands
for the remaining arguments, and `**K` for the remaining named ones.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.checks.exercise import Exercise

Parts = dict[str, Any]  # what the letters of a pattern stand for: an expression, or a list of arguments
Rules = Sequence[tuple[str, str]]
Transformation = Callable[[ast.Module, Exercise], None]
MODULES = "np", "math", "MPI", "hashlib", "comm"  # no pattern takes these for a value with methods
ARRAY_MAKERS = {
    *("zeros", "empty", "ones", "full", "zeros_like", "empty_like", "ones_like", "arange", "array"),
    *("concatenate", "stack", "cumsum", "pad"),
}


def expression(text: str, parts: Mapping[str, Any]) -> ast.expr:
    """Return the expression of a template, whose letters are replaced by these parts."""
    return _filled(ast.parse(text, mode="eval").body, parts)


def statements(text: str, parts: Mapping[str, Any]) -> list[ast.stmt]:
    """Return the statements of a template; a line with the name of a list of statements stands for these."""
    return _filled(ast.parse(text), parts).body


def _filled(template: Any, parts: Mapping[str, Any]) -> Any:
    return _Filler(parts).visit(template)


class _Filler(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> Any:
        part = self.parts.get(node.id, node)
        return ast.Name(part, node.ctx) if isinstance(part, str) else copy.deepcopy(part)

    def visit_Expr(self, node: ast.Expr) -> Any:
        part = self.parts.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return copy.deepcopy(part) if isinstance(part, list) else self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        part = self.parts.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return copy.deepcopy(part) if isinstance(part, list) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            name = keyword.value.id if isinstance(keyword.value, ast.Name) else ""
            is_list = keyword.arg is None and name in self.parts
            keywords += copy.deepcopy(self.parts[name]) if is_list else [self.visit(keyword)]
        node.keywords = []
        self.generic_visit(node)
        node.keywords = keywords
        return node


def matched(pattern: ast.AST, node: ast.AST, arrays: frozenset[str] = frozenset()) -> Parts | None:
    """Return what the letters of a pattern stand for in a node; None if the node is not of its form."""
    parts: Parts = {}
    return parts if _matches(pattern, node, parts, arrays) else None


def _matches(pattern: Any, node: Any, parts: Parts, arrays: frozenset[str]) -> bool:
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1 and pattern.id.isupper():
        return _letter_matches(pattern.id, node, parts, arrays)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call):
        return _calls_match(pattern, node, parts, arrays)
    if isinstance(pattern, ast.AST):
        fields = [name for name in pattern._fields if name not in ("ctx", "kind", "type_comment")]
        return all(_matches(getattr(pattern, name), getattr(node, name), parts, arrays) for name in fields)
    if isinstance(pattern, list):
        pairs = zip(pattern, node, strict=False)
        return len(pattern) == len(node) and all(_matches(*pair, parts, arrays) for pair in pairs)
    return bool(pattern == node)


def _letter_matches(letter: str, node: Any, parts: Parts, arrays: frozenset[str]) -> bool:
    if not isinstance(node, ast.expr) or (isinstance(node, ast.Name) and node.id in MODULES):
        return False
    if letter in "XYZ" and not is_array(node, arrays):
        return False
    return ast.dump(parts.setdefault(letter, node)) == ast.dump(node)  # equal wherever the letter stands


def _calls_match(pattern: ast.Call, node: ast.Call, parts: Parts, arrays: frozenset[str]) -> bool:
    positional, named = list(pattern.args), list(pattern.keywords)
    arguments, keywords = list(node.args), list(node.keywords)
    if positional and isinstance(positional[-1], ast.Starred):
        rest = positional.pop()
        assert isinstance(rest, ast.Starred)
        letter = ast.unparse(rest.value)
        count = len(positional)
        parts[letter], arguments = arguments[count:], arguments[:count]
    if named and named[-1].arg is None:
        letter = ast.unparse(named.pop().value)
        count = len(named)
        parts[letter], keywords = keywords[count:], keywords[:count]
    return (
        _matches(pattern.func, node.func, parts, arrays)
        and _matches(positional, arguments, parts, arrays)
        and _matches(named, keywords, parts, arrays)
    )


def rewrite(tree: ast.AST, rules: Rules, arrays: frozenset[str] = frozenset()) -> None:
    """Replace all expressions of the forms of some rules; of several rules that fit, the first."""
    patterns = [(ast.parse(old, mode="eval").body, new) for old, new in rules]

    def replaced(node: ast.expr) -> ast.expr:
        for pattern, new in patterns:
            parts = matched(pattern, node, arrays)
            if parts is not None:
                return expression(new, parts)
        return node

    replace_expressions(tree, replaced)


def replace_expressions(tree: ast.AST, replaced: Callable[[ast.expr], ast.expr]) -> None:
    """Replace each expression whose value is used, inner ones first."""

    class Replacer(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            is_used = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            return replaced(node) if is_used else node  # type: ignore[arg-type]

    Replacer().visit(tree)


def replace_statements(tree: ast.AST, replaced: Callable[[ast.stmt], list[ast.stmt]]) -> None:
    """Replace each statement by a list of statements, inner ones first."""
    replace_blocks(tree, lambda block: [new for statement in block for new in replaced(statement)])


def replace_blocks(tree: ast.AST, replaced: Callable[[list[ast.stmt]], list[ast.stmt]]) -> None:
    """Replace each list of statements by another, inner ones first."""
    for node in [*ast.walk(tree)][::-1]:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                setattr(node, name, replaced(block))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    """Return the functions in a tree, the outermost first."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def has_yield(function: ast.AST) -> bool:
    """Tell whether a function is a generator."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's parameters."""
    return [argument.arg for argument in function.args.args]


def new_names(tree: ast.AST, stem: str) -> Iterator[str]:
    """Yield names that the tree does not use: stem_1, stem_2 …"""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    number = 0
    while True:
        number += 1
        if f"{stem}_{number}" not in used:
            yield f"{stem}_{number}"


def load(target: ast.expr) -> ast.expr:
    """Return the target of an assignment as an expression whose value is used."""
    return ast.parse(ast.unparse(target), mode="eval").body


def is_array(node: ast.expr, arrays: frozenset[str]) -> bool:
    """Tell whether an expression is surely an array with at least one axis: of these names, or made anew."""
    if isinstance(node, ast.Name):
        return node.id in arrays
    if isinstance(node, ast.Subscript):  # x[a:b] is an array, x[k] may be a number
        return isinstance(node.slice, ast.Slice) and is_array(node.value, arrays)
    if isinstance(node, ast.BinOp):
        return is_array(node.left, arrays) or is_array(node.right, arrays)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if ast.unparse(node.func.value) == "np":
            return node.func.attr in ARRAY_MAKERS
        return node.func.attr == "copy" and is_array(node.func.value, arrays)
    return False


def arrays_of(tree: ast.AST, known: Sequence[str]) -> frozenset[str]:
    """Return the names that always hold arrays, if these parameters of the first function do."""
    values: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _pairs(target, node.value):
                    values.setdefault(name, []).append(value)
        elif isinstance(node, ast.For | ast.comprehension):
            for name, _ in _pairs(node.target, ast.Constant(None)):
                values.setdefault(name, []).append(None)
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and isinstance(node.target, ast.Name):
            values.setdefault(node.target.id, []).append(None)
    for inner in functions(tree)[1:]:
        for name in parameters(inner):
            values.setdefault(name, []).append(None)
    candidates = frozenset({*known, *values})
    while True:  # leave out names, until what is assigned to each of the others is an array
        left = frozenset(
            name
            for name in candidates
            if all(value is not None and is_array(value, candidates) for value in values.get(name, []))
        )
        if left == candidates:
            return left
        candidates = left


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names in a target, each with what is assigned to it if that is written out."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        is_written = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        for k, part in enumerate(target.elts):
            if is_written:
                yield from _pairs(part, value.elts[k])  # type: ignore[attr-defined]
            else:
                yield from ((name, None) for name, _ in _pairs(part, ast.Constant(None)))
