"""Thousands of lines of five ranks: none is cut by another's, and each rank's stay in their order."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

HOW_MANY = 500
RANKS = 5


def test_lines_never_interleave_and_can_be_ordered(
    run: Callable[..., subprocess.CompletedProcess[str]], programs: Path
) -> None:
    done = run(RANKS, programs / "lines.py", HOW_MANY)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * RANKS * HOW_MANY
    seen: dict[str, list[tuple[int, int]]] = {"any": [], "by rank": []}
    for line in lines:
        whole = re.fullmatch(r"\[rank (\d)\] (any|by rank) (\d+) (x+)", line)
        assert whole, line
        rank, i = int(whole[1]), int(whole[3])
        assert len(whole[4]) == 1 + (7919 * i + rank) % 9000
        seen[whole[2]].append((i, rank))
    assert seen["by rank"] == [(i, rank) for i in range(HOW_MANY) for rank in range(RANKS)]
    for rank in range(RANKS):
        assert [i for i, r in seen["any"] if r == rank] == list(range(HOW_MANY))
