"""Run a program whose ranks count as if they were on several machines, N on each.

mpiexec -n 4 python on_machines.py N PROGRAM …
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from mpi4py import MPI

from mpiwatch import communicators

ranks = int(sys.argv[1])
communicators.machine = lambda: (f"machine {MPI.COMM_WORLD.rank // ranks}",)
del sys.argv[:2]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
