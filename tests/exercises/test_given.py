"""What `check` says of what it is given, and what goes with a function to the ranks."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from labkit.exercises import checking, collecting, record
from labkit.exercises.exercise import Verdict

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


def test_a_decorator_and_a_helper_of_other_cells_go_with_a_function(judged: list[str]) -> None:
    decorator = (
        "def loud(function):\n    def called(*words):\n        return function(*words)\n    return called"
    )
    helper = "def every(n):\n    return range(n)"
    run(
        decorator,
        helper,
        "@loud\ndef my_items(n, rank, size):\n    return every(n)\nmy_items = check(my_items)",
    )
    assert "def loud" in judged[0] or "def called" in judged[0]


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
    functions = checking.suspects("my_items")
    assert functions and all(function(5, 1, 2) != [1, 3] or function(7, 0, 3) for function in functions)
