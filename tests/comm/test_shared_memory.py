"""No file of shared memory stays behind when its ranks end, however they end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path


def files(line: str) -> list[str]:
    word, *paths = line.split()
    assert word == "files", line
    return paths


def test_ranks_with_shared_memory_end_without_files_or_complaints(
    run: Callable[..., subprocess.CompletedProcess[str]], programs: Path
) -> None:
    done = run(3, programs / "shared_memory_files.py", "end")
    (line,) = done.stdout.splitlines()  # no complaint of the MPI library
    assert done.returncode == 0 and not any(map(os.path.exists, files(line))), done.stdout


def test_killed_ranks_leave_no_shared_memory(started: Callable, kill_tree: Callable, programs: Path) -> None:
    with started(3, programs / "shared_memory_files.py", "wait") as job:
        line = job.stdout.readline()
        kill_tree(job)
    assert not any(map(os.path.exists, files(line)))
