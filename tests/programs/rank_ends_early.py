"""Rank 1 ends its program while the others wait for it; rank 0 prints the report."""

from __future__ import annotations

import sys

from mpiwatch.communicators import watch
from mpiwatch.waiting import HangError

comm = watch()
comm.Barrier()
if comm.rank == 1:
    sys.exit()
try:
    comm.Barrier()
except HangError as error:
    if comm.rank == 0:
        print(error)
