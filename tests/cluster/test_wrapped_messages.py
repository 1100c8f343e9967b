"""Long lines of a message are broken between words, as JupyterLab would break them inside words."""

from __future__ import annotations

from itertools import pairwise

import pytest

from labkit.cluster.errors import CellFailed
from labkit.text import COLUMNS, wrapped

LONG = "rank 3 did not respond to an interrupt (an unwatched MPI call): the engines were ended. " * 3
TABLE = "  rank 0  " + "✓             " * 8 + "waiting in Allreduce (10 float32, SUM)"
LINE = "`comm.Allreduce(MPI.IN_PLACE,  gradients[rank])  # all ranks, each with its own gradients`"


@pytest.mark.parametrize("indent", ["", "  "])
@pytest.mark.parametrize("text", [LONG.strip(), f"rank 3 is waiting in Allreduce (#2, 10 float32) at {LINE}"])
def test_a_long_line_is_broken_between_words_and_keeps_its_indentation(indent: str, text: str) -> None:
    first, *broken, last = wrapped(f"title\n{indent}{text}\nend").splitlines()
    assert (first, last) == ("title", "end") and len(broken) > 1
    assert all(len(line) <= COLUMNS for line in broken)
    assert all(line.startswith(indent) and line[len(indent)] != " " for line in broken)
    assert " ".join(line.strip() for line in broken) == text
    for line, following in pairwise(broken):  # each line is as long as it can be
        word = LINE if following.strip().startswith("`") else following.split()[0]
        assert len(line) + 1 + len(word) > COLUMNS


@pytest.mark.parametrize("text", ["", "\n", "short  \n", "x" * 3 * COLUMNS, TABLE, "trailing\n\n"])
def test_other_lines_stay_as_they_are(text: str) -> None:
    assert wrapped(text) == text


def test_a_message_is_wrapped_and_tracebacks_are_not() -> None:
    message, *rest = CellFailed(f"{LONG}\n{TABLE}", [LONG])._render_traceback_()
    *lines, table = message.splitlines()
    assert max(map(len, lines)) <= COLUMNS and len(lines) == 3 and table == TABLE
    assert rest == ["", LONG]
