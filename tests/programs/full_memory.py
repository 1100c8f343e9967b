"""Watch where /dev/shm has no room, and, given a folder that has none either, where nothing has.

The file system there is these ranks' own. MPICH cannot start in a full one, so it becomes full afterwards;
Open MPI can, but takes pages of what it has there as it needs them, so it must be full before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from mpi4py import MPI

from labkit.comm import CollectiveError
from labkit.watch.communicators import watch
from labkit.watch.errors import HangError

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
    said = str(error)
else:
    assert comm.watch is not None
    said = os.path.dirname(comm.watch.recorder.path)
    try:
        comm.Bcast(bytearray(1 + (comm.rank == 1)), root=0)
        raise AssertionError("the board there shows nothing")
    except HangError:
        pass
all_said = world.gather(said)
if all_said:
    print(*(f"said: {one}" for one in all_said), sep="\n", flush=True)
