"""Strict mode: a whole program, from its command line to its exit code, and correct calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.watch import STRICT_EXIT_CODE

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_program_lists_what_it_leaves_behind(run: Run, programs: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = "-m", "labkit.watch", "--strict", "--json", str(record)
    done = run(2, *options, programs / "leaves_things_behind.py")
    assert "Strict mode found 4 errors:" in done.stdout
    for line in (
        "call matching: rank 1: the message was never received: isend of a pickled object of ",
        "request lifecycle: rank 0: the request of Irecv from rank 1, tag 3 was never waited for (leaves_",
        "request lifecycle: rank 0: the request of isend to rank 1, tag 4 was never waited for (leaves_",
        "resource leak: ranks 0, 1: the communicator was never freed (leaves_things_behind.py line 7: `half",
    ):
        assert f"  {line}" in done.stdout
    assert done.returncode == STRICT_EXIT_CODE
    written = json.loads(record.read_text())
    assert written["exit_code"] == STRICT_EXIT_CODE and len(written["findings"]) == 5


@pytest.mark.thorough
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path) -> None:
    done = run(3, "-m", "labkit.watch", "--strict", programs / "watched_calls.py")
    assert "all calls compared" in done.stdout
