"""Mistakes of students in cells: each cell ends by itself, its report says why, and the session goes on."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.cluster.cell_faults import FAULTS
from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel

pytestmark = pytest.mark.clusters

__all__ = ["kernel", "world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=5{})"
# A correct cell that must work after any other, if the entry has none of its own.
AFTER = "assert comm.sendrecv(rank, (rank + 1) % size, source=(rank - 1) % size) == (rank - 1) % size"
QUICK = {
    "test_loop_with_the_digits_of_the_tag_swapped",
    "log_closed_too_early",
    "second_fence_inside_the_branch",
    "start_for_two_post_by_one",
}


def kind_of(error: str) -> str:
    """Return how a cell ended, by the error that it shows: hang, error, death or right."""
    if "RankDied" in error or "engines were ended" in error:
        return "death"
    if "HangError" in error:
        return "hang"
    return "error" if error else "right"


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault["name"], marks=() if fault["name"] in QUICK else pytest.mark.thorough)
        for fault in FAULTS
    ],
)
def test_a_cell_ends_with_the_reason_and_the_next_one_works(kernel: Kernel, fault: dict[str, Any]) -> None:
    assert "4 ranks" in kernel.run(CONNECT.format(", restart=True"))
    kernel.run("%px from mpi4py import MPI")
    *before, last = fault["cells"]
    for cell in before:
        kernel.run(f"%%px\n{cell}")
    began_s = time.monotonic()
    kernel.error = ""
    said = re.sub(r"\x1b\[[0-9;]*m", "", kernel.run(f"%%px\n{last}"))
    took_s = time.monotonic() - began_s
    kind = kind_of(kernel.error)
    possible = {fault["kind"], *fault.get("accept", [])}
    if "error" in possible:
        possible.add("hang")  # the other ranks wait for the one with the error, and the report names both
    assert kind in possible, (fault["reason"], said)
    if kind != "right":
        missing = [text for text in fault["must_mention"] if in_one_line(text) not in in_one_line(said)]
        assert not missing, (missing, said)
    assert took_s < fault["seconds"], said
    if kind == "death":
        assert "4 ranks" in kernel.run(CONNECT.format(""))
    after = kernel.run(f"%%px\n{fault.get('after') or AFTER}")
    assert not re.search(r"Error|RankDied|Exception on", after), after
