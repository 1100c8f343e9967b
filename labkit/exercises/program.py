"""my_ddp.py: which of a student's functions it holds, what it can do with them, and its text.

The program grows. `my_ddp.template` holds what joins the functions. What it can do is a list of features,
each of which needs some of the student's functions: FEATURES. A comment in the template starts a part that
belongs to a feature, or one that stands in for it, and `# [end]` ends the part:

    # [with ring]            only if the functions of this feature are there
    # [with ring or tree]    if those of one of them are
    # [without network]      if they are not: the plainest thing that works
    x = 3  # [with ring]     this line alone
    # <ring_allgather>       the student's function
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from labkit.checks.exercise import Exercise
from labkit.exercises import catalogue
from labkit.exercises.statements import (
    LIBRARIES,
    Definition,
    NotCarried,
    Statement,
    modules,
    needed,
    statements,
)
from labkit.text import COLUMNS, counted, wrapped

TEMPLATE = Path(__file__).with_name("my_ddp.template")
PLACE = re.compile(r"^# <(\w+)>$", re.MULTILINE)
PART = re.compile(r"\s*# \[(with|without) ([\w -]+)\]")
END = re.compile(r"\s*# \[end\]")
LINE = re.compile(r"  # \[with ([\w -]+)\]$")
HEAD = "# [head]"
IMPORTS = re.compile(r"^import argparse\n(?:.*\n)*?from mpi4py import MPI\n", re.MULTILINE)
YOURS = re.compile(r"^# Yours: (\w+), notebook \w+$", re.MULTILINE)
SIGNED = "\n# Written by `labkit collect`, {}. If you change this file, the next one is written beside it.\n"


class Feature(NamedTuple):
    """Something that the program can do: the functions that it needs, and what it does in a few words."""

    functions: tuple[str, ...]
    adds: str
    without: str = ""  # what stands in for it until then


_NETWORK = "linear_backward", "softmax_cross_entropy", "views"
_LENET5 = *_NETWORK, "im2col", "conv_forward", "conv_backward"
_RING = "ring_reduce_scatter", "ring_allgather"
# In the order of the course.
FEATURES = {
    "strided": Feature(
        ("my_items",), "each rank takes every p-th digit", "each rank takes a slice of the digits"
    ),
    "network": Feature(
        _NETWORK, "a network of layers, with a hidden one", "the model is linear: softmax(x W + b)"
    ),
    "mlp": Feature((*_NETWORK, "mlp_gradient"), "`--model mlp` computes your gradient"),
    "mean": Feature(
        ("average_gradients",), "`--average mpi` is your average", "MPI's Allreduce averages the gradient"
    ),
    "epoch": Feature(("train_epoch",), "your loop trains", "a plain loop trains"),
    "lenet5": Feature(_LENET5, "`--model lenet5`: convolutions"),
    "cnn": Feature((*_LENET5, "max_pool"), "`--model cnn`: convolutions and max-pooling"),
    "shuffled": Feature(
        ("shuffled_shard",), "a new order of the digits in each epoch", "the order of the digits stays"
    ),
    "bounds": Feature(
        ("step_bounds", "average_gradients", "train_epoch"),
        "each epoch uses all digits",
        "digits that do not fill a step on all ranks are left out",
    ),
    "by-digit": Feature(("accuracy_by_label",), "the accuracy of each digit"),
    "root": Feature(("average_by_root",), "`--average root`"),
    "tree": Feature(("average_by_tree",), "`--average tree`"),
    "allgather": Feature(("average_by_allgather",), "`--average allgather`"),
    "reduce": Feature(("average_by_reduce",), "`--average reduce`"),
    "gather": Feature(("average_by_gather",), "`--average gather`"),
    "ring": Feature(_RING, "`--average ring`"),
    "ring-reduce": Feature(("ring_reduce_rounds",), "`--average ring-reduce`"),
    "two-level": Feature((*_RING, "two_level_sum"), "`--average two-level`"),
    "my-allreduce": Feature(("my_allreduce",), "`--average my-allreduce`"),
    "overlapped": Feature(
        (*_NETWORK, "bucket_plan", "average_overlapped"),
        "`--average overlapped`: buckets during the backward pass",
    ),
    "sharded": Feature(("sharded_step",), "`--average sharded`: ZeRO-1"),
    "zero": Feature(
        (*_NETWORK, "reduce_scatter_overlapped", "gather_ahead"), "`--average zero-2` and `zero-3`"
    ),
    "equal": Feature(("weights_equal",), "a check after each epoch that the ranks' weights are equal"),
    "momentum": Feature(("momentum_step",), "`--momentum`", "the optimiser is plain SGD"),
    "accumulate": Feature(("accumulate",), "`--accumulate`: several micro-batches in a step"),
    "warm-up": Feature(("warm_up_cosine",), "`--warm-up`, then a cosine"),
}
_SUMS = "ring", "two-level", "ring-reduce", "my-allreduce"
_STEPS = "overlapped", "sharded", "zero"
# A group is there if one of its features is.
GROUPS = {
    "weighted": ("root", "tree", "allgather", "reduce"),
    "summed": _SUMS,
    "schedules": ("ring-reduce", "my-allreduce"),
    "steps": _STEPS,
    "averages": ("root", "tree", "allgather", "reduce", "gather", *_SUMS, *_STEPS),
}


class Answers(NamedTuple):
    """The student's functions that fit into the program: what each needs; and why others are left out."""

    statements: Mapping[str, Sequence[Statement]]
    left_out: Mapping[str, str]

    def has(self, feature: str) -> bool:
        """Return whether all functions of a feature, or of one of a group's features, are there."""
        if feature in GROUPS:
            return any(self.has(member) for member in GROUPS[feature])
        return all(name in self.statements for name in FEATURES[feature].functions)

    @property
    def used(self) -> list[str]:
        """Return the names of the functions that the program uses, in its order."""
        features = [feature for name, feature in FEATURES.items() if self.has(name)]
        names = {name for feature in features for name in feature.functions}
        return [name for name in places() if name in names]

    @property
    def waiting(self) -> dict[str, str]:
        """Return, for each function that nothing uses yet, which other functions it waits for."""
        reasons = {}
        for name in self.statements:
            if name not in self.used:
                feature = next(feature for feature in FEATURES.values() if name in feature.functions)
                missing = [other for other in feature.functions if other not in self.statements]
                reasons[name] = f"{feature.adds} needs {', '.join(missing)}, too"
        return reasons


def places() -> dict[str, Exercise]:
    """Return the exercises whose functions have a place in the program, by name, in its order."""
    return {name: catalogue.find(name) for name in PLACE.findall(TEMPLATE.read_text())}


def fitting(passed_cells: Mapping[str, str]) -> Answers:
    """Return which of the kept answers, texts by name, fit into the program."""
    exercises = places()
    joining = {name: part for part in _joining_code() for name in part.binds}
    provided = frozenset(exercises) | frozenset(joining)
    # The names of the program, and of the helpers that tasks define: a student's helper of such a name that
    # is another function gives way.
    claims = {name: part.same for name, part in joining.items()}
    for name, exercise in exercises.items():
        for part in needed(exercise, exercise.text, provided):
            claims |= dict.fromkeys(part.binds - {name}, part.same)
    answers: dict[str, Sequence[Statement]] = {}
    left_out: dict[str, str] = {}
    for name, exercise in exercises.items():
        if name in passed_cells:
            try:
                parts = needed(exercise, passed_cells[name], provided)
                claims |= _new_names(name, parts, claims, frozenset(exercises))
                answers[name] = parts
            except NotCarried as error:
                left_out[name] = str(error)
    _leave_out_callers(answers, left_out, exercises)
    return Answers(answers, left_out)


def _joining_code() -> list[Statement]:
    """Return all statements of the template, of all features."""
    return statements(TEMPLATE.read_text())


def _new_names(
    name: str, parts: Sequence[Statement], claims: Mapping[str, str], exercises: frozenset[str]
) -> dict[str, str]:
    """Return the names that an answer adds to the program. Raise NotCarried if they do not fit into it."""
    new: dict[str, str] = {}
    for part in parts:
        foreign = modules(part.text) - LIBRARIES
        if foreign:
            raise NotCarried(f"it imports {min(foreign)}, and the program needs only NumPy and mpi4py")
        for bound in part.binds - {name}:
            if bound in exercises:
                raise NotCarried(f"its cell has a `{bound}` of its own, which is another exercise")
            if claims.get(bound, part.same) != part.same:
                raise NotCarried(
                    f"the program has another `{bound}`; give yours another name and check it again"
                )
            new[bound] = new.get(bound, "") + part.same
        early = part.now & exercises
        if early:
            raise NotCarried(f"its cell calls `{min(early)}` before the program has defined it")
    return new


def _leave_out_callers(
    answers: dict[str, Sequence[Statement]], left_out: dict[str, str], exercises: Mapping[str, Exercise]
) -> None:
    """Move answers that call a function which is not there from `answers` to `left_out`."""
    complete = False
    while not complete:
        complete = True
        for name, parts in list(answers.items()):
            called = frozenset().union(*(part.later for part in parts)) & set(exercises) - {name}
            missing = sorted(called - set(answers))
            if missing:
                del answers[name]
                notebook = exercises[missing[0]].notebook
                left_out[name] = f"it calls `{missing[0]}` of notebook {notebook}, which is not there yet"
                complete = False


def program(answers: Answers) -> str:
    """Return the text of the program."""
    text = _selected(TEMPLATE.read_text(), answers)
    imports = {part.text for part in statements(text) if part.is_import}
    texts = {}
    placed: set[str] = set()  # a helper that two answers share stands once
    for name in answers.used:
        new = [part for part in answers.statements[name] if part.is_import or part.same not in placed]
        imports |= {part.text for part in new if part.is_import}
        placed |= {part.same for part in new}
        mark = f"# Yours: {name}, notebook {catalogue.find(name).notebook}\n"
        texts[name] = mark + _joined([part for part in new if not part.is_import])
    text = PLACE.sub(lambda match: texts[match[1]], text)
    text = IMPORTS.sub(lambda match: _sorted(_only_used(imports, text)), text, count=1)
    text = text.replace(HEAD, _head(answers))
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    return signed(text)


def _selected(template: str, answers: Answers) -> str:
    """Return the parts of the template that belong to the program, without the comments that mark them."""
    lines = []
    wanted = True
    for line in template.split("\n"):
        part, single = PART.fullmatch(line), LINE.search(line)
        if part:
            has_one = any(answers.has(feature) for feature in part[2].split(" or "))
            wanted = has_one == (part[1] == "with")
        elif END.fullmatch(line):
            wanted = True
        elif single:
            if wanted and answers.has(single[1]):
                lines.append(line[: single.start()])
        elif wanted:
            lines.append(line)
    return "\n".join(lines)


def _joined(parts: Sequence[Statement]) -> str:
    """Return statements below one another, with two empty lines around functions and classes."""
    text = ""
    for part in parts:
        if text:
            text += "\n\n\n" if issubclass(part.kind, Definition) else "\n"
        text += part.text
    return text


def _only_used(imports: set[str], text: str) -> list[str]:
    """Return the imports whose names the text uses."""
    names = {line: re.split(r"\W+", line)[-1] for line in imports}
    return [line for line in imports if len(re.findall(rf"\b{names[line]}\b", text)) > text.count(line)]


def _sorted(imports: Sequence[str]) -> str:
    """Return import lines as one text: first the standard library's, then NumPy's and mpi4py's."""
    blocks: list[list[str]] = [[], []]
    for line in sorted(imports, key=lambda line: (line.startswith("from"), line)):
        is_third_party = bool(modules(line) & {"numpy", "mpi4py"})
        blocks[is_third_party].append(f"{line}\n")
    return "\n".join("".join(block) for block in blocks)


def _head(answers: Answers) -> str:
    """Return which functions are the student's, by notebook, and what stands in for those to come."""
    by_notebook: dict[str, list[str]] = {}
    for name in answers.used:
        by_notebook.setdefault(catalogue.find(name).notebook, []).append(name)
    lines = [
        wrapped(f"notebook {number}: {', '.join(names)}", COLUMNS - 4)
        for number, names in by_notebook.items()
    ]
    text = (
        "Your functions:\n" + indent("\n".join(lines), "    ")
        if lines
        else "None of its functions is yours yet."
    )
    plain = [
        feature.without for name, feature in FEATURES.items() if feature.without and not answers.has(name)
    ]
    if plain:
        text += "\n\n" + wrapped(f"Until you have written more, {'; '.join(plain)}.", COLUMNS)
    return text


def signed(text: str) -> str:
    """Return a program with the line that shows later whether the student has changed it."""
    return text + SIGNED.format(sha256(text.encode()).hexdigest()[:8])


def is_changed(text: str) -> bool:
    """Return whether somebody has changed a program since it was written."""
    return text != signed(text.rpartition("\n# Written by ")[0])


def report(answers: Answers, old: str, length: int) -> list[str]:
    """Return lines for the student: what is new since the text `old`, what is left out, what comes next."""
    before = Answers(dict.fromkeys(YOURS.findall(old), ()), {})
    lines = [f"my_ddp.py: {counted(length, 'line')}, {counted(len(answers.used), 'function')} of yours."]
    for name, feature in FEATURES.items():
        if answers.has(name) and not before.has(name):
            lines.append(wrapped(f"New: {feature.adds} ({', '.join(feature.functions)}).", COLUMNS))
    for name, why in answers.left_out.items():
        lines.append(wrapped(f"Left out: {name}: {why}.", COLUMNS))
    for name, why in answers.waiting.items():
        lines.append(wrapped(f"Not used yet: {name}: {why}.", COLUMNS))
    later = [name for name in FEATURES if not answers.has(name)]
    if later:
        feature = FEATURES[later[0]]
        missing = [name for name in feature.functions if name not in answers.statements]
        notebook = catalogue.find(missing[0]).notebook
        lines.append(
            wrapped(f"Next: {feature.adds}, with {', '.join(missing)} (notebook {notebook}).", COLUMNS)
        )
    return lines
