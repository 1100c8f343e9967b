"""What a student sees when ranks raise errors: the answer first, each traceback once, the right lines."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from labkit.cluster.failures import split
from labkit.cluster.magics import engine_text
from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel

pytestmark = pytest.mark.clusters

__all__ = ["kernel", "world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=2{})"


@pytest.fixture(scope="module")
def shared(kernel: Kernel) -> Kernel:
    """A kernel with four ranks, and with a function that divides by zero in its cell [2]."""
    kernel.run(CONNECT.format(""))
    kernel.run("%%px\ndef inverse(x):\n    return 1 / x")
    return kernel


def error_lines(kernel: Kernel, cell: str) -> list[str]:
    """Return the lines of the error output of a cell, without colours."""
    kernel.error = ""
    kernel.run(cell)
    return re.sub(r"\x1b\[[0-9;]*m", "", kernel.error).splitlines()


def test_equal_errors_are_shown_once_with_the_ranks_in_the_first_line(shared: Kernel) -> None:
    number = int(shared.run("print(len(In))"))
    lines = error_lines(shared, "%%px\ny = 1\ninverse(0)")
    assert lines == [
        "ZeroDivisionError on ranks 0–3: division by zero",
        "",
        f"Cell In[{number}], line 3",
        "      1 %%px",
        "      2 y = 1",
        "----> 3 inverse(0)",
        "",
        "Cell In[2], line 3, in inverse(x)",
        "      2 def inverse(x):",
        "----> 3     return 1 / x",
    ]


def test_different_errors_are_listed_first_and_each_traceback_is_shown_once(shared: Kernel) -> None:
    lines = error_lines(
        shared, "%%px\nif rank in (0, 2):\n    raise ValueError(f'bad {rank}')\nif rank == 1:\n    inverse(0)"
    )
    assert lines[:4] == [
        "ValueError on rank 0: bad 0",
        "ZeroDivisionError on rank 1: division by zero",
        "ValueError on rank 2: bad 2",
        "",
    ]
    assert lines.count("ValueError on ranks 0, 2:") == lines.count("ZeroDivisionError on rank 1:") == 1
    assert sum(line.startswith("----> 3     raise ValueError") for line in lines) == 1
    assert "execute]" not in "".join(lines)


def test_a_hang_report_comes_before_the_traceback_of_its_cause(shared: Kernel) -> None:
    lines = error_lines(shared, "%%px\ncomm.Barrier()\nif rank == 1:\n    inverse(0)\ncomm.Barrier()")
    assert lines[0] == "HangError: rank 1 never joined collective #2 (Barrier)."
    assert lines[1] == "  ranks 0, 2, 3 are waiting in Barrier (#2) at cell line 5: `comm.Barrier()`"
    place = "at cell line 4: `inverse(0)` via cell [2] line 3: `return 1 / x`"
    assert "(Barrier, cell line 2)" in lines[2] and lines[2].endswith(place), lines
    cause = lines.index("ZeroDivisionError on rank 1: division by zero")
    assert "ready: fix the cell" in lines[cause - 2] and lines[cause + 5] == "----> 4     inverse(0)"
    assert "waited in" not in "".join(lines)


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%px\ny = 1\nx = = 2", 3),
        ("\n\n%%px --targets :\n1 / 0", 4),
        ("%%px\n'''A docstring.'''\nfrom __future__ import annotations\n1 / 0", 4),
        ("%%px\n\n    y = 1\n    1 / 0", 4),
        ("%%time\n%%px\n1 / 0", 3),
        ("%%px\n%%time\ny = 1\n1 / 0", 4),
    ],
)
def test_lines_are_counted_as_jupyterlab_counts_them(shared: Kernel, cell: str, line: int) -> None:
    number = int(shared.run("print(len(In))"))
    lines = error_lines(shared, cell)
    assert re.match(r"(Syntax|ZeroDivision)Error on ranks 0–3: ", lines[0])
    places = f"Cell In[{number}], line {line}", f"File <timed exec>:{line}"
    assert any(each.strip() in places for each in lines), lines


def test_the_text_for_the_ranks_keeps_what_it_must() -> None:
    shell = SimpleNamespace(user_ns={"In": [""] * 8})
    assert engine_text(shell, "--targets 1", "1\n") == "# cell [7]: %%px --targets 1\n1\n"
    assert engine_text(shell, "", "%%writefile x\n1\n") == "%%writefile x\n1\n"
    assert engine_text(shell, "", "\n%%time\n1\n") == "%%time\n# cell [7]: %%px\n#\n#\n1\n"


def test_the_value_of_the_last_line_and_the_history_are_as_before(shared: Kernel) -> None:
    assert len(re.findall(r"Out\[0–3:\d+\]: \S*3\n", shared.run("%%px\n(1 +\n 2)"))) == 1
    said = shared.run("%%px --targets 0\nprint(In[-1].splitlines()[1:])")
    assert "['print(In[-1].splitlines()[1:])']" in said


def test_a_local_run_counts_the_same_lines(shared: Kernel) -> None:
    said = re.sub(r"\x1b\[[0-9;]*m", "", shared.run("%%px --local\ny = 1\ninverse(0)"))
    assert "ZeroDivisionError on ranks 0–3: division by zero" in said
    assert said.count("----> 3 inverse(0)") == 2  # here (a NameError) and on the ranks


def test_a_cell_that_a_rank_skips_is_an_error(shared: Kernel) -> None:
    """IPython drops the cells that are queued behind one that fails."""
    shared.run("%%px --noblock\nimport time\ntime.sleep(2)\n1 / 0")
    assert error_lines(shared, "%px print(rank)")[0].startswith("CellSkipped on ranks 0–3: ")


def test_cells_to_run_again_are_those_that_last_succeeded_by_their_number_now(shared: Kernel) -> None:
    def run(cell: str, cell_id: str, deleted: tuple[str, ...] = ()) -> None:
        shared.run(cell, {"cellId": cell_id, "deletedCells": list(deleted)})

    run("%%px\na = 1", "edited")
    run("%%px\nb = 1", "deleted")
    run("%%px\nc = 1", "fails later")
    run("%%px\nc = 1 / 0", "fails later")
    run("%%px\nd = 1\nif rank: comm.Barrier()", "hangs")
    run("%%px\na = 2", "edited", ("deleted",))
    number = int(shared.run("print(len(In))")) - 2
    said = shared.run(CONNECT.format(", restart=True"))
    assert f"The ranks are new: run the %%px cells [2], [{number}] again to define their names." in said


def test_errors_of_views_are_as_short_as_those_of_cells(shared: Kernel) -> None:
    number = int(shared.run("print(len(In))"))
    assert error_lines(shared, 'first = 1\nrc[:]["typo"]') == [
        "NameError on ranks 0–3: name 'typo' is not defined",
        "",
        f"Cell In[{number}], line 2",
        "      1 first = 1",
        '----> 2 rc[:]["typo"]',
    ]
    assert error_lines(shared, 'rc[1]["typo"]')[0] == "NameError on rank 1: name 'typo' is not defined"
    assert error_lines(shared, 'rc[:].pull(["typo", "other"], block=True)')[3:] == [
        '----> 1 rc[:].pull(["typo", "other"], block=True)'
    ]


def test_an_error_in_a_function_of_the_notebook_shows_its_line_in_the_notebook(shared: Kernel) -> None:
    number = int(shared.run("print(len(In))"))
    shared.run("def half(x):\n    return x / 0")
    lines = error_lines(shared, "rc[:].apply_sync(half, 1)")
    assert lines == [
        "ZeroDivisionError on ranks 0–3: division by zero",
        "",
        f"Cell In[{number + 1}], line 1",
        "----> 1 rc[:].apply_sync(half, 1)",
        "",
        f"Cell In[{number}], line 2, in half(x)",
        "      1 def half(x):",
        "----> 2     return x / 0",
    ]


@pytest.mark.parametrize(
    ("message", "traceback", "expected"),
    [
        ("bad (123.py, line 2)", "  Cell\n\x1b[31mError\x1b[39m\x1b[31m:\x1b[39m bad", ("bad", "  Cell")),
        ("bad", "----\nError  Traceback\nCell\n\nError: bad\na note", ("bad\na note", "Cell")),
        (
            "bad",
            "C\n\n\x1b[36mFile \x1b[39mMPI.pyx:170, in recv\n\nFile a.py:3\nError: bad",
            ("bad", "C\n\nFile a.py:3"),
        ),
        ("", "----\nError  Traceback\nCell\n\nError: ", ("", "Cell")),
        ("first\nsecond", "Error: first", ("first\nsecond", "")),
        ("bad\nworse", "Check: bad\nworse", ("bad\nworse", "")),
    ],
)
def test_a_message_is_taken_from_where_it_is_complete(
    message: str, traceback: str, expected: tuple[str, str]
) -> None:
    """A SyntaxError's own message names a temporary file; a traceback may be shorter than the message."""
    assert split("Error", message, traceback) == expected
