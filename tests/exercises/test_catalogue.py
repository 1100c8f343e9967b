"""The notebooks' exercises and the catalogue agree, and every exercise is complete."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import nbformat
import pytest

from labkit.checks import exercise as exercise_module
from labkit.checks.exercise import HeadingError, headings, is_stub
from labkit.cli.course import copies
from labkit.exercises import catalogue, checking

NOTEBOOKS = {
    path.name.partition("_")[0]: nbformat.read(path, as_version=4)
    for path in sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))
}
PAIRS = [(number, pair) for number, notebook in NOTEBOOKS.items() for pair in copies.pairs(notebook)]
EXERCISES = catalogue.exercises()
LEAST_HINTS, LEAST_MISTAKES, MOST_RANKS = 2, 4, 4


def test_every_exercise_has_one_cell_in_its_notebook_and_one_check() -> None:
    in_notebooks = sorted((number, pair.name) for number, pair in PAIRS)
    assert in_notebooks == sorted((each.notebook, name) for name, each in EXERCISES.items())
    tags = [
        tag for each in NOTEBOOKS.values() for cell in each.cells for tag in cell.metadata.get("tags", [])
    ]
    assert tags.count("exercise") == tags.count("check") == len(PAIRS)


def test_every_question_has_one_empty_answer_and_a_model_answer() -> None:
    code = (cell.source for notebook in NOTEBOOKS.values() for cell in notebook.cells)
    calls = (call for text in code if text.startswith("answer(") for call in ast.parse(text).body)
    asked = {call.value.args[0].value: call.value for call in calls}
    questions = {name: model for name, model in catalogue.questions().items() if "-bonus-" not in name}
    assert sorted(asked) == sorted(questions)
    for name, model in questions.items():
        fields = [*asked[name].args[1:], *(each.value for each in asked[name].keywords)]
        assert {field.value.strip() for field in fields} == {""}
        assert bool(asked[name].keywords) == (model.partition(":")[0] in checking.VERDICTS)


def test_every_bonus_says_how_its_answer_opens_and_has_one() -> None:
    named = []
    for number, notebook in NOTEBOOKS.items():
        for cell in notebook.cells:
            exercise = re.search(r"^### Exercise \d+\.(\d+) ", cell.source, re.MULTILINE)
            for bonus in re.findall(r"^\*\*Bonus\.\*\* (?:.+\n?)+", cell.source, re.MULTILINE):
                assert exercise, f"{number}: a bonus without an exercise: {bonus}"
                name = f"{number}-bonus-{exercise[1]}"
                assert f'answer("{name}", "your answer")' in bonus
                named.append(name)
    assert sorted(named) == sorted(name for name in catalogue.questions() if "-bonus-" in name)


def test_every_exercise_states_difficulty_importance_and_minutes() -> None:
    """Notebook 00 explains this line, once for all."""
    line = re.compile(
        r"^### Exercise \S+ · .+\n([★☆]{5}) · importance ([●○]{5}) · \d+ minutes( · .+)?$", re.MULTILINE
    )
    for number, notebook in NOTEBOOKS.items():
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert len(line.findall(text)) == text.count("\n### Exercise ") + text.startswith("### Exercise "), (
            number
        )
        for stars, dots, _ in line.findall(text):
            assert "☆★" not in stars and "○●" not in dots


@pytest.mark.parametrize("pair", [pair for _, pair in PAIRS], ids=lambda pair: pair.name)
def test_a_stub_has_the_references_signature_and_docstring_and_no_code(pair: copies.Pair) -> None:
    name, stub, check = pair
    head, text = copies.without_magic(stub.source)
    assert "exercise" in stub.metadata.tags and is_stub(text, name)
    own, reference = copies.functions(text)[name], copies.functions(EXERCISES[name].text)[name]
    assert ast.unparse(own.args) == ast.unparse(reference.args)
    assert ast.get_docstring(own) == ast.get_docstring(reference)
    assert head == copies.without_magic(check.source)[0]  # the check runs where the function does
    assert head or not EXERCISES[name].on_ranks


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_is_complete(name: str) -> None:
    exercise = EXERCISES[name]
    assert len(exercise.hints) >= LEAST_HINTS
    assert name in headings(exercise.notebook) and 1 <= exercise.heading.difficulty <= 5
    assert (inspect.getdoc(exercise.reference) or "").strip()
    assert "# noqa" not in exercise.text and "# type: ignore" not in exercise.text
    assert len(exercise.mistakes) >= LEAST_MISTAKES
    assert len(set(map(exercise.mistaken, exercise.mistakes))) == len(exercise.mistakes)


def test_minutes_and_points_are_those_of_the_heading_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone, such as Binder's, students edit the authors' notebooks: the check then says so."""
    exercise = EXERCISES["my_items"]
    monkeypatch.setattr(exercise_module, "ORIGINALS", tmp_path)
    heading, stub = (
        next(index for index, cell in enumerate(NOTEBOOKS["00"].cells) if words in cell.source)
        for words in ("### Exercise 0.1", "def my_items")
    )
    notebook = copy.deepcopy(NOTEBOOKS["00"])
    notebook.cells[stub].source += "\n\ndef helper():\n    pass\n"
    whole = notebook.cells[heading].source
    for changed, said in (
        (None, "found none"),  # no notebook
        ("", "found none"),  # no heading
        (whole.replace("minutes", "min"), "expected '### Exercise N.N"),  # a heading without minutes
    ):
        if changed is not None:
            notebook.cells[heading].source = changed
            nbformat.write(notebook, tmp_path / "00_meet.ipynb")
        headings.cache_clear()
        with pytest.raises(HeadingError, match=said):
            _ = exercise.points
        assert checking._points(exercise).startswith("Points unknown: ")
    notebook.cells[heading].source = whole
    nbformat.write(notebook, tmp_path / "00_meet.ipynb")
    headings.cache_clear()
    assert exercise.points == 1 and checking._points(exercise) == "1 point"
    headings.cache_clear()


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
    assert not is_stub("def f(x:", "f")
