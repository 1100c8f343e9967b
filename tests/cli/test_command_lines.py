"""Malformed command lines: exit status 1 or 2, a message that names the value, and nothing else has happened.

`tests/cli/command_lines.py` makes the lines from the texts of `--help`, and says what counts as a violation.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.cli.command_lines import Ending, Line, malformed_lines, private_shared_memory, violations
from tests.conftest import thorough

SEED, PARTS = 0, 12
TOGETHER_S = 800  # for the lines of one test, on a busy machine
ROOT = Path(__file__).parents[2]
# What deleted or replaced something, waited for ever, or ended in a traceback when a stranger tried it.
KNOWN = [
    *[("mpiwatch", "-n", "1", "--json", name, "program.py") for name in ("null", "stdout", "loop", "socket")],
    ("mpiwatch", "-n", "1", "--json", "empty_folder", "program.py"),
    *[("labkit", "run", "-n", "1", "--json", name, "program.py") for name in ("link_to_null", "fifo")],
    *[("labkit", "export", "--out", name, "notebook.ipynb") for name in ("fifo", "full", "link_to_file")],
    ("labkit", "train", "--iterations", "1", "--out", "full"),
    ("labkit", "export", "link_to_fifo"),
    ("labkit", "contest", "--incident", "1", "folder_of_fifos"),
    ("labkit", "checklist", "folder_of_fifos"),
    ("labkit", "collect", "folder_of_fifos"),
    ("labkit", "train", "--resume", "folder_of_fifos"),
    ("labkit", "run", "--hosts", "fifo", "program.py"),
    ("labkit", "bench", "mine", "binary"),
    ("labkit", "release", "loop"),
]


def faults(lines: list[Line], place: Path) -> str:
    """Run the lines; return what is wrong with how they ended."""
    private = private_shared_memory()
    done = subprocess.run(
        [*private, sys.executable, "-m", "tests.cli.command_lines", place, "memory" if private else ""],
        cwd=ROOT, input="".join(f"{json.dumps(asdict(line))}\n" for line in lines),
        capture_output=True, text=True, check=False, timeout=TOGETHER_S,
    )  # fmt: skip
    shutil.rmtree(place, ignore_errors=True)
    endings = [Ending(**json.loads(text)) for text in done.stdout.splitlines()]
    assert len(endings) == len(lines), done.stderr
    found = []
    for line, end in zip(lines, endings, strict=True):
        if wrong := violations(line, end):
            found.append(
                f"{line.words} ({line.fault}): {'; '.join(wrong)}\n{(end.output + end.errors)[-1500:]}"
            )
    return "\n\n".join(found)


def test_lines_that_once_did_harm(tmp_path: Path) -> None:
    lines = [Line(words, "known", " ".join(words[:2]), must_fail=False) for words in KNOWN]
    assert faults(lines, tmp_path / "lines") == ""


def test_the_help_of_each_command_gives_lines() -> None:
    counts = Counter(line.command for line in malformed_lines(SEED))
    assert len(counts) > 20 and sum(counts.values()) >= 250
    kinds = Counter(line.fault for line in malformed_lines(SEED))
    assert min(kinds.values()) > 0 and len(kinds) > 12


@pytest.mark.parametrize("part", [-1, *map(thorough, range(PARTS))])
def test_malformed_lines(part: int, tmp_path: Path) -> None:
    """The first part is a handful; the others are all lines of a seed, at most 24 of each command."""
    lines = malformed_lines(SEED)[part::PARTS] if part >= 0 else malformed_lines(SEED, most=1)[:20]
    assert faults(lines, tmp_path / "lines") == ""
