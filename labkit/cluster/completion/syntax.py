"""What the text of a function or of an annotation says."""

from __future__ import annotations

import ast
from collections.abc import Callable

from labkit.cluster.completion.things import Thing

Function = ast.FunctionDef | ast.AsyncFunctionDef
ValueOf = Callable[[ast.expr], Thing | None]


def signature_of(node: Function, *, is_bound: bool) -> str:
    """Return the parameters and the result of a function as it writes them, without `self` if it is bound."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    parts = [
        parameter(
            argument, arguments.defaults[number - without_default] if number >= without_default else None
        )
        for number, argument in enumerate(positional)
    ]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if is_bound and parts:
        del parts[0]
        if parts[:1] == ["/"]:
            del parts[0]
    if arguments.vararg is not None:
        parts.append(f"*{parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += map(parameter, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg is not None:
        parts.append(f"**{parameter(arguments.kwarg, None)}")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"({', '.join(parts)}){returns}"


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    """Return a parameter as text, with its annotation and its default value."""
    if argument.annotation is None:
        return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"
    text = f"{argument.arg}: {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def annotated(annotation: ast.expr | None, value_of: ValueOf, owner: Thing | None) -> Thing | None:
    """Return what is known of a value with this annotation; `value_of` looks its names up."""
    if annotation is None:
        return None
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):  # `X | None`
        return annotated(annotation.left, value_of, owner) or annotated(annotation.right, value_of, owner)
    if isinstance(annotation, ast.Subscript):
        if last_name(annotation.value) in ("Final", "Optional", "ClassVar", "Annotated"):
            return annotated(annotation.slice, value_of, owner)
        annotation = annotation.value
    if last_name(annotation) == "Self":
        return owner
    annotated_class = value_of(annotation)
    return annotated_class.instance() if annotated_class is not None else None


def last_name(node: ast.expr) -> str:
    """Return `c` of a.b.c, also of `a.b.c(…)`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
