"""What stands at the cursor of a cell, and which part of the cell the ranks run."""

from __future__ import annotations

import threading
import types
import weakref

import numpy as np
import pytest

from labkit.cluster.completion import on_ranks
from labkit.cluster.completion.answers import keywords_of
from labkit.cluster.completion.cells import find_cell
from labkit.cluster.completion.cursor import expressions_at, place_in
from labkit.cluster.completion.help_lines import has_code, keep_help_for_ranks, split_help
from labkit.cluster.completion.objects import details_of
from labkit.cluster.completion.scope import Scope, statements_of
from labkit.cluster.completion.service import numbers_in


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%%px\ncomm.|", "comm.|"),
        ("%%px --targets 2\nx|\ny", "x|\ny"),
        ("\n# a comment\n%%px\n|", "|"),
        ("%%time\n%%px\nx|", "x|"),
        ("# a comment\n%%replay\nx|", "x|"),
        ("a = 1\n%px comm.|", "comm.|"),
        ("result = %px ra|", "ra|"),
        ("%%px\n%time comm.|", "      comm.|"),
        ("comm.|", None),
        ("%px x\ncomm.|", None),
        ("%%pxy\ncomm.|", None),
        ("%p|x x", None),
        ("print('%%px')\nx|", None),
    ],
)
def test_the_code_of_the_ranks(cell: str, code: str | None) -> None:
    position = cell.index("|")
    found = find_cell(cell.replace("|", ""), position)
    if code is None:
        assert found is None
    else:
        assert found is not None and found.cursor is not None
        assert found.code[: found.cursor] + "|" + found.code[found.cursor :] == code
        assert found.start + found.cursor == position


def test_the_options_of_a_cell_of_the_ranks() -> None:
    found = find_cell("%%px --targets 1 --no", 21)
    assert found is not None and (found.cursor, found.option, found.targets) == (None, "--no", "1")


@pytest.mark.parametrize(
    ("targets", "ranks"),
    [("2", {2}), ("0,3", {0, 3}), ("[1,2]", {1, 2}), ("1:3", {1, 2}), ("all", set()), ("", set())],
)
def test_targets_name_ranks(targets: str, ranks: set[int]) -> None:
    assert numbers_in(targets) == ranks


@pytest.mark.parametrize(
    ("code", "kind", "expression", "word"),
    [
        ("comm.Al", "attribute", "comm", "Al"),
        ("layers[0].", "attribute", "layers[0]", ""),
        ("f(x)(y).", "attribute", "f(x)(y)", ""),
        ("'a b'.jo", "attribute", "'a b'", "jo"),
        ("return (a + b).", "attribute", "(a + b)", ""),
        ("x = [1, 2].", "attribute", "[1, 2]", ""),
        ("print(f'{comm.", "attribute", "comm", ""),
        ("print('rank {comm.", "text", "", "rank {comm."),
        ("ra", "name", "", "ra"),
        ("f(a, b=", "name", "", ""),
        ("import os.pa", "import", "os", "pa"),
        ("import numpy as np, sy", "import", "", "sy"),
        ("from mpi4py import MP", "from", "mpi4py", "MP"),
        ("from labkit import (\n    data, n", "from", "labkit", "n"),
        ("d['lr", "key", "d", "lr"),
        ("open('da", "text", "", "da"),
        ("open('data/di", "text", "data", "di"),
        ("# comm.", "none", "", ""),
        ("x = 3.", "none", "", ""),
        ("x = 12", "none", "", ""),
        ('"""A docstring. comm', "none", "", ""),
        ("def my_f", "none", "", ""),
        ("'it\\'s'.", "attribute", "'it\\'s'", ""),
    ],
)
def test_what_stands_at_the_cursor(code: str, kind: str, expression: str, word: str) -> None:
    place = place_in(code)
    assert (place.kind, place.expression, place.word) == (kind, expression, word)


@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("comm.Allreduce(|", "comm.Allreduce"),
        ("comm.Allre|duce(x)", "comm.Allreduce"),
        ("np.zeros((2, 3), |", "np.zeros"),
        ("f(g(1), |", "f"),
        ("f(g(|", "g"),
        ("f(x)|", "x"),
        ("print('text|')", "print"),
        ("a = rank|", "rank"),
        ("# comm|", None),
    ],
)
def test_what_help_is_wanted_for(code: str, first: str | None) -> None:
    found = expressions_at(code.replace("|", ""), code.index("|"))
    assert (found or [None])[0] == first


@pytest.mark.parametrize(
    ("signature", "keywords"),
    [
        ("(a, b=1, *rest, c, **named)", ["a=", "b=", "c="]),
        ("(x1, x2, /, out=None)", ["out="]),
        ("(buf: BufSpec | InPlace, op: Op = SUM) -> None", ["buf=", "op="]),
        ("(sep=', ', end=')')", ["sep=", "end="]),
        ("", []),
    ],
)
def test_keywords_of_a_signature(signature: str, keywords: list[str]) -> None:
    assert keywords_of(signature) == keywords


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = 1\ncomm.|\ny = 2", {"x", "y"}),
        ("def f(a, b=1):\n    c = 2\n    c.|\n\nd = 3", {"f", "a", "b", "c", "d"}),
        ("def f(a):\n    pass\n\nx|", {"f"}),
        ("class A:\n    def f(self):\n        self.|", {"A", "self"}),
        ("if rank == 0:\n    |\nelse:\n    z = 1", {"z"}),
        ("x = (1 +\ny = 2\n|", set()),
        ("for i, item in pairs:\n    i|", {"i", "item"}),
        ("import numpy as np, os.path\nfrom math import pi as p\n|", {"np", "os", "p"}),
        ("with open(f) as file:\n    if (n := 3):\n        |", {"file", "n"}),
        ("@cache\ndef f(a):\n    |", {"f", "a"}),
        ("comm.Allreduce(x,\n    ra|)\nw = 1", {"w"}),
        ("def broken(:\n    pass\n\ndef whole():\n    pass\n|", {"whole"}),
    ],
)
def test_names_of_a_cell_in_which_one_types(code: str, names: set[str]) -> None:
    cursor = code.index("|")
    assert set(Scope({}, *statements_of(code.replace("|", ""), cursor)).defined_names()) == names


def test_lines_that_ask_for_help_leave_the_cell() -> None:
    text = "x = 1\nx?\ns = '''\ny?\n'''\n  ??z.a\nnp.*zeros?"
    code, questions = split_help(text)
    assert code == "x = 1\n#\ns = '''\ny?\n'''\n#\nnp.*zeros?" and questions == [("x", 0), ("z.a", 1)]
    assert has_code(code) and not has_code("# a comment\n\n#")


def test_help_behind_px_stays_the_ranks_question() -> None:
    assert keep_help_for_ranks(["%px x?\n", "x?\n", "%px print(1)\n"]) == [
        "get_ipython().run_line_magic('px', 'x?')\n",
        "x?\n",
        "%px print(1)\n",
    ]


def test_memory_that_is_not_numpys_is_not_read() -> None:
    own = np.arange(4.0)
    rows = dict(details_of(own)), dict(details_of(own[1:].reshape(3, 1)))
    assert [row.get("Value") for row in rows] == ["[0.0, 1.0, 2.0, 3.0]", "[[1.0], [2.0], [3.0]]"]
    foreign = np.frombuffer(bytearray(32), np.float64)  # as a window's, which may have been freed
    assert dict(details_of(foreign)) == {"Shape": "(4,)", "Dtype": "float64"}
    assert "Value" not in dict(details_of(foreign[1:]))


class Value:
    """Something that a cell has made."""


def test_what_a_cell_deletes_is_gone_when_the_cell_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that was asked for its names held a request, and strict mode reported it one cell too late."""
    shell = types.SimpleNamespace(user_ns={"value": Value()})
    value = weakref.ref(shell.user_ns["value"])
    looks, go_on = threading.Event(), threading.Event()

    def description(value: object) -> dict[str, str]:
        looks.set()
        go_on.wait(60)
        return {}

    monkeypatch.setattr(on_ranks, "description", description)
    monkeypatch.setattr(on_ranks, "LOOK_S", 60.0)
    mirror = {"kind": "mirror", "with_mpi": False}
    answering = threading.Thread(target=on_ranks.answer, args=(shell, mirror))
    answering.start()
    assert looks.wait(60)
    del shell.user_ns["value"]
    ending = threading.Thread(target=on_ranks.let_go_of_values)
    ending.start()
    ending.join(0.1)
    assert value() is not None and ending.is_alive()
    go_on.set()
    ending.join(60)
    assert value() is None
    answering.join(60)
