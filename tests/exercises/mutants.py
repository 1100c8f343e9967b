"""Variants of the references, made by small changes: a check must refuse each, unless it is equivalent.

    python -m tests.exercises.mutants [NAME …]

makes those of all exercises, or of these exercises or notebooks ("nb03"), and prints for each exercise how
many there are, and each that its check accepts and that EQUIVALENT does not explain.
"""

from __future__ import annotations

import ast
import copy
import difflib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import mpi4py

from labkit.checks import answers, failures
from labkit.checks.exercise import Exercise
from labkit.checks.judge import Judge, Wrong
from labkit.checks.launching import Job, Run, scratch_folder
from labkit.exercises import catalogue
from tests.exercises.equivalent import EQUIVALENT

TEXTS_AT_ONCE = 10
LIMIT_S = 60.0  # for as many texts
DEADLINE_S = 3.0  # of one: endless loops are many

Change = Callable[[ast.AST], None]

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.LShift: ast.RShift,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "min": "max",
    "max": "min",
    "sum": "mean",
    "mean": "sum",
    "float32": "float64",
    "float64": "float32",
    "float": "int",
    "SUM": "MAX",
    "MAX": "SUM",
    "argmax": "argmin",
    "argmin": "argmax",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "floor": "ceil",
    "ceil": "floor",
    "maximum": "minimum",
    "Send": "Isend",
    "Recv": "Irecv",
    "Isend": "Send",
    "Irecv": "Recv",
    "Allreduce": "Reduce",
    "allreduce": "reduce",
    "allgather": "gather",
    "Iallreduce": "Allreduce",
    "sorted": "list",
    "reversed": "list",
}
DROPPED = "copy", "Wait", "astype", "T", "sort", "reshape", "ravel"  # methods whose call may be left out


class Mutant(NamedTuple):
    """A variant: the lines that it removes from the reference and adds to it, and its text."""

    change: str
    text: str


def mutants(text: str) -> list[Mutant]:
    """Return the variants of a function's text, without those that are equal to it or to one another."""
    tree = ast.parse(text)
    whole = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    for index, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            new = copy.deepcopy(tree)
            change(list(ast.walk(new))[index])
            try:
                changed = ast.unparse(ast.fix_missing_locations(new))
                compile(changed, "<mutant>", "exec")
            except (SyntaxError, ValueError, TypeError, AttributeError):
                continue
            if changed not in (whole, *found):
                found[changed] = Mutant(_difference(whole, changed), changed)
    return list(found.values())


def _difference(old: str, new: str) -> str:
    """Return the number of the first line that differs, and the lines that are removed and added."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    number = lines[0].split()[1].partition(",")[0].lstrip("-")
    return f"{number}: " + " ".join(f"{line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-")


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield functions that change this node, or what is below it, in a copy of the tree."""
    for name, value in ast.iter_fields(node):
        yield from _changes_of_field(name, value)
    if isinstance(node, ast.Constant):
        yield from _changes_of_constant(node.value)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with("attr", NAMES[node.attr])
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _with("id", NAMES[node.id])
    elif isinstance(node, ast.Slice):
        for end in ("lower", "upper", "step"):
            if (value := getattr(node, end)) is not None:
                yield _with(end, None)
                yield _with(end, ast.BinOp(value, ast.Add(), ast.Constant(1)))
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield _with("test", ast.Constant(value=False))
        if not isinstance(node, ast.While):
            yield _with("test", ast.Constant(value=True))
    elif isinstance(node, ast.Call):
        yield from _changes_of_call(node)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and not _are_constants(node.elts):
        yield _with("elts", [*node.elts[1:], node.elts[0]])


def _are_constants(nodes: Sequence[ast.expr]) -> bool:
    """Tell whether these are constants, as in axis=(0, 2, 3): their order often means nothing."""
    return all(isinstance(each, ast.Constant) for each in nodes)


def _changes_of_field(name: str, value: Any) -> Iterator[Change]:
    if isinstance(value, ast.AST) and type(value) in OPERATORS:
        yield _with(name, OPERATORS[type(value)]())
    elif isinstance(value, list) and value and isinstance(value[0], ast.cmpop | ast.stmt):
        yield from _changes_in_list(name, value)
    elif isinstance(value, ast.Call) and getattr(value.func, "attr", "") in DROPPED:
        yield _with(name, getattr(value.func, "value", None))
    elif isinstance(value, ast.Attribute) and value.attr in DROPPED:
        yield _with(name, value.value)
    elif isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not | ast.USub):
        yield _with(name, value.operand)
    elif isinstance(value, ast.BinOp) and name in ("value", "iter", "test", "elt"):
        yield _with(name, value.left)
        yield _with(name, value.right)


def _changes_of_constant(value: Any) -> Iterator[Change]:
    if type(value) in (int, float):
        yield _with("value", value + 1)
        yield _with("value", value - 1)
    elif value is None:
        yield _with("value", 0)
    elif type(value) is bool:
        yield _with("value", not value)


def _changes_of_call(node: ast.Call) -> Iterator[Change]:
    has_order = getattr(node.func, "id", "") not in ("min", "max")
    for k in range(len(node.args) - 1 if has_order else 0):
        yield _with("args", [*node.args[:k], node.args[k + 1], node.args[k], *node.args[k + 2 :]])
    for k, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "source", "dest", "recvbuf", "root"):
            yield _with("keywords", [*node.keywords[:k], *node.keywords[k + 1 :]])


def _changes_in_list(name: str, values: list[ast.AST]) -> Iterator[Change]:
    for k, each in enumerate(values):
        if isinstance(each, ast.cmpop) and type(each) in OPERATORS:
            yield _with(name, [*values[:k], OPERATORS[type(each)](), *values[k + 1 :]])
        is_docstring = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if isinstance(each, ast.stmt) and not is_docstring and not isinstance(each, ast.FunctionDef):
            yield _with(name, [*values[:k], ast.Pass(), *values[k + 1 :]])
        if isinstance(each, ast.For):
            yield _with(name, [*values[:k], *each.body, *values[k + 1 :]])


def _with(name: str, value: object) -> Change:
    return lambda node: setattr(node, name, copy.deepcopy(value))


class QuickJudge(Judge):
    """Tells right from wrong, without a look for the mistake."""

    def _explain(self, outcomes: object, wrong: Wrong) -> str:
        return "wrong results"

    def _recognised(self, outcomes: object, wrong: Wrong) -> str:
        return ""

    def judged(self, run: Run, text: str) -> str | None:
        """Return the finding on a run; None if it is accepted."""
        return failures.finding(run, text, self.exercise, self.cases) or self.finding(self.outcomes(run))


def accepted(exercise: Exercise, texts: Sequence[str]) -> list[bool]:
    """Return which of these texts the check of an exercise accepts."""
    mpi4py.rc.initialize = False
    exercise = replace(exercise, deadline_s=min(exercise.deadline_s, DEADLINE_S))
    cases, found = list(exercise.cases()), list[bool]()
    while len(found) < len(texts):
        with scratch_folder() as folder, Job(folder, exercise, cases) as job:
            judge = QuickJudge(job, exercise, cases)
            while job.is_running and len(found) < len(texts):
                left = texts[len(found) :][:TEXTS_AT_ONCE]
                runs = job.run_texts([answers.runnable(text) for text in left], range(len(cases)), LIMIT_S)
                for run, text in zip(runs, left, strict=False):
                    try:
                        found.append(judge.judged(run, text) is None)
                    except Exception as error:
                        print(f"  {exercise.name}: {type(error).__name__}: {error}", flush=True)
                        found.append(False)
                if not runs[-1].is_complete:
                    break
    return found


def survivors(exercise: Exercise) -> tuple[int, list[Mutant]]:
    """Return the number of an exercise's mutants, and those that its check accepts without a reason."""
    every = mutants(exercise.text)
    known = EQUIVALENT.get(exercise.name, {})
    wanted = [each for each in every if each.change not in known]
    passes = accepted(exercise, [each.text for each in wanted])
    return len(every), [each for each, passed in zip(wanted, passes, strict=True) if passed]


def main(wanted: list[str]) -> int:
    """Print the survivors of the exercises of these names or notebooks."""
    count = 0
    for name, exercise in catalogue.exercises().items():
        if wanted and not {name, f"nb{exercise.notebook}"} & set(wanted):
            continue
        began = time.monotonic()
        made, left = survivors(exercise)
        count += len(left)
        known = len(EQUIVALENT.get(name, {}))
        seconds = time.monotonic() - began
        print(
            f"{seconds:5.0f} s  {name}: {made} mutants, {known} equivalent, {len(left)} accepted", flush=True
        )
        for each in left:
            print(f"  {each.change}", flush=True)
    print(f"{count} accepted")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
