"""Average in shared memory, print the files behind it, then end or wait to be killed: python … end|wait."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from time import sleep

from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averaging, shared_array

comm = MPI.COMM_WORLD
gradient = shared_array(comm, 1 << 20)
gradient[...] = comm.rank
ALGORITHMS["shared-memory"](comm, gradient, 1.0)
Averaging("shared-memory", "mean")(comm, gradient.copy(), 0.0)
assert gradient[-1] == sum(range(comm.size))
if comm.rank == 0:
    maps = Path("/proc/self/maps")
    files = re.findall(r"/dev/shm/\S+", maps.read_text()) if maps.exists() else []
    print("files", *files, flush=True)
if sys.argv[1] == "wait":
    sleep(60)
