"""Watch a communicator while /dev/shm is full; the argument is the temporary folder, which may be full, too.

/dev/shm is mounted for these ranks alone. MPICH cannot start if it is full, so it is filled afterwards.
Open MPI can start, but takes more of its memory there while it runs, so it must be full from the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from mpi4py import MPI

from labkit.comm import CollectiveError
from mpiwatch.communicators import watch
from mpiwatch.waiting import HangError

world = MPI.COMM_WORLD
if world.rank == 0 and MPI.get_vendor()[0] == "MPICH":
    room = os.statvfs("/dev/shm")
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    subprocess.run(["mount", "-o", f"remount,size={used}", "/dev/shm"], check=True)
    assert not os.statvfs("/dev/shm").f_bfree
world.Barrier()
tempfile.tempdir = sys.argv[1]
try:
    comm = watch()
except CollectiveError as error:
    answer = str(error)
else:
    assert comm.watch is not None
    answer = os.path.dirname(comm.watch.recorder.path)
    try:
        comm.Bcast(bytearray(1 + (comm.rank == 1)), root=0)
        raise AssertionError("the flight recorder in the temporary folder did not show the mismatch")
    except HangError:
        pass
answers = world.gather(answer)
if answers:
    print(*(f"said: {text}" for text in answers), sep="\n", flush=True)
