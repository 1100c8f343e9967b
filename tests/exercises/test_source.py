"""A stub is told from code, and a cell's text is found."""

from __future__ import annotations

import linecache

import pytest

from labkit.exercises.checking import cell_text, is_reference, reference_function
from labkit.exercises.exercise import is_stub
from tests.exercises.test_judge import exercise, mean


@pytest.mark.parametrize(
    "body",
    [
        '"""Return."""',
        "pass",
        "...",
        '"""Return."""\n    # Your code here.\n    ...',
        "raise NotImplementedError",
    ],
)
def test_a_body_without_code_is_a_stub(body: str) -> None:
    assert is_stub(f"import numpy as np\n\ndef f(x):\n    {body}\n", "f")


@pytest.mark.parametrize("body", ["return None", "x += 1", '"""Return."""\n    return x', "raise ValueError"])
def test_a_body_with_code_is_no_stub(body: str) -> None:
    assert not is_stub(f"def f(x):\n    {body}\n", "f")
    assert not is_stub(f"def f(x):\n    {body}\n", "g")


def test_the_text_of_a_function_in_a_cell_is_that_of_the_cell() -> None:
    text, file = "import numpy as np\ndef f(x):\n    return np.abs(x)\n", "/tmp/ipykernel_1/2.py"
    names: dict[str, object] = {}
    exec(compile(text, file, "exec"), names)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    assert cell_text(names["f"]) == text  # type: ignore[arg-type]
    assert cell_text(mean).startswith("def mean(")


def test_the_reference_that_stands_in_is_known_as_such() -> None:
    each = exercise()
    stand_in = reference_function(each)
    assert stand_in(None, 3) == 3
    assert is_reference(stand_in, each)
    assert is_reference(mean, each)
    assert not is_reference(lambda: 0, each)


def test_the_references_text_has_no_comments_for_linters() -> None:
    assert "type: ignore" not in exercise().text
