"""What exercises add to a job's communicators leaves other calls as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from mpi4py import MPI
from labkit.exercises import wraps

comm, received = MPI.COMM_WORLD, np.empty(3)
noting = wraps.noting(comm, None)
statuses = [MPI.Status(), MPI.Status()]
MPI.Request.Waitall([comm.Irecv(received, 0, 7), comm.Isend(np.ones(3), 0, 7)], statuses)
print(statuses[0].Get_tag(), statuses[0].Get_count(MPI.DOUBLE), wraps.notes.together)
MPI.Request.Waitall([noting.Iallreduce(np.ones(3), received)])
print(wraps.notes.together)
"""


def test_requests_of_other_calls_keep_mpis_own_waitall(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, "-m", "mpiwatch", "-n", "1", str(program)]  # as in a job, requests are watched
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["7 3 []", "['Waitall']"], done
