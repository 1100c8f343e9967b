"""While the main thread waits for a bucket, its sleeps grow until a segment arrives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.comm.running import Steps
from labkit.train import overlap
from mpiwatch.layers import Pending

ONE_RANK: Any = SimpleNamespace(size=1)  # the tests' process has no MPI, and one rank needs no helper thread
BURSTS = overlap.BURSTS_AWAKE + 40  # of polls before a segment arrives


def two_segments() -> Steps:
    for _ in range(2):
        polls = iter([False] * BURSTS * overlap.POLLS)
        yield lambda polls=polls: next(polls, True), lambda: Pending(ONE_RANK, "a test", [], [])


def test_the_sleeps_grow_up_to_a_limit_and_begin_anew_when_a_segment_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(overlap, "sleep", sleeps.append)
    queue = overlap.BucketQueue(ONE_RANK)
    queue.put("bucket 1", two_segments())
    queue.finish()
    queue.close()
    anew = sleeps.index(overlap.MAIN_NAP_S, 1)
    for one_segment in (sleeps[:anew], sleeps[anew:]):
        assert one_segment[0] == overlap.MAIN_NAP_S
        assert one_segment == sorted(one_segment)
        assert one_segment[-1] == overlap.MAIN_MOST_S
