"""What the student has written, used elsewhere: as my_ddp.py, as a function, and on the ranks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from labkit import data
from labkit.checks import answers
from labkit.exercises import catalogue, program, record, weeks
from labkit.exercises.checking import cell_text, whose
from labkit.exercises.statements import NotCarried, Statement, definitions, needed, statements
from labkit.files import atomic_write, kept_beside, read_input
from mpiwatch.sessions import is_cell

NAME, DIGITS = "my_ddp.py", "digits.npz"
COUNTED = "ring", "tree", "root"  # averages whose messages are the student's own: the last one learnt first


def collect(folder: str | Path = ".", ranks: int = 0) -> None:
    """Write my_ddp.py and its digits to a folder; print what is new in it, and what is left out and why.

    If `ranks` is not 0, run it on that many ranks, too, and show how it does, and how it did before.
    """
    answers = program.fitting(record.passed_cells())
    text, target = program.program(answers), Path(folder) / NAME
    lines = []
    try:
        old = read_input(target).decode(errors="replace") if target.exists() else ""
        if old and program.is_changed(old):
            lines.append(f"You have changed {NAME}: your version is now {kept_beside(target)}.")
        for path, content in {target: text.encode(), target.with_name(DIGITS): _digits()}.items():
            if not path.exists() or read_input(path) != content:
                with atomic_write(path) as file:
                    file.write(content)
    except OSError as error:
        name = Path(error.filename).name if isinstance(error.filename, str) else NAME
        raise OSError(f"{name} cannot be written to {Path(folder).resolve()}: {error.strerror}.") from None
    lines += program.report(answers, old, len(text.splitlines()))
    print(*lines, f"Run it: mpiexec -n {ranks or 4} python {target}", sep="\n")
    if ranks:
        average = next((name for name in COUNTED if answers.has(name)), "")
        text, results = weeks.run_program(target, ranks, average)
        print(text)
        ipython: Any = sys.modules.get("IPython")
        if len(results) > 1 and ipython and ipython.get_ipython():
            ipython.display.display(weeks.figure(results))


def _digits() -> bytes:
    """Return the file of all digits: pixels (n, 64), 0 … 16, and labels (n,), both uint8."""
    digits, file = data.digits(), BytesIO()
    test = np.arange(len(digits.y_train) + len(digits.y_test)) % 5 == 4
    pixels, labels = np.empty((test.size, 64), np.uint8), np.empty(test.size, np.uint8)
    pixels[test], pixels[~test] = 16 * digits.x_test, 16 * digits.x_train
    labels[test], labels[~test] = digits.y_test, digits.y_train
    np.savez_compressed(file, pixels=pixels, labels=labels)
    return file.getvalue()


def own(name: str) -> tuple[Callable[..., Any], bool]:
    """Return the function of an exercise, and whether it is the student's own, kept when it passed its check.

    Otherwise it is the reference.
    """
    exercise = catalogue.find(name)
    try:
        parts = needed(exercise, record.passed_cells()[name])
        is_own = True
    except (KeyError, NotCarried):
        parts = needed(exercise, exercise.text)
        is_own = False
    names: dict[str, Any] = {"__name__": f"<answer of {name}>"}
    for statement in parts:
        exec(statement.text, names)
    function: Callable[..., Any] = names[name]
    return function, is_own


def to_ranks(view: Any, *functions: Callable[..., Any]) -> None:
    """Define functions of the notebook on the engines of a view, with what they need of their cells.

    That is imports, constants, and other functions, also of other cells. What a cell prints or computes
    besides is not repeated.
    """
    references = {function.__name__: function for function in functions if whose(function) != "your"}
    view.push(references, block=True)
    student_functions = [function for function in functions if function.__name__ not in references]
    view.execute(code_of(*student_functions), block=True)


def code_of(*functions: Callable[..., Any]) -> str:
    """Return the code of functions that cells define, with what they need of these and other cells."""
    cells: dict[str, list[Statement]] = {}  # by the name of the cell's file
    waiting = [inspect.unwrap(wrapped_function) for wrapped_function in functions]
    for function in waiting:
        file = function.__code__.co_filename
        if file not in cells:
            cells[file] = statements(answers.runnable(cell_text(function)))
        defining = [statement for statement in cells[file] if function.__name__ in statement.binds]
        for name in {name for statement in defining for name in statement.now | statement.later}:
            value = function.__globals__.get(name)
            other = inspect.unwrap(value) if callable(value) else None
            if (
                isinstance(other, FunctionType)
                and is_cell(other.__code__.co_filename)
                and other not in waiting
            ):
                waiting.append(other)
    everything = [statement for file in reversed(cells) for statement in cells[file]]  # helpers first
    chosen, names = set[int](), [unwrapped.__name__ for unwrapped in waiting]
    for name in names:
        new = set(definitions(name, everything)) - chosen
        chosen |= new
        names += [other for k in new for other in everything[k].now | everything[k].later]
    return "\n\n".join(everything[index].text for index in sorted(chosen))
