"""The names that a cell sees, and the value of an expression as far as it can be known without running it."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labkit.cluster.completion import modules
from labkit.cluster.completion.cursor import Scan
from labkit.cluster.completion.definitions import DefinedClass, DefinedFunction, InstanceOfDefined
from labkit.cluster.completion.objects import InstanceOf, Live, dict_of
from labkit.cluster.completion.syntax import Function, annotated, is_name
from labkit.cluster.completion.things import Page, Thing

DEEPEST = 12  # names that lead to one another: `a = b`, `b = c` …
CONTINUES = re.compile(r"(?:elif|else|except|finally|case)\b|[)\]}]")
Source = Callable[[], Thing | None]


class Scope(ast.NodeVisitor):
    """Names from outside (`outer`: of the rank, or of the mirror) below those that statements define.

    `line` is the line of the cursor: the names of the functions around it are seen, too.

    The methods `visit_…` of statements note the names that a statement defines, each with a function that
    returns what is known of its value; those of expressions return what is known of the value.
    """

    def __init__(self, outer: Mapping[str, Source], body: Sequence[ast.stmt] = (), line: int = 0) -> None:
        self.outer = outer
        self.line = line
        self.depth = 0
        self.sources: dict[str, list[Source]] = {}
        self.kinds: dict[str, str] = {}
        for statement in body:
            self.visit(statement)

    # What can be asked.

    def defined_names(self) -> dict[str, str]:
        """Return the names that the statements define, and the kind of each; empty for what is imported."""
        return dict(self.kinds)

    def defined_value(self, name: str) -> Thing | None:
        """Return the value of a name that the statements define; the last that is known."""
        if self.depth >= DEEPEST:
            return None
        self.depth += 1
        try:
            values = (source() for source in reversed(self.sources.get(name, [])))
            return next((value for value in values if value is not None), None)
        finally:
            self.depth -= 1

    def value_named(self, name: str) -> Thing | None:
        """Return the value of a name."""
        value = self.defined_value(name)
        if value is None and name in self.outer:
            value = self.outer[name]()
        if value is None and name not in self.sources and name in dict_of(builtins):
            value = Live(dict_of(builtins)[name])
        if value is None and name not in self.sources and name in sys.stdlib_module_names:
            value = module_named(name)  # not imported here: in a cell that has not run, or not yet
        return value or (Thing() if name in self.sources else None)

    def value_of(self, node: ast.expr) -> Thing | None:
        """Return what is known of the value of an expression. Nothing is executed."""
        if self.depth >= DEEPEST:
            return None
        self.depth += 1
        try:
            value: Thing | None = self.visit(node)
            return value
        finally:
            self.depth -= 1

    def value_of_text(self, expression: str) -> Thing | None:
        """Return what is known of the value of an expression given as text."""
        try:
            return self.value_of(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def annotated(self, annotation: ast.expr | None) -> Thing | None:
        return annotated(annotation, self.value_of, None)

    # Statements.

    def generic_visit(self, node: ast.AST) -> None:
        """Look for the statements inside one, and for names that `:=` defines in its expressions."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                for inner in ast.walk(child):
                    if isinstance(inner, ast.NamedExpr):
                        self.define_target(inner.target, inner.value)
            else:
                self.visit(child)

    def visit_FunctionDef(self, node: Function) -> None:
        self.add(node.name, "function", lambda: DefinedFunction(node, self))
        self.visit_body(node, None)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        cls = DefinedClass(node, self)
        self.add(node.name, "class", lambda: cls)
        for statement in node.body:
            if isinstance(statement, Function):
                self.visit_body(statement, cls)

    def visit_body(self, function: Function, cls: DefinedClass | None) -> None:
        """Note the names inside a function if the cursor is there; `cls`: the class whose method it is."""
        if function.lineno <= self.line <= (function.end_lineno or 0):
            self.define_parameters(function, cls)
            for statement in function.body:
                self.visit(statement)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Note nothing: its parameters are its own."""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.add(alias.asname or name, "module", functools.partial(module_named, name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is None or node.level:
            return
        for alias in node.names:
            if alias.name != "*":
                name = alias.asname or alias.name
                self.add(name, "", functools.partial(imported, node.module, alias.name))
                continue
            module = module_named(node.module)
            for name, kind in (module.names() if module is not None else {}).items():
                if not name.startswith("_"):
                    self.add(name, kind, functools.partial(imported, node.module, name))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.define_target(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.define_target(node.target, None, lambda: self.annotated(node.annotation))
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.define_target(node.target, None, lambda: self.element_of(node.iter))
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self.define_target(node.optional_vars, node.context_expr)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.add(node.name, "instance", lambda: self.annotated(node.type))
        self.generic_visit(node)

    def add(self, name: str, kind: str, source: Source) -> None:
        self.sources.setdefault(name, []).append(source)
        self.kinds[name] = kind

    def define_target(self, target: ast.expr, value: ast.expr | None, source: Source | None = None) -> None:
        """Note the names of an assignment's left side; `source` takes the place of the value."""
        if isinstance(target, ast.Name):
            of_value: Source = lambda: self.value_of(value) if value is not None else None  # noqa: E731
            self.add(target.id, "instance", source or of_value)
        elif isinstance(target, ast.Starred):
            self.define_target(target.value, None, lambda: InstanceOf(list))
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            is_known = len(values) == len(target.elts)
            for number, part in enumerate(target.elts):
                self.define_target(part, values[number] if is_known else None)

    def define_parameters(self, function: Function, cls: DefinedClass | None) -> None:
        """Note the parameters of a function; the first of a method is its object."""
        arguments = function.args
        shapes = (ast.get_docstring(function) or "").partition("Shape")[2]
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        defaults += [*arguments.defaults, *arguments.kw_defaults]
        for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
            source = functools.partial(self.value_of_parameter, argument, default, shapes)
            self.add(argument.arg, "param", source)
        if cls is not None and positional:
            self.add(positional[0].arg, "instance", lambda: InstanceOfDefined(cls))
        if arguments.vararg is not None:
            self.add(arguments.vararg.arg, "param", lambda: InstanceOf(tuple))
        if arguments.kwarg is not None:
            self.add(arguments.kwarg.arg, "param", lambda: InstanceOf(dict))

    def value_of_parameter(self, argument: ast.arg, default: ast.expr | None, shapes: str) -> Thing | None:
        """Return what is known of a parameter: from its annotation, its default, the docstring, its name.

        Functions of the notebooks have the parameters `comm` and `rank`, which are names of the ranks, too;
        their docstrings give the shapes of arrays below the word "Shape".
        """
        value = self.annotated(argument.annotation)
        if value is None and default is not None and not is_none(default):
            value = self.value_of(default)
        if value is None and re.search(rf"\b{argument.arg}\b", shapes):
            value = an_array()
        if value is None and argument.arg in self.outer:
            value = self.outer[argument.arg]()
        return value

    def element_of(self, iterable: ast.expr) -> Thing | None:
        """Return what is known of the values that a loop takes from an expression."""
        if isinstance(iterable, ast.Call) and is_name(iterable.func, "range"):
            return InstanceOf(int)
        container = self.value_of(iterable)
        return container.item(None) if container is not None else None

    # Expressions. One of another kind has a value of which nothing is known.

    def visit_Name(self, node: ast.Name) -> Thing | None:
        return self.value_named(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Thing | None:
        owner = self.value_of(node.value)
        return owner.attribute(node.attr) if owner is not None else None

    def visit_Subscript(self, node: ast.Subscript) -> Thing | None:
        owner = self.value_of(node.value)
        return owner.item(constant(node.slice)) if owner is not None else None

    def visit_Call(self, node: ast.Call) -> Thing | None:
        function = self.value_of(node.func)
        return function.result() if function is not None else None

    def visit_Constant(self, node: ast.Constant) -> Thing:
        return InstanceOf(type(node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Thing | None:
        return self.value_of(node.value)

    def visit_IfExp(self, node: ast.IfExp) -> Thing | None:
        return self.value_of(node.body) or self.value_of(node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Thing | None:
        return self.value_of(node.values[0])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Thing | None:
        return self.value_of(node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> Thing | None:
        return operation(self.value_of(node.left), self.value_of(node.right))

    def visit_Compare(self, node: ast.Compare) -> Thing | None:
        return operation(InstanceOf(bool), self.value_of(node.left))

    def visit_List(self, node: ast.List | ast.ListComp) -> Thing:
        return InstanceOf(list)

    def visit_Tuple(self, node: ast.Tuple) -> Thing:
        return InstanceOf(tuple)

    def visit_Dict(self, node: ast.Dict | ast.DictComp) -> Thing:
        return InstanceOf(dict)

    def visit_Set(self, node: ast.Set | ast.SetComp) -> Thing:
        return InstanceOf(set)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Thing:
        return InstanceOf(str)

    visit_ListComp, visit_DictComp, visit_SetComp = visit_List, visit_Dict, visit_Set


def imported(module: str, name: str) -> Thing | None:
    """Return what `from module import name` defines."""
    owner = module_named(module)
    value = owner.attribute(name) if owner is not None else None
    return value or module_named(f"{module}.{name}")


def an_array() -> Thing | None:
    """Return what is known of any array."""
    numpy = module_named("numpy")
    array = numpy.attribute("ndarray") if numpy is not None else None
    return array.instance() if array is not None else None


def operation(left: Thing | None, right: Thing | None) -> Thing | None:
    """Return the result of an operation: an array if one of both is."""
    if any(side is not None and "dtype" in side.names() for side in (left, right)):
        return an_array()
    return left


class DefinedModule(Thing):
    """A module of which only the text is known: it is not imported in this process."""

    kind = "module"

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = file
        self.tree = modules.parsed(file)
        self.scope = Scope({}, self.tree.body)

    def names(self) -> dict[str, str]:
        return self.scope.defined_names() | dict.fromkeys(modules.submodules(self.name), "module")

    def attribute(self, name: str) -> Thing | None:
        value = self.scope.defined_value(name)
        if value is None and name in modules.submodules(self.name):
            value = module_named(f"{self.name}.{name}")
        return value

    def page(self) -> Page:
        return Page("module", "", ast.get_docstring(self.tree) or "", file=str(self.file))


def module_named(name: str) -> Thing | None:
    """Return a module: as it is in this process, or else from its text; None if there is none."""
    module = sys.modules.get(name)
    if module is not None:
        return Live(module)
    if modules.importable_without_effect(name):
        return Live(importlib.import_module(name))
    file = modules.file_of(name)
    return defined_module(name, file, file.stat().st_mtime_ns) if file is not None else None


@functools.lru_cache(maxsize=32)
def defined_module(name: str, file: Path, changed_ns: int) -> DefinedModule:
    """Return a module from its text; read it again if the file has changed."""
    return DefinedModule(name, file)


def constant(node: ast.expr) -> object:
    """Return the number or text that an expression is, None for others."""
    if isinstance(node, ast.Constant):
        return node.value
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        return -value if isinstance(value, int) else None
    return None


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def statements_of(code: str, cursor: int) -> tuple[list[ast.stmt], int]:
    """Return the statements of code in which one is being typed, and the line of the cursor.

    The code is split where a line begins without indentation. A block that is no Python is left out, and in
    the block with the cursor the line with the cursor is.
    """
    line = code.count("\n", 0, cursor) + 1
    lines = code.split("\n")
    starts = block_starts(code)
    statements: list[ast.stmt] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = lines[start:end]
        tree = parsed("\n".join(block))
        if start < line <= end:
            tree = parsed_without(block, line - 1 - start) or tree
        if tree is not None:
            statements += ast.increment_lineno(tree, start).body
    return statements, line


def block_starts(code: str) -> list[int]:
    """Return the numbers, from 0, of the lines at which a statement of the outermost level begins."""
    scan = Scan(code)
    starts = [0]
    is_decorated = False
    for position in scan.line_starts[1:]:
        rest = code[position:]
        if not rest[:1].strip() or rest.startswith("#") or CONTINUES.match(rest):
            continue
        if not is_decorated:
            starts.append(code.count("\n", 0, position))
        is_decorated = rest.startswith("@")
    return starts


def parsed_without(block: Sequence[str], number: int) -> ast.Module | None:
    """Return a block parsed without one of its lines, and if need be without the lines below."""
    line = block[number]
    indent = line[: len(line) - len(line.lstrip())]
    above = next((text for text in reversed(block[:number]) if text.strip()), "")
    if above.rstrip().endswith(":") and not indent:
        indent = above[: len(above) - len(above.lstrip())] + "    "
    for rest in block[number + 1 :], []:
        for middle in f"{indent}pass", f"{indent}if True: pass":
            tree = parsed("\n".join([*block[:number], middle, *rest]))
            if tree is not None:
                return tree
    # The statement with the cursor may have begun on an earlier line.
    for first in range(number - 1, -1, -1):
        indent = block[first][: len(block[first]) - len(block[first].lstrip())]
        for rest in block[number + 1 :], []:
            blanks = [""] * (number - first)
            tree = parsed("\n".join([*block[:first], f"{indent}pass", *blanks, *rest]))
            if tree is not None:
                return tree
    return None


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
