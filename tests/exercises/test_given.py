"""What `check` says of what it is given, and what goes with a function to the ranks."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from labkit.checks.exercise import Verdict
from labkit.exercises import catalogue, checking, collecting, record

numbers = count(1)
RIGHT = "def my_items(n, rank, size):\n    return list(range(rank, n, size))\n"


@pytest.fixture(autouse=True)
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give the texts that the judge gets; each is right."""
    texts: list[str] = []

    def judge_text(exercise: object, text: str, **options: object) -> Verdict:
        texts.append(text)
        return Verdict(True, cases=3)

    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(checking, "judge_text", judge_text)
    return texts


def run(*cells: str) -> dict[str, Any]:
    """Run cells as a notebook does, one after the other; return the names that they define."""
    names: dict[str, Any] = {"check": checking.check}
    for cell in cells:
        file = f"/tmp/ipykernel_1/{next(numbers)}.py"
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
        exec(compile(cell, file, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (RIGHT + "my_items = check(my_items)", "my_items: correct (3 cases)"),
        ("my_items = check(lambda n, rank, size: [])", "none of the notebook's exercises"),
        ("my_items = lambda n, rank, size: []\nmy_items = check(my_items)", "my_items: correct"),
        ("import functools\n@functools.cache\n" + RIGHT + "my_items = check(my_items)", "my_items: correct"),
        (RIGHT + "check(my_items(3, 0, 1))", "takes the function itself, not what it returns"),
        ("def my_itms(n, rank, size):\n    pass\ncheck(my_itms)", "my_itms: did you mean my_items?"),
        (
            "class my_items:\n    def __call__(self): pass\nmy_items = check(my_items())",
            "none of the notebook's exercises",
        ),
    ],
)
def test_what_it_is_given(cell: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(cell)
    assert said in capsys.readouterr().out.replace("\n", " ")


def test_a_decorator_that_hides_the_function_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    decorator = (
        "def loud(function):\n    def called(*words):\n        return function(*words)\n    return called"
    )
    run(decorator, "@loud\n" + RIGHT + "my_items = check(my_items)")
    assert "its decorator hides the function" in capsys.readouterr().out.replace("\n", " ")


def test_a_helper_of_another_cell_goes_with_a_function(judged: list[str]) -> None:
    run(
        "def every(n):\n    return range(n)", RIGHT.replace("range(", "every(") + "my_items = check(my_items)"
    )
    assert "def every(n)" in judged[0]


def test_code_goes_to_the_ranks_with_what_it_needs_and_nothing_else() -> None:
    area = "import math\nprint('printed')\nSIZE = 3\nunused = 1\ndef area(r):\n    return math.pi * r * SIZE"
    half = "HALF = 2\nx = [1]\nx.append(2)\ndef half(r):\n    return area(r) / HALF + len(x)\nassert half(1)"
    names = run(area, half)
    code = collecting.code_of(names["half"])
    for part in "import math", "SIZE = 3", "def area", "HALF = 2", "x.append(2)", "def half":
        assert part in code
    assert "print" not in code and "unused" not in code and "assert" not in code
    fresh: dict[str, Any] = {}
    exec(code, fresh)
    assert fresh["half"](2) == names["half"](2)


def test_suspects_are_the_mistakes_of_an_exercise() -> None:
    right = catalogue.find("my_items").reference
    cases = [(n, rank, size) for n in range(9) for size in range(1, 5) for rank in range(size)]
    suspects = checking.suspects("my_items")
    assert len(suspects) == len(catalogue.find("my_items").recognised)
    for suspect in suspects:
        assert any(suspect(*case) != right(*case) for case in cases)
