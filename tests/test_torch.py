"""`labkit.torch.ddp_hook`: PyTorch's DDP trains the same, whichever algorithm averages its buckets."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from tests.conftest import PROGRAMS, run

pytest.importorskip("torch")
RANKS = 4


def test_ddp_with_a_hook_trains_as_plain_ddp_and_overlaps() -> None:
    done = run(RANKS, PROGRAMS / "ddp_hook.py")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    buckets: dict[int, set[int]] = defaultdict(set)
    for p, number, name, found, expected in map(json.loads, (line for line in lines if line[:1] == "[")):
        np.testing.assert_allclose(found, expected, rtol=2e-6, err_msg=f"{p} ranks, {number} buckets, {name}")
        assert len(found) == 50
        buckets[p].add(number)
    assert {p: len(sizes) for p, sizes in buckets.items()} == dict.fromkeys(range(1, RANKS + 1), 3)
    assert lines.count("OVERLAPS True") == RANKS
    assert lines.count("RAISED ZeroDivisionError") == RANKS
