"""Thousands of lines of five ranks: none is cut by another's, and they come in the order of ranks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

HOW_MANY = 500
RANKS = 5


def test_lines_never_interleave(run: Callable[..., subprocess.CompletedProcess[str]], programs: Path) -> None:
    done = run(RANKS, programs / "lines.py", HOW_MANY)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = done.stdout.splitlines()
    seen = []
    for line in lines:
        whole = re.fullmatch(r"\[rank (\d)\] (\d+) (x+)", line)
        assert whole, line
        rank, i = int(whole[1]), int(whole[2])
        assert len(whole[3]) == 1 + (7919 * i + rank) % 9000
        seen.append((i, rank))
    assert seen == [(i, rank) for i in range(HOW_MANY) for rank in range(RANKS)]
