"""Transformations of a reference that keep what it does: of expressions, statements and the whole function.

Each changes all places that it fits, in the tree that it gets.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from labkit.checks.exercise import Exercise
from labkit.exercises import catalogue
from tests.exercises.rewriting import (
    Rules,
    Transformation,
    arrays_of,
    expression,
    functions,
    has_yield,
    is_array,
    load,
    new_names,
    parameters,
    replace_blocks,
    replace_expressions,
    replace_statements,
    rewrite,
    statements,
)

LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break

# Transformations that replace expressions, by examples: rewriting.py says what the letters stand for.
RULES: dict[str, Rules] = {
    "np.matmul": [("A @ B", "np.matmul(A, B)")],
    "np.dot": [("A @ B", "np.dot(A, B)")],
    "np.tensordot": [("A @ B", "np.tensordot(A, B, 1)")],
    "np.inner": [("A @ B", "np.inner(A, B.T)")],
    "constants of the dtype": [
        ("0.1 * A", "A.dtype.type(0.1) * A"),
        ("A + 1e-05", "A + A.dtype.type(1e-05)"),
    ],
    "functions for methods": [
        *((f"A.{name}(*R, **K)", f"np.{name}(A, *R, **K)") for name in ("sum", "mean", "max", "min", "var")),
        *((f"A.{name}(*R, **K)", f"np.{name}(A, *R, **K)") for name in ("any", "all", "argmax", "argmin")),
        ("X.copy()", "np.array(X)"),
        ("A.T", "np.transpose(A)"),
        ("A.transpose(*R)", "np.transpose(A, (*R,))"),
        ("A.reshape(B)", "np.reshape(A, B)"),
        ("A.reshape(*R)", "np.reshape(A, (*R,))"),
        ("A.astype(B)", "np.asarray(A, dtype=B)"),
    ],
    "ufuncs reduce": [
        ("A.sum()", "np.add.reduce(A, axis=None)"),
        ("A.sum(axis=B)", "np.add.reduce(A, axis=B)"),
        ("A.sum(axis=B, keepdims=C)", "np.add.reduce(A, axis=B, keepdims=C)"),
        ("A.max(axis=B)", "np.maximum.reduce(A, axis=B)"),
        ("A.max(axis=B, keepdims=C)", "np.maximum.reduce(A, axis=B, keepdims=C)"),
        ("A.max()", "np.maximum.reduce(A, axis=None)"),
    ],
    "transposed by swapaxes": [
        ("A.T", "A.swapaxes(0, 1)"),
        ("A.transpose(0, 2, 3, 1)", "np.moveaxis(A, 1, 3)"),
    ],
    "np.full": [
        ("np.zeros(A)", "np.full(A, 0.0)"),
        ("np.zeros(A, B)", "np.full(A, 0, B)"),
        ("np.zeros_like(A)", "np.full_like(A, 0)"),
        ("np.ones(A)", "np.full(A, 1.0)"),
        ("np.ones(A, B)", "np.full(A, 1, B)"),
    ],
    "zeros for empty": [
        ("np.empty(*R)", "np.zeros(*R)"),
        ("np.empty_like(A)", "np.zeros_like(A)"),
    ],
    "shape and dtype": [
        ("np.empty_like(A)", "np.empty(A.shape, A.dtype)"),
        ("np.zeros_like(A)", "np.zeros(A.shape, dtype=A.dtype)"),
    ],
    "np.square": [("A**2", "np.square(A)")],
    "a product for a square": [("A**2", "A * A")],
    "divmod": [("A % B", "divmod(A, B)[1]"), ("A // B", "divmod(A, B)[0]")],
    "ranks by methods": [("comm.rank", "comm.Get_rank()"), ("comm.size", "comm.Get_size()")],
    "lengths by shapes": [("len(X)", "X.shape[0]"), ("X.size", "np.size(X)")],
    "ranges in full": [("range(A)", "range(0, A, 1)"), ("range(A, B)", "range(A, B, 1)")],
    "lists of ranges": [("range(*R)", "list(range(*R))")],
    "arrays of ranges": [("np.arange(A)", "np.array(range(A), dtype=int)")],
    "conditions for min and max": [
        ("min(A, B)", "A if A <= B else B"),
        ("max(A, B)", "A if A >= B else B"),
    ],
    "comparisons turned round": [
        *(
            (f"A {here} B", f"B {there} A")
            for here, there in (("<", ">"), (">", "<"), ("<=", ">="), (">=", "<="))
        ),
        ("A == B", "B == A"),
        ("A != B", "B != A"),
        ("A is None", "None is A"),
    ],
    "negated operators": [("A not in B", "not A in B"), ("A is not B", "not A is B")],
    "a minus put first": [("A - B", "-B + A")],
    "factors exchanged": [("A * B", "B * A")],
    "summands exchanged": [("A + B", "B + A")],
    "comparisons for `in`": [("A in (B, C)", "A == B or A == C")],
    "enumerate by zip": [
        ("enumerate(A)", "zip(range(len(A)), A)"),
        ("enumerate(A, start=B)", "zip(range(B, len(A) + B), A)"),
    ],
    "slices for reversed": [("reversed(A)", "A[::-1]")],
    "constructors": [("[]", "list()"), ("{}", "dict()"), ("{A: B for C in D}", "dict([(A, B) for C in D])")],
    "other functions": [
        ("math.prod(A)", "int(np.prod(A))"),
        ("np.inf", "float('inf')"),
        ("np.nan", "float('nan')"),
        ("np.abs(A)", "abs(A)"),
        ("np.concatenate(A)", "np.hstack(A)"),
        ("next(iter(A))", "list(A)[0]"),
        ("A.get(B, C)", "A[B] if B in A else C"),
        ("A.items()", "list(A.items())"),
        ("np.all(A)", "bool(np.asarray(A).min(initial=True))"),
        ("np.median(A, axis=B)", "np.quantile(A, 0.5, axis=B)"),
        ("np.median(A)", "np.quantile(A, 0.5)"),
        ("np.flatnonzero(A)", "np.nonzero(A)[0]"),
        ("np.stack([A, B], axis=1)", "np.column_stack([A, B])"),
        ("np.ptp(A, axis=B)", "A.max(axis=B) - A.min(axis=B)"),
        ("np.square(A, dtype=B)", "A.astype(B) ** 2"),
        ("sorted(A)", "sorted(list(A))"),
    ],
}


def by_rules(rules: Rules) -> Transformation:
    return lambda tree, exercise: rewrite(tree, rules, _arrays(tree, exercise))


def _arrays(tree: ast.Module, exercise: Exercise) -> frozenset[str]:
    """Return the names that always hold arrays."""
    return arrays_of(_function(tree, exercise), _array_parameters(exercise))


def _array_parameters(exercise: Exercise) -> list[str]:
    """Return the parameters that are arrays in all cases."""
    return _array_parameters_by_name(exercise.name)


@cache  # some cases take seconds to make
def _array_parameters_by_name(name: str) -> list[str]:
    exercise = catalogue.find(name)
    names = parameters(_function(ast.parse(exercise.text), exercise))[exercise.on_ranks :]
    calls = [arguments for case in exercise.cases() for arguments in case.arguments]
    return [
        name
        for k, name in enumerate(names)
        if all(k < len(arguments) and isinstance(arguments[k], np.ndarray) for arguments in calls)
    ]


def _function(tree: ast.Module, exercise: Exercise) -> ast.FunctionDef:
    """Return the function that the check calls."""
    return next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == exercise.name
    )


def _code(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return a function's body without its docstring."""
    return function.body[ast.get_docstring(function) is not None :]


# The function as a whole.


def without_docstring(tree: ast.Module, exercise: Exercise) -> None:
    """Leave out the docstring."""
    function = _function(tree, exercise)
    function.body = _code(function)


def with_hints(tree: ast.Module, exercise: Exercise) -> None:
    """Annotate all parameters and the result."""
    function, arrays = _function(tree, exercise), _array_parameters(exercise)
    for argument in function.args.args:
        kind = "np.ndarray" if argument.arg in arrays else "object"
        argument.annotation = expression("MPI.Comm" if argument.arg == "comm" else kind, {})
    function.returns = expression("object", {})


def without_hints(tree: ast.Module, exercise: Exercise) -> None:
    """Leave out the types of local variables."""
    replace_statements(
        tree,
        lambda node: (
            [ast.Assign([node.target], node.value)]
            if isinstance(node, ast.AnnAssign) and node.value
            else [node]
        ),
    )


def with_default(tree: ast.Module, exercise: Exercise) -> None:
    """Give the last parameter a default."""
    arguments = _function(tree, exercise).args
    if len(arguments.args) > 1 and not arguments.defaults:
        arguments.defaults = [ast.Constant(None)]


def by_position_only(tree: ast.Module, exercise: Exercise) -> None:
    """Let the function take its arguments by position only."""
    arguments = _function(tree, exercise).args
    arguments.posonlyargs, arguments.args = arguments.args, []


def with_option(tree: ast.Module, exercise: Exercise) -> None:
    """Add a parameter of one's own, which has a default."""
    arguments = _function(tree, exercise).args
    arguments.args.append(ast.arg("verbose"))
    arguments.defaults.append(ast.Constant(False))
    _add_first(tree, exercise, "if verbose:\n    print('called')")


def nested(tree: ast.Module, exercise: Exercise) -> None:
    """Put the body in a function inside the function."""
    _delegate(tree, exercise, "def solve(PARAMETERS):\n    BODY\nreturn solve(PARAMETERS)")


def beside(tree: ast.Module, exercise: Exercise) -> None:
    """Put the body in a function beside the function."""
    _delegate(tree, exercise, "return solve_it(PARAMETERS)", "def solve_it(PARAMETERS):\n    BODY")


def in_class(tree: ast.Module, exercise: Exercise) -> None:
    """Put the body in the method __call__ of a class."""
    text = "class Solution:\n    def __call__(self, PARAMETERS):\n        BODY"
    _delegate(tree, exercise, "solution = Solution()\nreturn solution(PARAMETERS)", text)


def in_static_method(tree: ast.Module, exercise: Exercise) -> None:
    """Put the body in a static method."""
    text = "class Tools:\n    @staticmethod\n    def solve(PARAMETERS):\n        BODY"
    _delegate(tree, exercise, "return Tools.solve(PARAMETERS)", text)


def by_keywords(tree: ast.Module, exercise: Exercise) -> None:
    """Call a function beside the function with a dictionary of its arguments."""
    names = parameters(_function(tree, exercise))
    named = ", ".join(f"{name!r}: {name}" for name in names)
    text = f"arguments = {{{named}}}\nreturn solve_it(**arguments)"
    _delegate(tree, exercise, text, "def solve_it(PARAMETERS):\n    BODY")


def through_lambda(tree: ast.Module, exercise: Exercise) -> None:
    """Call a function beside the function through a lambda that takes no arguments."""
    text = "compute = lambda: solve_it(PARAMETERS)\nreturn compute()"
    _delegate(tree, exercise, text, "def solve_it(PARAMETERS):\n    BODY")


def on_own_communicator(tree: ast.Module, exercise: Exercise) -> None:
    """Work on a duplicate of the communicator, and free it."""
    if exercise.on_ranks:
        text = "private = comm.Dup()\ntry:\n    return solve_it(PRIVATE)\nfinally:\n    private.Free()"
        names = parameters(_function(tree, exercise))
        text = text.replace("PRIVATE", ", ".join(["private", *names[1:]]))
        _delegate(tree, exercise, text, "def solve_it(PARAMETERS):\n    BODY")


def _delegate(tree: ast.Module, exercise: Exercise, call: str, above: str = "") -> None:
    """Let the function do what the template `call` says; the template `above` gets its body."""
    function = _function(tree, exercise)
    names = ", ".join(parameters(function))
    body = _code(function)
    head = function.body[: len(function.body) - len(body)]
    place = tree.body.index(function)
    function.body = head + statements(call.replace("PARAMETERS", names), {"BODY": body})
    tree.body[place:place] = statements(above.replace("PARAMETERS", names), {"BODY": body})


def _add_first(tree: ast.Module, exercise: Exercise, text: str) -> None:
    """Add statements at the beginning of the function."""
    function = _function(tree, exercise)
    body = _code(function)
    head = function.body[: len(function.body) - len(body)]
    function.body = [*head, *statements(text, {}), *body]


def imports_inside(tree: ast.Module, exercise: Exercise) -> None:
    """Import modules inside the function."""
    lines = ["import math", "import numpy as np"]
    if exercise.on_ranks:
        lines.append("from mpi4py import MPI")
    _add_first(tree, exercise, "\n".join(lines))


def other_alias(tree: ast.Module, exercise: Exercise) -> None:
    """Import NumPy under its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "np":
            node.id = "numpy"
    tree.body[:0] = statements("import numpy", {})


def older_version_above(tree: ast.Module, exercise: Exercise) -> None:
    """Leave an older version of the function, which is wrong, above the one that counts."""
    old = copy.deepcopy(_function(tree, exercise))
    old.body = statements("raise NotImplementedError", {})
    tree.body.insert(0, old)


def with_prints(tree: ast.Module, exercise: Exercise) -> None:
    """Print something."""
    _add_first(tree, exercise, "print('begins')")


def in_try(tree: ast.Module, exercise: Exercise) -> None:
    """Put the body in `try` with `finally`."""
    function = _function(tree, exercise)
    body = _code(function)
    head = function.body[: len(function.body) - len(body)]
    function.body = head + statements("try:\n    BODY\nfinally:\n    is_done = True", {"BODY": body})


def copied_arguments(tree: ast.Module, exercise: Exercise) -> None:
    """Work on copies of the arrays that hold no result."""
    place = exercise.result_in
    results = {*exercise.may_change, *(place if isinstance(place, tuple) else [place])}
    names = parameters(_function(tree, exercise))[exercise.on_ranks :]
    copied = [name for name in _array_parameters(exercise) if names.index(name) not in results]
    _add_first(tree, exercise, "\n".join(f"{name} = {name}.copy()" for name in copied))


def renamed(tree: ast.Module, exercise: Exercise) -> None:
    """Give all local variables and inner functions other names."""
    _rename(tree, exercise, lambda name: f"my_{name}")


def renamed_in_greek(tree: ast.Module, exercise: Exercise) -> None:
    """Give all local variables and inner functions names with letters that are not ASCII."""
    _rename(tree, exercise, lambda name: f"λ_{name}")


def _rename(tree: ast.Module, exercise: Exercise, new_name: Callable[[str], str]) -> None:
    function = _function(tree, exercise)
    nodes = [node for statement in _code(function) for node in ast.walk(statement)]
    local = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    local |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    local -= set(parameters(function))
    for node in nodes:
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if name in local and not isinstance(node, ast.keyword | ast.ExceptHandler):
                setattr(node, field, new_name(name))


# Statements.


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Return the statements that leave a function, without those of inner functions."""
    of_inner = {node for inner in functions(function)[1:] for node in ast.walk(inner)}
    return [node for node in ast.walk(function) if isinstance(node, ast.Return) and node not in of_inner]


def named_results(tree: ast.Module, exercise: Exercise) -> None:
    """Bind what is returned to a name."""
    replace_statements(
        tree,
        lambda node: (
            statements("outcome = VALUE\nreturn outcome", {"VALUE": node.value})
            if isinstance(node, ast.Return) and node.value is not None
            else [node]
        ),
    )


def lists_for_tuples(tree: ast.Module, exercise: Exercise) -> None:
    """Return a list in place of a tuple."""
    _replace_returned_tuple(tree, exercise, "[*VALUES]")


def tuple_of_list(tree: ast.Module, exercise: Exercise) -> None:
    """Return the tuple of a list in place of a tuple that is written out."""
    _replace_returned_tuple(tree, exercise, "tuple([*VALUES])")


def results_from_lists(tree: ast.Module, exercise: Exercise) -> None:
    """Return an array that is made from the list of its rows, in place of an array."""
    arrays = _arrays(tree, exercise)

    def rebuilt(node: ast.expr) -> ast.expr:
        if not is_array(node, arrays):
            return node
        text = "np.array([row for row in VALUE], dtype=VALUE.dtype).reshape(VALUE.shape)"
        return expression(text, {"VALUE": node})

    for node in _returns(_function(tree, exercise)):
        if isinstance(node.value, ast.Tuple):
            node.value.elts = [rebuilt(value) for value in node.value.elts]
        elif node.value is not None:
            node.value = rebuilt(node.value)


def exact_sums(tree: ast.Module, exercise: Exercise) -> None:
    """Add up differences of times by math.fsum."""
    rewrite(tree, [("sum(A - B for C in D)", "math.fsum(A - B for C in D)")])
    if "math.fsum" in ast.unparse(tree):
        tree.body[:0] = statements("import math", {})


def _replace_returned_tuple(tree: ast.Module, exercise: Exercise, text: str) -> None:
    for node in _returns(_function(tree, exercise)):
        if isinstance(node.value, ast.Tuple):
            node.value = expression(text, {"VALUES": node.value.elts})


def while_over_list(tree: ast.Module, exercise: Exercise) -> None:
    """Write `while` over the indices of a list for a `for` loop."""
    text = """
ITEMS = list(SOURCE)
PLACE = 0
while PLACE < len(ITEMS):
    TARGET = ITEMS[PLACE]
    PLACE += 1
    BODY
"""
    _replace_loops(tree, text)


def while_over_iterator(tree: ast.Module, exercise: Exercise) -> None:
    """Write `while` over an iterator for a `for` loop."""
    text = """
ITEMS = iter(SOURCE)
while True:
    try:
        TARGET = next(ITEMS)
    except StopIteration:
        break
    BODY
"""
    _replace_loops(tree, text)


def _replace_loops(tree: ast.Module, text: str) -> None:
    items, places = new_names(tree, "items"), new_names(tree, "place")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if not isinstance(node, ast.For):
            return [node]
        names = {"ITEMS": next(items), "PLACE": next(places)}
        return statements(text, {**names, "SOURCE": node.iter, "TARGET": node.target, "BODY": node.body})

    replace_statements(tree, replaced)


def loops_for_comprehensions(tree: ast.Module, exercise: Exercise) -> None:
    """Build in a loop what a comprehension makes, if the statement always evaluates it."""
    names = new_names(tree, "built")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        before: list[ast.stmt] = []
        field = {ast.For: "iter", ast.If: "test"}.get(type(node), "value")  # what is evaluated once
        value = getattr(node, field, None)
        if isinstance(value, ast.expr):
            setattr(node, field, _Hoister(names, before).visit(value))
        return [*before, node]

    replace_statements(tree, replaced)


class _Hoister(ast.NodeTransformer):
    """Replaces comprehensions by names, and collects the loops that fill them."""

    def __init__(self, names: Iterator[str], before: list[ast.stmt]) -> None:
        self.names, self.before = names, before

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp):  # these may not evaluate it, or often
            return node
        if not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp):
            return self.generic_visit(node)
        name = next(self.names)
        comprehension: Any = _with_variables_of_its_own(node, name)
        parts: dict[str, Any] = {"NAME": name}
        if isinstance(comprehension, ast.DictComp):
            parts |= {"KEY": comprehension.key, "VALUE": comprehension.value}
            start, step = "NAME = {}", "NAME[KEY] = VALUE"
        else:
            parts |= {"VALUE": comprehension.elt}
            start, step = "NAME = []", "NAME.append(VALUE)"
            if isinstance(comprehension, ast.SetComp):
                start, step = "NAME = set()", "NAME.add(VALUE)"
        block = statements(step, parts)
        for generator in reversed(comprehension.generators):
            for condition in reversed(generator.ifs):
                block = [ast.If(condition, block, [])]
            block = [ast.For(generator.target, generator.iter, block, [])]
        self.before += [*statements(start, parts), *block]
        return ast.Name(name, ast.Load())


def _with_variables_of_its_own(node: ast.AST, stem: str) -> Any:
    """Return a comprehension whose variables have names that the function does not use."""
    node = copy.deepcopy(node)
    inner = [
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in inner:
            part.id = f"{part.id}_of_{stem}"
    return node


def maps_for_comprehensions(tree: ast.Module, exercise: Exercise) -> None:
    """Use map with a lambda in place of a list comprehension without a condition and with one variable."""

    def replaced(node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.ListComp) or len(node.generators) > 1:
            return node
        generator = node.generators[0]
        if generator.ifs or not isinstance(generator.target, ast.Name):
            return node
        made = expression("list(map(lambda V: E, S))", {"E": node.elt, "S": generator.iter})
        made.args[0].args[0].args.args[0].arg = generator.target.id  # type: ignore[attr-defined]
        return made

    replace_expressions(tree, replaced)


def plain_assignments(tree: ast.Module, exercise: Exercise) -> None:
    """Write x = x + y for x += y, where x is a number, or an entry or a slice of an array."""
    numbers = _numbers(_function(tree, exercise))

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.AugAssign):
            is_number = isinstance(node.target, ast.Name) and node.target.id in numbers
            if is_number or isinstance(node.target, ast.Subscript):
                return [ast.Assign([node.target], ast.BinOp(load(node.target), node.op, node.value))]
        return [node]

    replace_statements(tree, replaced)


def _numbers(function: ast.FunctionDef) -> set[str]:
    """Return the names that some statement sets to a number that is written out.

    What is added to such a name makes a new value, so no other name can hold the same one.
    """
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for name, value in pairs:
                    if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                        names.add(name.id)
    return names


IN_PLACE = {
    ast.Add: "np.add",
    ast.Sub: "np.subtract",
    ast.Mult: "np.multiply",
    ast.Div: "np.divide",
    ast.BitAnd: "np.logical_and",
}


def ufuncs_in_place(tree: ast.Module, exercise: Exercise) -> None:
    """Write np.add(x, y, out=x) for x += y, where x is an array."""
    _replace_in_place(tree, exercise, "UFUNC(TARGET, VALUE, out=TARGET)")


def new_array_in_place(tree: ast.Module, exercise: Exercise) -> None:
    """Write x[...] = x + y for x += y, where x is an array."""
    _replace_in_place(tree, exercise, "moved = UFUNC(TARGET, VALUE)\nTARGET[...] = moved")


def _replace_in_place(tree: ast.Module, exercise: Exercise, text: str) -> None:
    arrays = _arrays(tree, exercise)

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if not isinstance(node, ast.AugAssign) or type(node.op) not in IN_PLACE:
            return [node]
        if not isinstance(node.target, ast.Name) or node.target.id not in arrays:
            return [node]
        ufunc = expression(IN_PLACE[type(node.op)], {})
        return statements(text, {"UFUNC": ufunc, "TARGET": load(node.target), "VALUE": node.value})

    replace_statements(tree, replaced)


def copyto(tree: ast.Module, exercise: Exercise) -> None:
    """Write np.copyto for an assignment to all of an array or to a slice of it."""
    arrays = _arrays(tree, exercise)

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            return [node]
        target = node.targets[0]
        is_whole = isinstance(target.slice, ast.Slice) or ast.unparse(target.slice) == "..."
        if not is_whole or not isinstance(target.value, ast.Name) or target.value.id not in arrays:
            return [node]
        text = "np.copyto(TARGET, VALUE, casting='unsafe')"
        return statements(text, {"TARGET": load(target), "VALUE": node.value})

    replace_statements(tree, replaced)


def inverted_conditions(tree: ast.Module, exercise: Exercise) -> None:
    """Negate each condition, and exchange its branches."""

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.If):
            return [ast.If(_negated(node.test), node.orelse or [ast.Pass()], node.body)]
        return [node]

    replace_statements(tree, replaced)
    replace_expressions(
        tree,
        lambda node: (
            ast.IfExp(_negated(node.test), node.orelse, node.body) if isinstance(node, ast.IfExp) else node
        ),
    )


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def else_after_return(tree: ast.Module, exercise: Exercise) -> None:
    """Put what follows a branch that leaves the function, or the round of a loop, under an `else`."""

    def replaced(block: list[ast.stmt]) -> list[ast.stmt]:
        for k, node in enumerate(block[:-1]):
            if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], LEAVES):
                node.orelse = replaced(block[k + 1 :])
                return block[: k + 1]
        return block

    replace_blocks(tree, replaced)


def early_return(tree: ast.Module, exercise: Exercise) -> None:
    """Leave the function at the end of a branch, in place of an `else` at the function's end."""
    for function in functions(tree):
        if has_yield(function):
            continue
        while isinstance(function.body[-1], ast.If) and function.body[-1].orelse:
            last = function.body[-1]
            rest, last.orelse = last.orelse, []
            if not isinstance(last.body[-1], LEAVES):
                last.body.append(ast.Return())
            function.body += rest


def guards(tree: ast.Module, exercise: Exercise) -> None:
    """Begin a loop's last condition with its opposite and `continue`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            last = node.body[-1]
            if isinstance(last, ast.If) and not last.orelse:
                node.body[-1:] = [ast.If(_negated(last.test), [ast.Continue()], []), *last.body]


def endless_with_break(tree: ast.Module, exercise: Exercise) -> None:
    """Write `while True` with a `break` for a loop with a condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            node.body.insert(0, ast.If(_negated(node.test), [ast.Break()], []))
            node.test = ast.Constant(True)


def de_morgan(tree: ast.Module, exercise: Exercise) -> None:
    """Write `not (not a or not b)` for `a and b` in conditions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.BoolOp):
            other = ast.Or() if isinstance(node.test.op, ast.And) else ast.And()
            node.test = _negated(ast.BoolOp(other, [_negated(value) for value in node.test.values]))


def statements_for_conditional_expressions(tree: ast.Module, exercise: Exercise) -> None:
    """Write `if` and `else` for a conditional expression, also for one that is an argument of a call."""
    names = new_names(tree, "chosen")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.Return | ast.Expr) or not isinstance(value, ast.expr):
            return [node]
        before: list[ast.stmt] = []

        def choose(part: ast.expr) -> ast.expr:
            if not isinstance(part, ast.IfExp):
                return part
            name = next(names)
            text = "if TEST:\n    NAME = BODY\nelse:\n    NAME = OTHER"
            parts = {"TEST": part.test, "NAME": name, "BODY": part.body, "OTHER": part.orelse}
            before.extend(statements(text, parts))
            return ast.Name(name, ast.Load())

        if isinstance(value, ast.IfExp):
            node.value = choose(value)
        elif isinstance(value, ast.Call):
            value.args = [choose(argument) for argument in value.args]
        return [*before, node]

    replace_statements(tree, replaced)


def separate_assignments(tree: ast.Module, exercise: Exercise) -> None:
    """Write one assignment for each name of `a, b = c, d`."""
    names = new_names(tree, "value")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if not isinstance(node, ast.Assign):
            return [node]
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(node.targets) == 1:
            values = [next(names) for _ in target.elts]
            pairs = zip(values, node.value.elts, strict=True)
            first: list[ast.stmt] = [
                ast.Assign([ast.Name(name, ast.Store())], value) for name, value in pairs
            ]
            return first + [
                ast.Assign([part], ast.Name(name, ast.Load()))
                for part, name in zip(target.elts, values, strict=True)
            ]
        if len(node.targets) > 1:
            name = next(names)
            return [
                ast.Assign([ast.Name(name, ast.Store())], node.value),
                *(ast.Assign([part], ast.Name(name, ast.Load())) for part in node.targets),
            ]
        return [node]

    replace_statements(tree, replaced)


def walrus(tree: ast.Module, exercise: Exercise) -> None:
    """Write (x := y) for x = y, and return (outcome := y)."""

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return [ast.Expr(ast.NamedExpr(node.targets[0], node.value))]
        if isinstance(node, ast.Return) and node.value is not None:
            return [ast.Return(ast.NamedExpr(ast.Name("outcome", ast.Store()), node.value))]
        return [node]

    replace_statements(tree, replaced)


def lambdas(tree: ast.Module, exercise: Exercise) -> None:
    """Compute what is assigned in a lambda."""
    names = new_names(tree, "compute")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp | ast.Call):
            name = next(names)
            body = ast.Lambda(expression("lambda: 0", {}).args, node.value)  # type: ignore[attr-defined]
            node.value = expression("NAME()", {"NAME": name})
            return [ast.Assign([ast.Name(name, ast.Store())], body), node]
        return [node]

    replace_statements(tree, replaced)


def functions_for_lambdas(tree: ast.Module, exercise: Exercise) -> None:
    """Write an inner function for a lambda."""
    names = new_names(tree, "inner")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        before: list[ast.stmt] = []

        def defined(part: ast.expr) -> ast.expr:
            if not isinstance(part, ast.Lambda):
                return part
            (function,) = statements("def NAME():\n    return VALUE", {"VALUE": part.body})
            assert isinstance(function, ast.FunctionDef)
            function.name, function.args = next(names), part.args
            before.append(function)
            return ast.Name(function.name, ast.Load())

        if isinstance(node, ast.Assign | ast.Return | ast.Expr):
            replace_expressions(node, defined)
        return [*before, node]

    replace_statements(tree, replaced)


def constants_beside(tree: ast.Module, exercise: Exercise) -> None:
    """Name the numbers above the function."""
    names: dict[str, str] = {}

    def replaced(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (0, 1):
            name = names.setdefault(repr(node.value), f"NUMBER_{len(names) + 1}")
            return ast.Name(name, ast.Load())
        return node

    for statement in _code(_function(tree, exercise)):
        replace_expressions(statement, replaced)
    tree.body[:0] = statements("\n".join(f"{name} = {value}" for value, name in names.items()), {})


def f_strings(tree: ast.Module, exercise: Exercise) -> None:
    """Write f-strings for texts."""

    def replaced(node: ast.expr) -> ast.expr:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return ast.JoinedStr([node]) if is_text else node

    for statement in _code(_function(tree, exercise)):
        replace_expressions(statement, replaced)


def joined_lines(tree: ast.Module, exercise: Exercise) -> None:
    """Join the lines of a long text."""

    def replaced(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") > 1:
            lines: list[ast.expr] = [ast.Constant(line) for line in node.value.split("\n")]
            return expression("'\\n'.join(LINES)", {"LINES": ast.List(lines, ast.Load())})
        return node

    for statement in _code(_function(tree, exercise)):
        replace_expressions(statement, replaced)


def slice_objects(tree: ast.Module, exercise: Exercise) -> None:
    """Write slice(a, b) for a:b."""

    class Slicer(ast.NodeTransformer):
        def visit_Slice(self, node: ast.Slice) -> ast.expr:
            self.generic_visit(node)
            parts = [part or ast.Constant(None) for part in (node.lower, node.upper, node.step)]
            return expression("slice(A, B, C)", dict(zip("ABC", parts, strict=True)))

    Slicer().visit(tree)


OF_FUNCTIONS: tuple[Transformation, ...] = (
    without_docstring,
    with_hints,
    without_hints,
    with_default,
    by_position_only,
    with_option,
    nested,
    beside,
    in_class,
    in_static_method,
    by_keywords,
    through_lambda,
    on_own_communicator,
    imports_inside,
    other_alias,
    older_version_above,
    with_prints,
    in_try,
    copied_arguments,
    renamed,
    renamed_in_greek,
)
OF_STATEMENTS: tuple[Transformation, ...] = (
    named_results,
    lists_for_tuples,
    tuple_of_list,
    results_from_lists,
    exact_sums,
    while_over_list,
    while_over_iterator,
    loops_for_comprehensions,
    maps_for_comprehensions,
    plain_assignments,
    ufuncs_in_place,
    new_array_in_place,
    copyto,
    inverted_conditions,
    else_after_return,
    early_return,
    guards,
    endless_with_break,
    de_morgan,
    statements_for_conditional_expressions,
    separate_assignments,
    walrus,
    lambdas,
    functions_for_lambdas,
    constants_beside,
    f_strings,
    joined_lines,
    slice_objects,
)
