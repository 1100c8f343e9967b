"""What of a cell is an answer, and what it may import."""

from __future__ import annotations

import pytest

from labkit.checks.answers import imports_of_lab, names_used, runnable

PRELUDE = "import numpy as np\nfrom labkit.schedules import copy_round, reduce_round"


def test_calls_of_the_check_are_left_out_and_lines_keep_their_numbers() -> None:
    own = ["import math", "", "def f():", "    return 1", ""]
    text = "\n".join(["from labkit.exercises import check, hint", *own, "f = check(f)", "hint(f)"])
    assert runnable(text) == "\n".join(["", *own, "", ""])


@pytest.mark.parametrize("text", ["f = checked(f)", "def f(:", "from labkit.exercises import catalogue"])
def test_everything_else_stays(text: str) -> None:
    assert runnable(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "from labkit.nn import ops",
        "import labkit.nn as nn",
        "def f():\n    from labkit.schedules import hierarchical\n    return hierarchical",
    ],
)
def test_an_import_of_the_lab_is_found_wherever_it_stands(text: str) -> None:
    assert imports_of_lab(text, PRELUDE)


@pytest.mark.parametrize(
    "text", ["import numpy", "from labkit.schedules import copy_round", "import labkitchen", "def f(:"]
)
def test_other_imports_are_allowed(text: str) -> None:
    assert not imports_of_lab(text, PRELUDE)


def test_the_names_that_an_answer_needs_from_elsewhere() -> None:
    lines = "import math", "SCALE = 2", "def f():", "    return g(SCALE) * math.pi + h(np.pi)"
    text = "\n".join([*lines, "def g(x):", "    return 1"])
    assert names_used(text, PRELUDE) == ["h"]
    assert names_used("def f(:", PRELUDE) == []
