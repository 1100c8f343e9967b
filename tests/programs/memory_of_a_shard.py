"""How much memory each rank needs for its share of 60,000 images: mpiexec -n p python … CACHE HOW …

HOW is a scheme, or "whole": each rank reads all images. Rank 0 prints, as
JSON, for each HOW, by rank: the bytes of the share, and by how much the rank's memory grew at its peak. CACHE
holds the original files, made by the test. Linux only: elsewhere a process cannot ask for its peak afresh.
"""

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import SharedSet


def memory(kind: str) -> int:
    """Return this process's memory now ("VmRSS") or at its peak ("VmHWM"), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) * 1024


def shard(comm: MPI.Intracomm, how: str) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's share of the training samples."""
    if how == "whole":
        whole = data.load("mnist")
        return whole.x_train[comm.rank :: comm.size], whole.y_train[comm.rank :: comm.size]
    shared = SharedSet(comm, "mnist")
    return shared.shard(data.scheme(how, targets=shared.targets, speeds=[1.0] * comm.size))


comm = MPI.COMM_WORLD
cache, *hows = sys.argv[1:]
os.environ["LABKIT_DATA"] = cache
folder = Path(cache) / "mnist"
sums = json.loads((folder / "sums.json").read_text())
data.SOURCES["mnist"] = replace(data.SOURCES["mnist"], files=sums)
# What any such program has in memory before it begins: the libraries, and MPI's buffers of a first message.
comm.alltoall([b"x"] * comm.size)
told = {}
for how in hows:
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts afresh from here
    before = memory("VmRSS")
    x, y = shard(comm, how)
    grown = memory("VmHWM") - before
    assert x.shape == (60_000 // comm.size, 784)
    told[how] = comm.gather((x.nbytes + y.nbytes, grown))
    del x, y
    gc.collect()
if comm.rank == 0:
    print(json.dumps(told))
