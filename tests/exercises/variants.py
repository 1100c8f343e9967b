"""Right variants of the references, written in other ways: no check may refuse one.

    python -m tests.exercises.variants [NAME …]

makes those of all exercises, or of these exercises or notebooks ("nb03"), hands them in, and prints for each
exercise how many there are, and each that its check refuses, with the finding.

A transformation changes all places of a reference that it fits, and keeps what the function does. LEFT_OUT
says where one would break the exercise's task. Some variants combine several transformations.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from labkit.checks.exercise import Exercise
from labkit.exercises import catalogue
from tests.exercises import rewrites, rewrites_mpi
from tests.exercises.corpus import submit
from tests.exercises.mutants import accepted
from tests.exercises.rewriting import Transformation

FEWEST = 10  # variants of an exercise


class Variant(NamedTuple):
    """A variant: the transformations that made it, and its text."""

    change: str
    text: str


TRANSFORMATIONS: dict[str, Transformation] = {
    **{name: rewrites.by_rules(rules) for name, rules in rewrites.RULES.items()},
    **{
        function.__name__.replace("_", " "): function
        for function in (*rewrites.OF_FUNCTIONS, *rewrites.OF_STATEMENTS, *rewrites_mpi.OF_CALLS)
    },
}
# Chains of transformations: each one changes the result of the one before.
CHAINS = (
    ("renamed", "while over list", "in class", "with hints"),
    ("loops for comprehensions", "while over iterator", "plain assignments", "beside"),
    ("isend", "waits by test", "tagged", "nested"),
    ("persistent", "slice objects", "renamed", "beside"),
    ("both under way", "counted arrays", "in static method", "without docstring"),
    ("pickled", "inverted conditions", "renamed", "through lambda"),
    ("new array in place", "functions for methods", "np.matmul", "named results", "beside"),
    ("comparisons turned round", "inverted conditions", "early return", "separate assignments", "nested"),
    ("receive under way", "isend", "on own communicator"),
)
# Changes of the text that the syntax tree does not show.
TEXTS: dict[str, Callable[[str], str]] = {
    "tabs": lambda text: "\n".join(
        "\t" * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ") for line in text.split("\n")
    ),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "a comment at each end": lambda text: f"# Exercise\n\n{text}\n# The end",
}
# Where a transformation would not be right, and why.
ONE_ALLREDUCE = "the task asks for one `Allreduce`"
A_TUPLE = "the task asks for a tuple"
NO_WAITALL = "the task says that emulated links do not know `Waitall`"
LEFT_OUT: dict[str, dict[str, str]] = {
    "global_statistics": {"reduce and bcast arrays": ONE_ALLREDUCE},
    "ring_reduce_scatter": {"exchange in one array": "the chunks that travel at once differ in length"},
    "time_pairs": {
        "pickled": "the task asks for `Send` and `Recv`: emulated links do not delay objects",
        "persistent": "the task asks for `Send` and `Recv`: emulated links refuse persistent requests",
        "matched probe": "the task asks for `Send` and `Recv`: emulated links refuse `Mprobe`",
    },
    "average_overlapped": {"waits by waitall": NO_WAITALL},
    "reduce_scatter_overlapped": {"waits by waitall": NO_WAITALL},
    "predicted_bytes": {"lists for tuples": A_TUPLE},
    "spread": {"lists for tuples": "the task asks for a pair"},
    "verdicts": {"lists for tuples": A_TUPLE},
    "accumulate": {
        "isend": "the task asks for `Allreduce`, whose calls the notebook counts",
        "pickled": ONE_ALLREDUCE,
        "reduce and bcast arrays": ONE_ALLREDUCE,
        "while over list": "all gradients stand in one array: use each before you take the next pair",
    },
}


def variants(exercise: Exercise) -> list[Variant]:
    """Return the variants of an exercise's reference, each only once, that call no forbidden method."""
    reference = exercise.text
    whole = ast.unparse(ast.parse(reference))
    by_text: dict[str, Variant] = {}
    for names in [*((name,) for name in TRANSFORMATIONS), *CHAINS]:
        if set(names) & LEFT_OUT.get(exercise.name, {}).keys():
            continue
        text, used = whole, list[str]()
        for name in names:
            tree = ast.parse(text)
            TRANSFORMATIONS[name](tree, exercise)
            changed = ast.unparse(ast.fix_missing_locations(tree))
            if changed != text:
                used.append(name)
            text = changed
        if text not in (whole, *by_text) and not _methods(text) & set(exercise.forbidden):
            by_text[text] = Variant(", ".join(used), text)
    of_text = [Variant(name, change(reference)) for name, change in TEXTS.items()]
    return [*by_text.values(), *of_text]


def _methods(text: str) -> set[str]:
    """Return the names of the methods that a text calls."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}


def refused(exercise: Exercise, tried: list[Variant]) -> list[tuple[Variant, str]]:
    """Return the variants that an exercise's check refuses, with the findings that a student would get."""
    passes = accepted(exercise, [variant.text for variant in tried])
    doubtful = [variant for variant, passed in zip(tried, passes, strict=True) if not passed]
    found = submit(exercise.name, *(variant.text for variant in doubtful))
    return [
        (variant, verdict.finding)
        for variant, verdict in zip(doubtful, found, strict=True)
        if not verdict.passed
    ]


def main(wanted: list[str]) -> int:
    """Print what is refused of the variants of the exercises of these names or notebooks."""
    made: dict[str, int] = {}
    count = 0
    for name, exercise in catalogue.exercises().items():
        if wanted and not {name, f"nb{exercise.notebook}"} & set(wanted):
            continue
        began, tried = time.monotonic(), variants(exercise)
        faults = refused(exercise, tried)
        made[name], count = len(tried), count + len(faults)
        seconds = time.monotonic() - began
        print(f"{seconds:5.0f} s  {name}: {len(tried)} variants, {len(faults)} refused", flush=True)
        for variant, finding in faults:
            print(f"  {variant.change}: {finding}", flush=True)
    if not made:
        print(f"there is no exercise or file of exercises named {' or '.join(wanted)}")
        return 1
    fewest = min(made, key=made.__getitem__)
    print(f"{sum(made.values())} variants, {made[fewest]} at least ({fewest}), {count} refused")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
