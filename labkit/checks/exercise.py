"""What an exercise is: a function to write, the cases to try it on, and what to say of a wrong answer.

The job that runs a student's code imports this module, too, so nothing here names an exercise.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from mpiwatch.report import FindingKind

# The wheel carries the notebooks inside the package. In a clone they are beside it.
PACKAGE = Path(__file__).resolve().parents[1]
ORIGINALS = (PACKAGE / "originals" if (PACKAGE / "originals").is_dir() else PACKAGE.parent) / "notebooks"
HEADING_FORM = "'### Exercise N.N · title' and, in the next line, stars and 'N minutes'"
EXERCISE = re.compile(r"^### Exercise\b", re.MULTILINE)
HEADING = re.compile(r"^### Exercise \S+ · (.+)\n(★+)☆* .*?(\d+) minutes", re.MULTILINE)
NOT_CORE = re.compile(r"^★.* · (not on the core path|optional)$", re.MULTILINE)  # below a heading


class Case(NamedTuple):
    """One call of the student's function, on one rank or on several.

    `label` says what is special about the call, for example "3 samples, 2 inputs, float32". `arguments` holds
    one tuple of arguments for each rank, without the communicator.
    """

    label: str
    arguments: tuple[tuple[Any, ...], ...]

    @property
    def ranks(self) -> int:
        """Return the number of ranks that the case takes."""
        return len(self.arguments)


class Call(NamedTuple):
    """A call of a communicator's method: the bytes of its smallest and largest array, or of its object.

    `peer`: of a message, the other rank in the world. `at_s` is a time, `ranks` the number of the
    communicator's ranks.
    """

    name: str
    least: int = 0
    most: int = 0
    peer: int = -1
    at_s: float = 0.0
    ranks: int = 0


class Fault(NamedTuple):
    """What strict mode has found in a call: the category of the error, the finding, the student's line.

    `kind`: the name of a FindingKind, which decides what the check advises.
    """

    category: str
    text: str
    place: str
    kind: str = FindingKind.OTHER.name


class Outcome(NamedTuple):
    """What one call of the student's function did on one rank.

    `result` is what it returned. `arguments` holds the arguments as they were after the call.
    `shares_memory`: the result shares memory with an argument, although it must not. The rest is empty for a
    function that gets no communicator: `sent` and `messages`, the bytes and messages that this rank sent to
    each rank, shape (p,), `calls`, its calls of the communicator's methods, and `faults`, what strict mode
    has found.
    """

    result: Any
    arguments: tuple[Any, ...]
    sent: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    faults: tuple[Fault, ...] = ()
    shares_memory: bool = False


class HeadingError(ValueError):
    """A notebook does not state an exercise's difficulty and minutes."""


class Heading(NamedTuple):
    """The heading of an exercise in its notebook, with the stars and the minutes below."""

    title: str
    difficulty: int  # 1 (a formula to type) … 5 (an idea to find)
    minutes: int
    on_core_path: bool = True
    link: str = ""  # from a notebook beside it to the cell with the task: JupyterLab scrolls to it


@dataclass(frozen=True)
class Verdict:
    """What is known about a student's function. If `check_failed`, nothing is, and `finding` says why.

    `parts`: of an exercise with parts, what is wrong with each, nothing if it is right; empty if the function
    could not be judged part by part.
    """

    passed: bool
    finding: str = ""
    cases: int = 0
    check_failed: bool = False
    printed: str = ""
    parts: dict[str, str] = field(default_factory=dict)


Look = Callable[[Case, Sequence[Outcome]], Iterable[str]]
LookAtParts = Callable[[Case, Sequence[Outcome]], Iterable[tuple[str, str]]]
MPI: Any = None  # stands for mpi4py's, which a prelude imports: a notebook's kernel must not load it
Code = str | Mapping[str, str]  # the text of a cell, or what is replaced in the reference's text, and by what
CAUGHT = "…"  # stands before words of a finding that the check makes without knowing the mistake


@dataclass(frozen=True)
class Exercise:
    """One exercise. Its name is that of the function to write: `reference.__name__`.

    `reference` is the solution. Its source text goes into the solution notebooks, so it uses only names that
    `prelude` imports, and its signature and docstring are those of the stub in the notebook. If its
    first argument is `comm`, it gets the communicator, and each case runs on `case.ranks` ranks; otherwise
    each case has one tuple of arguments.

    `cases()` yields the cases, the smallest first: the first that fails is the one that is reported. It must
    yield the same cases each time, as they are made anew in each process.

    `expected(case)` returns the right result of each rank: by labkit's own function, or on one rank with all
    data. Without it, what the reference returns is right; the reference then needs no ranks. If `result_in`
    is a number, the result is not what the function returns, but what it leaves in the argument of that
    number. If it is a tuple of numbers, so is the result; None in it stands for what the function returns.
    `digest(result)`, if given, turns a result that cannot be sent to another process into one that can, in
    the process that made it: `list` for a generator.

    `mistakes` maps the sentence that explains a plausible mistake, such as "db sums over the outputs; sum
    over the samples", to the cell as a student would write it: its text, or what to replace in the text of
    the reference. If the student's result is wrong, or `look` finds a fault where nothing is expected, the
    job runs the mistakes on the same cases; if results are equal, the sentence is the finding. (If several
    return the same, the first is named.) A key that starts with "…" is not a sentence but words of the
    finding that the check makes by itself: an error, a hang, a forbidden call, traffic, a difference. The
    check does not run such a mistake; `make exercises` does.

    `look(case, outcomes)` yields findings that results do not show, such as traffic; `check` prints one.
    It is called only if all results are right. With `look` and without `expected`, many results are right,
    for example schedules, and `look` alone judges.

    A long exercise can have `parts`, each with its share of the points. Then `look_at_parts(case, outcomes)`
    takes the place of `look`: it yields pairs of a part and a finding, all of them, and a part without a
    finding gives its points.

    `forbidden` holds methods of the communicator that would do the exercise by themselves. If
    `without_loops`, the function may hold no loop; `must_use` holds names that it must use, as its task
    says, or "this or that" for one of two. `may_change` holds the numbers of arguments that the function may
    change, besides `result_in`. If `returns_new`, the result is an array that shares no memory with an
    argument.

    `wrap(comm, case)`, if given, returns the communicator that the function gets, for example one on an
    emulated slow link. `tolerance` is relative to the largest expected value; None means to rounding of the
    result's dtype. All cases together may take
    `deadline_s` seconds, and more while ranks wait for a core.
    """

    reference: Callable[..., Any]
    cases: Callable[[], Iterable[Case]]
    hints: tuple[str, ...]
    expected: Callable[[Case], Sequence[Any]] | None = None
    mistakes: Mapping[str, Code] = field(default_factory=dict)
    look: Look | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    look_at_parts: LookAtParts | None = None
    result_in: int | tuple[int | None, ...] | None = None
    forbidden: tuple[str, ...] = ()
    may_change: tuple[int, ...] = ()
    returns_new: bool = False
    wrap: Callable[[Any, Case], Any] | None = None
    digest: Callable[[Any], Any] | None = None
    tolerance: float | None = None
    prelude: str = ""  # by default, NumPy and, for a function on ranks, mpi4py
    without_loops: bool = False
    must_use: tuple[str, ...] = ()
    deadline_s: float = 10.0
    is_strict: bool = True  # whether the ranks run in strict mode, which emulated links cannot

    def __post_init__(self) -> None:
        imports = "import numpy as np"
        if self.on_ranks:
            imports += "\nfrom mpi4py import MPI"
        object.__setattr__(self, "prelude", self.prelude or imports)

    @property
    def name(self) -> str:
        """Return the function's name, which is the exercise's too."""
        return self.reference.__name__

    @property
    def on_ranks(self) -> bool:
        """Return whether the function takes a communicator, `comm`, as its first argument."""
        return next(iter(inspect.signature(self.reference).parameters), "") == "comm"

    @property
    def notebook(self) -> str:
        """Return the notebook's number, in its file's name as in that of the exercises: "05", "07b"."""
        return self.reference.__module__.partition(".nb")[2]

    @property
    def many_are_right(self) -> bool:
        """Return whether `look` alone judges."""
        return self.expected is None and (self.look is not None or self.look_at_parts is not None)

    @property
    def heading(self) -> Heading:
        """Return what stands above the exercise in its notebook. Raise HeadingError if nothing does."""
        of_notebook = headings(self.notebook)
        if self.name not in of_notebook:
            raise HeadingError(
                f"expected a cell with {HEADING_FORM} above that of `{self.name}` in "
                f"{ORIGINALS}/{self.notebook}_*.ipynb, found none. If you have edited it, restore that cell"
            )
        return of_notebook[self.name]

    @property
    def points(self) -> int:
        """Return the points of an exercise that is done: one for five minutes."""
        return max(1, round(self.heading.minutes / 5))

    def share_of_points(self, verdict: Verdict) -> float:
        """Return the share of the points that an answer with this verdict gets, from 0 to 1."""
        if verdict.passed:
            return 1.0
        right = sum(weight for part, weight in self.parts.items() if verdict.parts.get(part) == "")
        return right / sum(self.parts.values()) if right else 0.0

    def right_parts(self, verdict: Verdict) -> str:
        """Return which parts of a wrong answer are right, as a sentence; empty without parts."""
        if verdict.passed or not verdict.parts:
            return ""
        right = [part for part in self.parts if not verdict.parts[part]]
        wrong = [part for part in self.parts if verdict.parts[part]]
        return f"Right: {', '.join(right) or 'none of its parts'}. Not yet: {', '.join(wrong)}."

    @property
    def text(self) -> str:
        """Return the reference's source text, without the comments that linters read."""
        text = textwrap.dedent(inspect.getsource(self.reference))
        return re.sub(r"[ \t]*# (type: ignore|noqa)\b.*", "", text)

    @property
    def stub(self) -> str:
        """Return a hash of the signature and docstring: with another one, it was another exercise."""
        text = f"{inspect.signature(self.reference)}\n{inspect.getdoc(self.reference)}"
        return sha256(text.encode()).hexdigest()[:8]

    def result(self, outcome: Outcome) -> Any:
        """Return what is judged: the function's result, or what it left in its arguments, or both."""
        place = self.result_in
        if isinstance(place, tuple):
            return tuple(outcome.result if index is None else outcome.arguments[index] for index in place)
        return outcome.result if place is None else outcome.arguments[place]

    def right_results(self, case: Case) -> list[Any]:
        """Return the right result of each rank. Raise ValueError if there are more or fewer."""
        if self.expected is None:
            of_ranks = copy.deepcopy(case.arguments)
            return [self.result(Outcome(self.reference(*of_rank), of_rank)) for of_rank in of_ranks]
        results = list(self.expected(case))
        if len(results) != case.ranks:
            raise ValueError(f"{self.name}: expected({case.label}) has {len(results)} results")
        return results

    def mistaken(self, finding: str) -> str:
        """Return the cell that makes a mistake. Raise ValueError if the reference lacks what it changes."""
        code = self.mistakes[finding]
        if isinstance(code, str):
            return code
        text = self.text
        for old, new in code.items():
            if old not in text:
                raise ValueError(f"{self.name}, {finding!r}: the reference does not hold {old!r}")
            text = text.replace(old, new)
        return text

    @property
    def recognised(self) -> list[str]:
        """Return the sentences of the mistakes that the check recognises by their results."""
        return [finding for finding in self.mistakes if not finding.startswith(CAUGHT)]


def exercises_of(module: str) -> list[Exercise]:
    """Return the exercises that a module defines, in their order."""
    return [value for value in vars(importlib.import_module(module)).values() if isinstance(value, Exercise)]


def exercise_in(module: str, name: str) -> Exercise:
    """Return a module's exercise by the name of its function."""
    for exercise in exercises_of(module):
        if exercise.name == name:
            return exercise
    raise LookupError(f"{module} has no exercise {name!r}")


@cache
def headings(notebook: str) -> dict[str, Heading]:
    """Return the headings of a notebook's exercises by the names of the functions in their cells.

    Raise HeadingError for a heading of an exercise without stars and minutes.
    """
    headings_by_name, heading = dict[str, Heading](), None
    for path in sorted(ORIGINALS.glob(f"{notebook}_*.ipynb")):  # Jupyter's "Duplicate" makes a second one
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if EXERCISE.search(text):
                match = HEADING.search(text)
                if match is None:
                    raise HeadingError(f"{path}: expected {HEADING_FORM}, found {text[:80]!r}")
                is_core = NOT_CORE.search(text) is None
                link = f"{path.name}#cell-id={cell.get('id', '')}"
                heading = Heading(match[1], len(match[2]), int(match[3]), is_core, link)
            elif heading and "exercise" in cell["metadata"].get("tags", ()):
                for name in re.findall(r"^def (\w+)", text, re.MULTILINE):
                    headings_by_name.setdefault(name, heading)
    return headings_by_name


def is_stub(text: str, name: str) -> bool:
    """Tell whether the function of this name in a cell has no code: a docstring and `pass`, say."""
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep for the parser
        return False
    definitions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    return bool(definitions) and all(map(_does_nothing, definitions[-1].body))


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return statement.exc is not None and "NotImplementedError" in ast.dump(statement.exc)
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
