"""`check`, `hint` and `answer`: what a student calls; `whose`: what a notebook calls."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from itertools import groupby
from types import FunctionType
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from labkit import reports
from labkit.checks import answers
from labkit.checks.compare import kind
from labkit.checks.exercise import Exercise, HeadingError, is_stub
from labkit.checks.judging import judge_text
from labkit.cluster.adapter.functions import is_own_object
from labkit.exercises import catalogue, record
from labkit.exercises.reference import REFERENCE, reference_function
from labkit.exercises.watching import note_failure
from labkit.text import COLUMNS, NO_TAG, counted, wrapped
from mpiwatch.sessions import is_cell

PRINTED_LINES = 10
PRINTED_COLUMNS = COLUMNS - len("[stdout:0] ")  # with which `%%px` marks what rank 0 prints
USE = "the notebook uses the reference"
LEAST_WORDS = 5  # of an answer
VERDICTS = "supported", "rejected", "undecided"
GREEN, RED = "#1a7f37", "#b3261e"  # white on them is legible (5 : 1), in light and dark themes

NOT_A_FUNCTION = (
    "`check` takes the function itself, not what it returns: check(f), without parentheses behind the name."
)
HIDDEN = "its decorator hides the function from the check: leave it out, or let it use functools.wraps."
NO_NAME = "This is none of the notebook's exercises: give `check` the function that the task asks for."

Function = TypeVar("Function", bound=Callable[..., Any])


class CheckAnswer(NamedTuple):
    """What `check` says, and whether the notebook uses the student's function from here on."""

    text: str
    use_own: bool
    html: str = ""  # which a notebook shows in place of the text


class Display:
    """Where a check shows that it runs, and then its answer.

    A notebook's kernel updates one display. A rank of a notebook prints progress in lines that the next one
    replaces, which the live view shows. Terminals, programs and tests get the answer as text.
    """

    def __init__(self) -> None:
        ipython: Any = sys.modules.get("IPython")
        kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython else None
        is_compared = os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0")  # with saved outputs
        self.in_notebook = kernel is not None and not is_compared
        self.in_kernel = self.in_notebook and not is_own_object(kernel)
        self.publish: Any = ipython.display.publish_display_data if self.in_notebook else None
        self.id = uuid4().hex
        self.began = False

    def show(self, text: str, html: str = "", end: str = "\n") -> None:
        r"""Show a text, in a notebook as HTML if there is any, in place of a text that ended with \r."""
        data = {"text/plain": text} | ({"text/html": html} if html else {})
        if self.in_kernel and (html or end == "\r" or self.began):
            self.publish(data, transient={"display_id": self.id}, update=self.began)
            self.began = True
        elif self.in_notebook and html:
            print(" " * PRINTED_COLUMNS, end="\r", flush=True)
            self.publish(data, metadata={NO_TAG: True})
        else:
            print(text, end=end, flush=True)


def check(function: Function) -> Function:
    """Check the function of an exercise, print what is wrong, and return the function to use from here on.

    That is the student's own if it is correct, otherwise the reference. On several ranks, all call it, and
    rank 0 does the work.
    """
    name, display = name_of(function), Display()

    def make() -> CheckAnswer:
        if not callable(function):
            return CheckAnswer(NOT_A_FUNCTION, True)
        try:
            exercise = catalogue.find(name)
        except catalogue.UnknownExercise as error:
            return CheckAnswer(f"{error}." if name.isidentifier() else NO_NAME, True)
        except Exception as error:
            return CheckAnswer(f"{name}: NOT CHECKED, because the check itself failed: {error}.", True)
        plain: Any = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            return CheckAnswer(f"{name}: write it with def: it is {kind(plain)}, and no function.", False)
        return _answer(plain, exercise, display)

    try:
        use_own = _on_rank_0(display, make)
    except KeyboardInterrupt:
        if _world():  # the notebook says what each rank was doing
            raise
        display.show(f"{name}: the check was stopped.")
        stopped: Any = KeyboardInterrupt("the check was stopped.")
        stopped._render_traceback_ = lambda: [f"KeyboardInterrupt: {stopped}"]  # IPython shows this alone
        raise stopped from None
    if use_own:
        return function
    reference: Any = reference_function(catalogue.find(name), getattr(function, "__globals__", None))
    return reference


def name_of(function: Any) -> str:
    """Return the name of the exercise that a function is an answer to: its own, or a variable's.

    A lambda has no name of its own, and a decorated function may have the name of its wrapper.
    """
    name = getattr(function, "__name__", "")
    with suppress(catalogue.UnknownExercise):
        return catalogue.find(name).name
    names = getattr(function, "__globals__", None) or _cell_names()
    bound = (
        variable
        for variable, value in names.items()
        if value is function and variable in catalogue.exercises()
    )
    return next(bound, name)


def _cell_names() -> dict[str, Any]:
    """Return the variables of the cell, or of the module, that calls `check`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("labkit."):
        frame = frame.f_back
    return frame.f_globals


def hint(function: Callable[..., Any] | str) -> None:
    """Print the next hint for an exercise; each call opens one more."""
    name = function if isinstance(function, str) else getattr(function, "__name__", repr(function))
    world = _world()
    if world is not None and world.rank != 0:
        return
    try:
        hints = catalogue.find(name).hints
    except catalogue.UnknownExercise as error:
        print(f"{name}: {error}.")
        return
    opened = record.open_hint(name, len(hints))
    for number, text in enumerate(hints[:opened], 1):
        print(wrapped(f"{_title(number, hints)} for {name}: {text}", PRINTED_COLUMNS))


def answer(
    name: str, text: str = "", *, predicts: str = "", rejected_by: str = "", verdict: str = ""
) -> None:
    """Keep the answer to a question, such as "01-bias", and print the model answer.

    The answer is `text`, five words or more. If the model answer begins with a verdict, the answer is a
    hypothesis instead: the numbers that it predicts, the number that could reject it, and the verdict. The
    model answer then opens if the verdicts agree, and otherwise at the second attempt; the first is kept.
    """
    model = catalogue.questions()[name]
    right_verdict = model.partition(":")[0]
    student_verdict = verdict.strip(" :,.").lower()
    is_hypothesis = right_verdict in VERDICTS
    introduction = "A model answer, to compare with yours"
    least_words = 1 if "-bonus-" in name else LEAST_WORDS  # a bonus may ask for a line of code
    is_written = {"one or two sentences between the quotation marks": len(text.split()) >= least_words}
    if is_hypothesis:
        text = f"{predicts.strip()} Rejected by: {rejected_by.strip()} Verdict: {student_verdict}"
        rejection = rejected_by.lower()
        letter = name.split("-")[1]  # "10-a-data" is about report A
        has_number = "not printed" in rejection or "our run" in rejection or reports.prints(letter, rejection)
        is_written = {
            "predicts: the numbers that the sentence predicts": bool(predicts.strip()),
            f"rejected_by: the number that could reject it, and its value as report {letter.upper()} prints "
            'it (or "not printed", or "our run")': has_number,
            f"verdict: one of {', '.join(VERDICTS)}": student_verdict in VERDICTS,
        }
    missing = "; ".join(part for part, is_there in is_written.items() if not is_there)
    if missing:
        print(wrapped(f"Write {missing}, and run this cell for a model answer.", COLUMNS))
        return
    answer_text = " ".join(text.split())
    is_first = record.keep_answer(name, answer_text, once=is_hypothesis)
    if is_hypothesis and student_verdict != right_verdict:
        introduction = f"Your verdict, {student_verdict}, is not ours. Ours"
        if is_first:
            text = f"{introduction} opens at your next attempt. Look at the numbers once more."
            print(wrapped(text, COLUMNS))
            return
    elif is_hypothesis:
        introduction = f"Your verdict, {student_verdict}, is also ours. Ours"
    print(wrapped(f"{introduction}: {model}", COLUMNS))
    first_answer = record.first_answer(name)
    if not is_first and first_answer != answer_text:
        print(wrapped(f"Your first answer was: {first_answer}", COLUMNS))


def whose(*functions: Callable[..., Any]) -> str:
    """Return "your" if `check` has returned the student's own functions, "the reference's" otherwise."""
    files = [function.__code__.co_filename for function in functions]
    return "the reference's" if any(file.startswith(REFERENCE) for file in files) else "your"


def cell_text(function: Callable[..., Any]) -> str:
    """Return the text of the cell that defines a function; outside notebooks, of the function alone.

    Raise OSError if the text is not known.
    """
    file = function.__code__.co_filename
    lines = linecache.getlines(file) if is_cell(file) else []
    if lines:
        return "".join(lines)
    return textwrap.dedent(inspect.getsource(function))


def helpers(function: Callable[..., Any], exercise: Exercise, text: str) -> dict[str, str]:
    """Return the texts of the functions in other cells that an answer calls, directly or through others.

    `text` is the cell of the function. Of an exercise that is not solved yet, it calls the reference.
    """
    texts: dict[str, str] = {}
    names, waiting = function.__globals__, [text]
    file_of_function = function.__code__.co_filename
    while waiting:
        for name in answers.names_used(waiting.pop(), exercise.prelude):
            other = inspect.unwrap(names[name]) if callable(names.get(name)) else None
            if not isinstance(other, FunctionType) or name in texts or name == exercise.name:
                continue
            file = other.__code__.co_filename
            if file.startswith(REFERENCE):
                texts[name] = catalogue.find(file.removeprefix(REFERENCE).rstrip(">")).text
            elif is_cell(file) and file != file_of_function:
                with suppress(OSError):
                    texts[name] = textwrap.dedent(inspect.getsource(other))
            if name in texts:
                waiting.append(texts[name])
    return texts


def suspects(name: str) -> list[Callable[..., Any]]:
    """Return the mistakes that the check of an exercise recognises, as functions without a text to read."""
    exercise, functions = catalogue.find(name), []
    for sentence in exercise.recognised:
        names: dict[str, Any] = {}
        exec(exercise.prelude, names)
        exec(exercise.mistaken(sentence), names)
        functions.append(names[name])
    return functions


def is_reference(function: Callable[..., Any], exercise: Exercise) -> bool:
    """Tell whether a function is the reference, as `check` returns it or as the exercise holds it."""
    return function is exercise.reference or function.__code__.co_filename == f"{REFERENCE}{exercise.name}>"


def _answer(function: Callable[..., Any], exercise: Exercise, display: Display) -> CheckAnswer:
    name = exercise.name
    if is_reference(function, exercise):
        text = f"{name}: this is the reference. Run the cell with your own code again, then this one."
        magic = " Both must begin with %%px." if _world() else ""  # else it has not reached the ranks
        return CheckAnswer(f"{text}{magic}", False)
    try:
        text = cell_text(function)
    except (OSError, TypeError) as error:
        return CheckAnswer(_not_checked(name, f"the text of your cell is not known ({error})"), False)
    missing = _missing(text, name)
    if missing:
        return CheckAnswer(f"{name}: {missing}", False)
    called = helpers(function, exercise, text)
    if display.in_notebook:
        display.show(f"checking {name} …", end="\r")
    verdict = judge_text(exercise, "\n\n".join([text, *called.values()]))
    if verdict.check_failed:
        return CheckAnswer(_not_checked(name, verdict.finding), False)
    # The program that `collect` writes has the functions of other exercises at places of their own.
    texts_to_keep = [
        text,
        *(helper_text for other, helper_text in called.items() if other not in catalogue.exercises()),
    ]
    record.note(name, verdict.passed, "\n\n".join(texts_to_keep), verdict.finding)
    if verdict.passed:
        points = _points(exercise)
        cases = counted(verdict.cases, "case")
        below = f" {verdict.finding[0].upper()}{verdict.finding[1:]}." if verdict.finding else ""
        codes = {"Yours": textwrap.dedent(inspect.getsource(function)), "The reference": exercise.text}
        style = "flex: 1 1 24em; min-width: 0"
        sides = [f"<div style='{style}'>{title}:{_code(code)}</div>" for title, code in codes.items()]
        both = f"<div style='display: flex; flex-wrap: wrap; gap: 0 2em'>{''.join(sides)}</div>"
        shown = f"`{name}`: {cases}. {points}.{below}", _closed("Compare with the reference", both)
        text = f"{name}: correct ({cases}). {points}.{below}"
        return CheckAnswer(text, True, _card(GREEN, "✓ correct", *shown))
    finding = f"{verdict.finding}{'' if verdict.finding.endswith('?') else '.'}"
    parameters = list(inspect.signature(function).parameters)
    right_parameters = list(inspect.signature(exercise.reference).parameters)
    is_in_other_order = parameters != right_parameters and set(parameters) == set(right_parameters)
    if len(parameters) != len(right_parameters) or is_in_other_order:
        finding += f" Your function takes ({', '.join(parameters)}); "
        finding += f"the task says ({', '.join(right_parameters)})."
    right_parts = exercise.right_parts(verdict)
    finding += f" {right_parts}" if right_parts else ""
    finding += " The notebook uses the reference until it is."
    finding += note_failure(exercise, verdict.finding)
    magic = "%px " if _world() else ""  # the function is on the ranks
    printed, hints = _printed(verdict.printed), ""
    for number, text in reversed([*enumerate(exercise.hints, 1)]):
        hints = _closed(_title(number, exercise.hints), f"<div>{_marked(text)}</div>{hints}")
    below = f"<div>It printed:</div>{_code(printed)}" if printed else ""
    html = _card(RED, "✗ not correct yet", f"`{name}`: {finding}", below + hints)
    printed = f"\nIt printed:\n{printed}" if printed else ""
    text = f"{name}: not correct yet: {finding} For a hint: {magic}hint({name}){printed}"
    return CheckAnswer(text, False, html)


def _points(exercise: Exercise) -> str:
    """Return the points of an exercise that is done; that they are not known, if its notebook was edited."""
    try:
        return counted(exercise.points, "point")
    except HeadingError as error:
        return f"Points unknown: {error}"


def _missing(text: str, name: str) -> str:
    """Return why a cell holds no answer that can be checked; empty if it does."""
    tree = answers.parsed(text)
    if tree is not None and name not in answers.bound_names(tree):
        return HIDDEN
    return f"not written yet; {USE}." if is_stub(text, name) else ""


def _title(number: int, hints: Sequence[str]) -> str:
    title = f"Hint {number} of {len(hints)}"
    return f"{title} (the last)" if number == len(hints) else title


def _card(colour: str, label: str, text: str, below: str) -> str:
    """Return a verdict as HTML: a label on the colour that also frames it, a text, and what is below.

    JupyterLab's extension (labkit/cli/labextension) finds it by its class: the key H leads to its hints.
    """
    label = f"<b style='background: {colour}; color: white; border-radius: 3px; padding: 1px 7px'>{label}</b>"
    frame = f"border-left: 5px solid {colour}; padding-left: 10px; max-width: 70em"
    opening = f"<div role='status' class='labkit-verdict' style='{frame}'>"
    return f"{opening}<div>{label} {_marked(text)}</div>{below}</div>"


def _closed(title: str, html: str) -> str:
    """Return HTML that opens by a click on its title, or by the Enter key."""
    button = "cursor: pointer; width: fit-content; border: 1px solid; border-radius: 4px; padding: 0 8px"
    return f"<details><summary style='{button}; margin: 4px 0'>{title}</summary>{html}</details>"


def _code(text: str) -> str:
    style = "margin: 4px 0; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
    return f"<pre style='{style}'>{escape(text.strip())}</pre>"


def _marked(text: str) -> str:
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text, quote=False))


def _not_checked(name: str, why: str) -> str:
    return (
        f"{name}: NOT CHECKED, because the check itself failed: {why.rstrip('.')}. "
        f"This says nothing about your code; {USE}."
    )


def _printed(output: str) -> str:
    grouped = groupby(line for line in output.splitlines() if line.strip())
    counts = [(line, len(list(same))) for line, same in grouped]
    shown = [f"  {line}  ({count} times)" if count > 1 else f"  {line}" for line, count in counts]
    left = len(shown) - PRINTED_LINES
    more = [f"  … and {counted(left, 'more line')}"] if left > 0 else []
    return "\n".join([*shown[:PRINTED_LINES], *more])


def _world() -> Any:
    """Return the ranks that run this program, as a plain communicator; None if there is one process."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    world = module.Intracomm(module.COMM_WORLD)  # not watched: rank 0 may take longer than a deadline
    return world if world.size > 1 else None


def _on_rank_0(display: Display, make: Callable[[], CheckAnswer]) -> bool:
    """Make the answer on rank 0 and show it there; return its `use_own` on every rank."""
    world, use_own = _world(), bytearray(1)
    try:
        if world is None or world.rank == 0:
            try:
                answer = make()
            except Exception as error:
                answer = CheckAnswer(_not_checked("check", f"{type(error).__name__}: {error}"), False)
            display.show(wrapped(answer.text, PRINTED_COLUMNS), answer.html)
            use_own[0] = answer.use_own
    finally:  # also if rank 0 is interrupted: the others wait for it, or will be in the next check
        request = None if world is None else world.Ibcast(use_own, 0)
        _requests_under_way.append((request, use_own))
    while request is not None and not request.Test():  # asleep between polls: rank 0 needs the core
        time.sleep(0.005)
    _requests_under_way.clear()
    return bool(use_own[0])


_requests_under_way: list[Any] = []  # requests under way, and their memory
