"""What can be known of a function or a class from its text alone."""

from __future__ import annotations

import ast
from typing import Protocol

from labkit.cluster.completion.syntax import Function, annotated, is_name, last_name, signature_of
from labkit.cluster.completion.things import Page, Thing


class NameLookup(Protocol):
    """Where the names in a definition are looked up."""

    def value_of(self, node: ast.expr) -> Thing | None: ...


class DefinedFunction(Thing):
    """A function from its `def`. `scope` is where its annotations are looked up."""

    kind = "function"
    is_callable = True

    def __init__(
        self, node: Function, scope: NameLookup, owner: Thing | None = None, source: str = ""
    ) -> None:
        self.node = node
        self.scope = scope
        self.owner = owner
        self.source = source

    @property
    def is_property(self) -> bool:
        return any(
            last_name(decorator) in ("property", "cached_property") for decorator in self.node.decorator_list
        )

    @property
    def is_static(self) -> bool:
        return any(last_name(decorator) == "staticmethod" for decorator in self.node.decorator_list)

    @property
    def signature(self) -> str:  # type: ignore[override]
        return signature_of(self.node, is_bound=self.owner is not None and not self.is_static)

    def result(self) -> Thing | None:
        return annotated(self.node.returns, self.scope.value_of, self.owner)

    def page(self) -> Page:
        documentation = ast.get_docstring(self.node) or ""
        source = self.source or ast.unparse(self.node)
        return Page(
            "function" if self.owner is None else "method", self.signature, documentation, source=source
        )


class DefinedClass(Thing):
    """A class from its `class`, with what its methods store in `self`."""

    kind = "class"
    is_callable = True

    def __init__(self, node: ast.ClassDef, scope: NameLookup, source: str = "") -> None:
        self.node = node
        self.scope = scope
        self.source = source

    def bases(self) -> list[Thing]:
        """Return its bases that are known."""
        values = [self.scope.value_of(base) for base in self.node.bases]
        return [value for value in values if value is not None and value is not self]

    def members(self) -> dict[str, ast.stmt]:
        """Return the statements in its body that define names, by name."""
        statements: dict[str, ast.stmt] = {}
        for statement in self.node.body:
            for name in _names_defined_by(statement):
                statements.setdefault(name, statement)
        return statements

    def stored(self) -> dict[str, ast.expr | None]:
        """Return what its methods assign to attributes of `self`."""
        values: dict[str, ast.expr | None] = {}
        for method in self.node.body:
            if not isinstance(method, Function) or not method.args.args:
                continue
            name_of_self = method.args.args[0].arg
            for node in ast.walk(method):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(node, ast.AnnAssign | ast.AugAssign):
                    targets = [node.target]
                for target in targets:
                    for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if isinstance(part, ast.Attribute) and is_name(part.value, name_of_self):
                            value = getattr(node, "value", None)
                            values.setdefault(part.attr, value if part is target else None)
        return values

    def names(self) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for base in reversed(self.bases()):
            kinds |= base.names()
        for name, statement in self.members().items():
            kinds[name] = _kind_of(statement)
        return kinds

    def attribute(self, name: str) -> Thing | None:
        return self.member(name, None)

    def member(self, name: str, owner: Thing | None) -> Thing | None:
        """Return an attribute of this class, or of `owner`, an object of it."""
        statement = self.members().get(name)
        if statement is not None:
            return self.defined_by(statement, owner)
        for base in self.bases():
            inherited = base.member(name, owner) if isinstance(base, DefinedClass) else base.attribute(name)
            if inherited is not None:
                return inherited
        return None

    def defined_by(self, statement: ast.stmt, owner: Thing | None) -> Thing:
        """Return what a statement of the class's body defines."""
        thing: Thing | None = None
        if isinstance(statement, Function):
            function = DefinedFunction(statement, self.scope, owner)
            thing = function.result() if owner is not None and function.is_property else function
        elif isinstance(statement, ast.ClassDef):
            thing = DefinedClass(statement, self.scope)
        elif isinstance(statement, ast.AnnAssign):
            thing = annotated(statement.annotation, self.scope.value_of, owner)
        elif isinstance(statement, ast.Assign):
            thing = self.scope.value_of(statement.value)
        return thing or Thing()

    @property
    def signature(self) -> str:  # type: ignore[override]
        for name in "__init__", "__new__":
            method = self.member(name, self)
            if isinstance(method, DefinedFunction):
                return signature_of(method.node, is_bound=True).partition(" -> ")[0]
        return ""

    def result(self) -> Thing:
        return InstanceOfDefined(self)

    def instance(self) -> Thing:
        return InstanceOfDefined(self)

    def page(self) -> Page:
        documentation = ast.get_docstring(self.node) or ""
        return Page("type", self.signature, documentation, source=self.source or ast.unparse(self.node))


class InstanceOfDefined(Thing):
    """An object of a class of which only the text is known."""

    def __init__(self, cls: DefinedClass) -> None:
        self.cls = cls

    def names(self) -> dict[str, str]:
        return self.cls.names() | dict.fromkeys(self.cls.stored(), "instance")

    def attribute(self, name: str) -> Thing | None:
        thing = self.cls.member(name, self)
        if thing is None and name in self.cls.stored():
            value = self.cls.stored()[name]
            thing = (self.cls.scope.value_of(value) if value is not None else None) or Thing()
        return thing

    def page(self) -> Page:
        return Page(self.cls.node.name, "", ast.get_docstring(self.cls.node) or "")


def _names_defined_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, Function | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _kind_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.ClassDef):
        return "class"
    if isinstance(statement, Function):
        decorators = map(last_name, statement.decorator_list)
        return "property" if {"property", "cached_property"} & set(decorators) else "function"
    return "instance"
