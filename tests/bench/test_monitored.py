"""The traffic that Open MPI counts below its own collectives."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from labkit import env
from labkit.bench.monitored import ALLREDUCE, monitored


def test_open_mpi_reports_the_traffic_of_its_allreduce() -> None:
    command = [env.mpiexec(), "--version"]
    if "Open MPI" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout:
        with pytest.raises(RuntimeError, match=r"expected the counts of 2 ranks.*MPICH"):
            monitored(ALLREDUCE.format(n=64), p=2)
        return
    traffic = monitored(ALLREDUCE.format(n=64), p=4)
    assert traffic.sent is not None and traffic.messages is not None
    # No algorithm for 4 ranks does with less than 2(p-1)/p · 256 B sent by every rank on average.
    assert traffic.sent.sum() >= 2 * 3 * 256 and traffic.messages.sum() >= 4
    assert not traffic.sent.diagonal().any()
    ours = monitored("comm.Sendrecv_replace(np.ones(3), (comm.rank + 1) % 3, 0, (comm.rank - 1) % 3)", p=3)
    np.testing.assert_array_equal(ours.sent, 24 * np.roll(np.eye(3, dtype=int), 1, axis=1))
