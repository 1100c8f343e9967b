"""A rank that never joins a schedule is an error on the ranks that wait for it, not a hang."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

Started = Callable[..., AbstractContextManager[subprocess.Popen[str]]]


def test_a_missing_rank_is_an_error_on_unwatched_communicators(started: Started, programs: Path) -> None:
    with started(3, programs / "missing_rank.py", "1") as job:
        said, _ = job.communicate(timeout=60)
    for call, waited_in, missing in (
        ("run", "ring_allreduce", "a message from rank 2"),
        ("algorithm", "ring_allreduce", "a message from rank 2"),
        # These two wait in the MPI library, which does not say for which rank.
        ("RingComm", "ring_allreduce", "the other ranks"),
        ("used RingComm", "ring_allreduce", "the other ranks"),
        ("started", "ring_allreduce", "a message from rank 2"),
        ("shared memory", "shared-memory", "a message from rank 2"),
    ):
        assert f"{call}: rank 0 waited 1 s in {waited_in} for {missing}" in said, said
        assert f"{call}: rank 1 waited 1 s in {waited_in} for " in said, said
