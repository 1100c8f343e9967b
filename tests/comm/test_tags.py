"""Message tags stand in one file."""

from __future__ import annotations

import re
from pathlib import Path

import labkit
from labkit.comm import tags

PACKAGE = Path(labkit.__file__).parent


def test_tags_are_distinct() -> None:
    numbers = [number for name, number in vars(tags).items() if name.isupper()]
    assert len(numbers) >= 5
    assert len(set(numbers)) == len(numbers), numbers


def test_no_other_file_defines_a_tag() -> None:
    """A definition is a name that contains TAG, or the argument `tag`, given a number other than 0."""
    pattern = re.compile(r"\b\w*tag\w*(?:\s*:\s*int)?\s*=\s*(?!0\b)\d", re.IGNORECASE)
    for text in ("_TAG = 26_151", "comm.recv(source=0, tag=7)", "STAMP_TAG: int = 3"):
        assert pattern.search(text), text  # otherwise this test could not fail
    found = [
        f"{file.relative_to(PACKAGE)}: {line.strip()}"
        for file in PACKAGE.glob("**/*.py")
        if file != Path(tags.__file__)
        for line in file.read_text().splitlines()
        if pattern.search(line)
    ]
    assert found == []
