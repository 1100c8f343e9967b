"""Copies of the notebooks for students hold no solution, and those for instructors hold all of them."""

from __future__ import annotations

import ast
import errno
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit import cli
from labkit.checks.exercise import is_stub
from labkit.cli import release
from labkit.cli.course import copies, folders
from labkit.exercises import catalogue
from tests.conftest import run_notebook, thorough

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in ROOT.glob("notebooks/*.ipynb"))
SHORT = "00_meet_the_cluster"
RUN_WITH_EXERCISES = pytest.param(SHORT, marks=pytest.mark.exercises)  # by `make exercises`
GIVEN = {"spread": "heat"}  # exercises that mend a program, and the id of the cell that holds it
# A cell with most of the statements of a reference gives it away. Fewer may be common phrases.
MOST = 0.6


def made(command: Any, folder: Path, *options: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        done = CliRunner().invoke(command, [str(folder), *options])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(release.command, tmp_path_factory.mktemp("course") / "students")


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(release.solutions, tmp_path_factory.mktemp("course") / "instructors")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text).replace('"', "'")


def statements(reference: Any) -> list[str]:
    """Return what a reference does, statement by statement, without its docstring and without blanks."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(reference))).body
    assert isinstance(function, ast.FunctionDef)
    found = []
    for node in ast.walk(function):
        is_compound = isinstance(node, ast.stmt) and hasattr(node, "body")
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not is_compound and not is_text:
            found.append(squeezed(ast.unparse(node)))
    return found


def given_away(notebook: Any) -> list[str]:
    """Return the exercises whose solution stands in a cell of the notebook, in any of its parts."""
    found = []
    cells = {cell.id: squeezed(everything(cell)) for cell in notebook.cells}
    for name, exercise in catalogue.exercises().items():
        given = cells.get(GIVEN.get(name, ""), "")
        parts = [part for part in statements(exercise.reference) if part not in given]
        if any(sum(part in cell for part in parts) > MOST * len(parts) for cell in cells.values()):
            found.append(name)
    return found


def everything(cell: Any) -> str:
    """Return all text of a cell: source, outputs, metadata, attachments. Python code without its comments."""
    try:
        source = ast.unparse(ast.parse(copies.without_magic(cell.source)[1]))
    except SyntaxError:
        source = cell.source
    return source + str({key: value for key, value in cell.items() if key != "source"})


@pytest.mark.parametrize("name", NAMES)
def test_a_released_copy_holds_no_solution_and_no_output(name: str, released: Path) -> None:
    notebook = nbformat.read(released / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert given_away(notebook) == []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []
    for pair in copies.pairs(notebook):
        assert is_stub(copies.without_magic(pair.stub.source)[1], pair.name), pair.name


def test_students_get_no_page_that_tells_what_checks_look_for(released: Path) -> None:
    documents = {path.name for path in (released / "docs").iterdir()}
    assert "glossary.md" in documents
    assert not {"instructors.md", "grading.md", "exercises.md"} & documents


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_notebook_holds_the_references(name: str, solved: Path) -> None:
    notebook = nbformat.read(solved / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert copies.FOR_INSTRUCTORS in notebook.cells[0].source
    exercises = catalogue.exercises()
    for pair in copies.pairs(notebook):
        node = copies.functions(pair.stub.source)[pair.name]
        expected = ast.parse(exercises[pair.name].text).body[0]
        assert ast.unparse(node) == ast.unparse(expected)
        assert "# Your code here" not in pair.stub.source
        assert "type: ignore" not in pair.stub.source


def test_instructors_get_a_list_of_the_exercises(solved: Path) -> None:
    text = (solved / "exercises.md").read_text()
    exercises = catalogue.exercises().values()
    points = sum(exercise.points for exercise in exercises)
    minutes = sum(exercise.heading.minutes for exercise in exercises)
    assert f"| all | {len(exercises)} | {minutes} | {points} |" in text
    for exercise in exercises:
        assert f"`{exercise.name}` · difficulty {exercise.heading.difficulty} of 5" in text
        assert all(mistake.rstrip(".") in text for mistake in exercise.recognised)


@pytest.mark.parametrize("name", [thorough(name) for name in NAMES])
def test_a_released_copy_runs(name: str, released: Path) -> None:
    for pair in copies.pairs(run_notebook(released / f"{name}.ipynb")):
        assert "not written yet" in printed(pair.check)


@pytest.mark.parametrize("name", [RUN_WITH_EXERCISES if name == SHORT else thorough(name) for name in NAMES])
def test_every_solution_is_correct_in_its_notebook(name: str, solved: Path) -> None:
    pairs = copies.pairs(run_notebook(solved / f"{name}.ipynb"))
    assert pairs
    for pair in pairs:
        assert f"{pair.name}: correct (" in printed(pair.check)


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


STUB = 'def linear_backward(dy, x, w):\n    """Return the gradients."""\n    # Your code here.'


def exercise_notebook(stub: str = STUB, check: str = "linear_backward = check(linear_backward)") -> Any:
    cells = [
        new_markdown_cell("# Lesson"),
        new_code_cell(stub, metadata={"tags": ["exercise"]}),
        new_code_cell(check, metadata={"tags": ["check"]}),
    ]
    return new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("stub", "check", "words"),
    [
        (f"{STUB}\n    return 1", "linear_backward = check(linear_backward)", "holds code"),
        (STUB, "other = check(other)", "other is checked, but labkit/exercises does not"),
        ("x = 1", "linear_backward = check(linear_backward)", "no cell above the check defines it"),
    ],
)
def test_a_notebook_that_is_not_fit_for_students_is_refused(stub: str, check: str, words: str) -> None:
    with pytest.raises(copies.CopyError, match=words):
        copies.release(exercise_notebook(stub, check), catalogue.exercises())


def test_given_code_above_the_stub_stays_and_the_comment_in_it_goes() -> None:
    notebook = exercise_notebook(f"%%px\nimport math\n\n{STUB}\n    # More.\n\n\nafter = 1")
    copies.solve(notebook, catalogue.exercises())
    source = notebook.cells[1].source
    assert source.startswith("%%px\nimport math\n\ndef linear_backward")
    assert source.endswith("\n\n\nafter = 1")
    assert "Your code here" not in source and "More" not in source


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "mine").touch()
    done = CliRunner().invoke(release.command, [str(tmp_path)])
    assert done.exit_code == 2 and "is not an empty folder" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("there", [True, False], ids=["empty", "absent"])
@pytest.mark.parametrize("command", ["release", "release --nbgrader", "solutions"])
def test_a_course_on_a_full_disk_is_complete_or_absent(
    command: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing fails at each file, among them those that are no copies."""
    folder = tmp_path / "course" / "students"
    folder.mkdir(parents=True) if there else tmp_path.joinpath("course").mkdir()
    before, write = sorted(tmp_path.rglob("*")), Path.write_bytes
    files = {Path("01_a.ipynb"): b"{}", Path("docs", "b.md"): b"", Path("02_c.ipynb"): b"{}"}
    monkeypatch.setattr(folders, "contents", lambda *_, **__: files)

    def run(most: int) -> Any:
        left = iter(range(most))

        def until_full(path: Path, data: bytes) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            write(path, data)

        monkeypatch.setattr(Path, "write_bytes", until_full)
        return CliRunner().invoke(cli.main, [*command.split(), str(folder)])

    count = len(files) + {"release": 0, "release --nbgrader": 2, "solutions": 1}[command]
    for most in range(count):
        done = run(most)
        assert done.exit_code == 2 and "No space left" in done.output, done.output
        assert sorted(tmp_path.rglob("*")) == before
    assert run(count).exit_code == 0
    assert {path.name for path in files} <= {path.name for path in folder.rglob("*")}


def test_a_function_of_the_notebook_is_not_taken_for_another_notebooks_exercise() -> None:
    """Notebook 06 defines a `spread` of its own; `spread` is an exercise of notebook 09."""
    given = new_code_cell("def spread(sizes, rank):\n    return sizes[rank]")
    answer = new_code_cell("def sizes_by_speed(n, speeds):\n    return spread(speeds, n)")
    text = copies.answer_with_helpers("sizes_by_speed", [given, answer], set())
    assert given.source in text
    assert catalogue.find("spread").text not in text


def test_an_exercise_of_the_notebook_that_is_not_solved_is_its_reference_for_the_others() -> None:
    wrong = new_code_cell("def places(nodes):\n    return []")
    answer = new_code_cell("def ring_order(nodes):\n    return places(nodes)")
    assert wrong.source in copies.answer_with_helpers("ring_order", [wrong, answer], {"places"})
    text = copies.answer_with_helpers("ring_order", [wrong, answer], set())
    assert wrong.source not in text
    assert catalogue.find("places").text in text


def test_a_lambda_is_an_answer_and_a_helper() -> None:
    helper = new_code_cell("%%px\nevery = lambda n: range(n)")
    answer = new_code_cell("# mine\n%%px\nmy_items = lambda n, rank, size: list(every(n))[rank::size]")
    check = new_code_cell("my_items = check(my_items)")
    text = copies.answer_with_helpers("my_items", [helper, answer, check], set())
    assert "my_items = lambda" in text
    assert "every = lambda" in text
    assert "check" not in text


def test_the_solutions_of_one_notebook_can_be_made_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(release.solutions, [str(tmp_path / "one"), "--notebook", "03"])
    assert done.output == f"{tmp_path / 'one'}: 1 notebook with solutions; do not hand them out\n"
    assert [path.name for path in (tmp_path / "one").glob("*.ipynb")] == ["03_sharding.ipynb"]
    listed = (tmp_path / "one/exercises.md").read_text()
    assert "`shard_bounds`" in listed and "`my_items`" not in listed
    model = catalogue.questions()["03-blocks"]
    assert model in listed
    assert model in (tmp_path / "one/03_sharding.ipynb").read_text()
    done = CliRunner().invoke(release.solutions, [str(tmp_path / "other"), "--notebook", "3"])
    assert done.exit_code == 2 and "--notebook '3': expected one of 00, 01" in done.output
