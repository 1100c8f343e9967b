"""The notebooks' exercises and the catalogue agree, and every exercise is complete."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

from labkit.exercises import catalogue, checking
from labkit.exercises.exercise import is_stub

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))
EXERCISES = catalogue.exercises()
LEAST_HINTS, LEAST_MISTAKES, MOST_RANKS = 2, 4, 4


class Cell(NamedTuple):
    notebook: str
    head: str  # its magic, such as "%%px"; empty if it has none
    text: str  # below the magic


def cells(tag: str) -> list[Cell]:
    found = []
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if tag in cell.metadata.get("tags", []):
                head, _, rest = cell.source.partition("\n")
                has_magic = head.startswith("%%")
                text = rest if has_magic else cell.source
                found.append(Cell(path.name.partition("_")[0], head if has_magic else "", text))
    return found


def stubs() -> dict[str, Cell]:
    """Return the cells with a stub by the function's name: the last that the cell defines."""
    found = {}
    for cell in cells("exercise"):
        functions = [node for node in ast.parse(cell.text).body if isinstance(node, ast.FunctionDef)]
        found[functions[-1].name] = cell
    return found


STUBS = stubs()


def signature_of(text: str, name: str) -> tuple[str, str | None]:
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name]
    return ast.unparse(found[-1].args), ast.get_docstring(found[-1])


def test_every_exercise_has_one_cell_in_its_notebook() -> None:
    in_notebooks = sorted((cell.notebook, name) for name, cell in STUBS.items())
    assert in_notebooks == sorted((each.notebook, name) for name, each in EXERCISES.items())
    assert len(STUBS) == len(cells("exercise"))


def test_every_question_has_one_empty_answer_and_a_model_answer() -> None:
    code = (cell.source for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells)
    calls = (call for text in code if text.startswith("answer(") for call in ast.parse(text).body)
    asked = {call.value.args[0].value: call.value for call in calls}
    assert sorted(asked) == sorted(catalogue.questions())
    for name, model in catalogue.questions().items():
        fields = [*asked[name].args[1:], *(each.value for each in asked[name].keywords)]
        assert {field.value.strip() for field in fields} == {""}
        assert bool(asked[name].keywords) == (model.partition(":")[0] in checking.VERDICTS)


def test_every_exercise_is_checked_once_where_its_function_runs() -> None:
    expected = Counter((cell.notebook, cell.head, f"{name} = check({name})") for name, cell in STUBS.items())
    assert Counter((cell.notebook, cell.head, cell.text.strip()) for cell in cells("check")) == expected


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_has_the_references_signature_and_docstring_and_no_code(name: str) -> None:
    text = STUBS[name].text
    assert is_stub(text, name)
    assert signature_of(text, name) == signature_of(EXERCISES[name].text, name)
    assert (STUBS[name].head != "") == EXERCISES[name].on_ranks or not EXERCISES[name].on_ranks


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_is_complete(name: str) -> None:
    exercise = EXERCISES[name]
    assert len(exercise.hints) >= LEAST_HINTS
    assert 1 <= exercise.difficulty <= 5
    assert (inspect.getdoc(exercise.reference) or "").strip()
    assert "# noqa" not in exercise.text and "# type: ignore" not in exercise.text
    assert len(exercise.mistakes) >= LEAST_MISTAKES
    assert len(set(map(exercise.mistaken, exercise.mistakes))) == len(exercise.mistakes)


@pytest.mark.parametrize("name", EXERCISES)
def test_cases_are_the_same_each_time(name: str) -> None:
    exercise = EXERCISES[name]
    cases, again = list(exercise.cases()), list(exercise.cases())
    assert cases
    labels = [case.label for case in cases]
    assert len(set(labels)) == len(labels)
    assert [case.label for case in again] == labels
    for case, other in zip(cases, again, strict=True):
        assert case.ranks <= (MOST_RANKS if exercise.on_ranks else 1)
        assert pickle.dumps(case.arguments) == pickle.dumps(other.arguments)
        if not exercise.many_are_right:
            assert len(exercise.right_results(case)) == case.ranks


def test_each_exercise_is_found_in_its_module() -> None:
    assert all(catalogue.find(name) is exercise for name, exercise in EXERCISES.items())
    with pytest.raises(catalogue.UnknownExercise, match="no exercise called no_such_function"):
        catalogue.find("no_such_function")


def test_a_stub_is_a_body_without_code() -> None:
    doc = '"""Return."""'
    for body in doc, "pass", f"{doc}\n    # Your code here.\n    ...", "raise NotImplementedError":
        assert is_stub(f"import numpy as np\n\ndef f(x):\n    {body}\n", "f")
    for body in "return None", "x += 1", f"{doc}\n    return x", "raise ValueError":
        assert not is_stub(f"def f(x):\n    {body}\n", "f")
    assert not is_stub("def f(x):\n    pass\n", "g")
