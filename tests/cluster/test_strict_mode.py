"""`connect(strict=True)`: each cell of a notebook lists what strict mode has found in it."""

from __future__ import annotations

import re

import pytest

from tests.cluster_fixtures import Kernel

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=5, strict=True)"
NEXT = "right, left = (rank + 1) % size, (rank - 1) % size\nx, y = np.zeros(4), np.zeros(4)\n"


def test_the_cells_of_a_notebook_in_strict_mode_list_their_errors(kernel: Kernel) -> None:
    assert "4 ranks" in kernel.run(CONNECT)

    def said(cell: str) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", kernel.run(f"%%px\n{cell}"))

    right = said(f"{NEXT}request = comm.Isend(x, right)\ncomm.Recv(y, left)\nrequest.Wait()\nprint('sent')")
    assert right.count("sent") == 4 and "Strict mode" not in right, right
    ring = said("comm.Send(x, right)\ncomm.Recv(y, left)")
    assert "HangError" in ring and "wait for each other in a circle: each waits in Send" in ring, ring
    kept = said("request = comm.Isend(x, right, 3)\ncomm.Barrier()")
    assert "never waited for" not in kept, kept  # a later cell may wait for it
    lost = said("comm.Recv(y, left, 3)\nrequest = None")
    assert lost.count("the request of Isend to rank") == 4 and "Strict mode found an error:" in lost, lost
    freed = said("half = comm.Split(rank // 2)\nhalf = None")
    assert freed.count("resource leak: rank") == 4 and "Strict mode has a remark:" in freed, freed
