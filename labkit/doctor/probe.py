"""A process of a trial: meet one part of the machine, and tell of it in a line of JSON.

mpiexec -n 4 python -m labkit.doctor.probe world
"""

# ruff: noqa: PLC0415 (imports inside functions: each probe loads what it is about)

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "labkit-doctor: "


def world() -> dict[str, Any]:
    """Tell which rank of how many this is, after all have added up a one each."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return {"rank": comm.rank, "size": comm.size, "sum": comm.allreduce(1)}


def library() -> dict[str, Any]:
    """Tell which MPI library mpi4py loads, and from which file; MPI is not started."""
    import ctypes

    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    class Symbol(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        )

    symbol = Symbol()
    function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Init, ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(function, ctypes.byref(symbol))
    name, version = MPI.get_vendor()
    return {
        "name": name,
        "version": ".".join(map(str, version)),
        "file": (symbol.file or b"").decode(),
    }


def threads() -> dict[str, Any]:
    """Tell how many threads a matrix product takes: one, and those that NumPy's BLAS has started for it."""
    import psutil

    me = psutil.Process()
    before = me.num_threads()
    import numpy as np

    square = np.ones((512, 512))
    square @ square
    return {"threads": 1 + me.num_threads() - before}


def host() -> dict[str, Any]:
    """Tell the address that this machine's name stands for."""
    import socket

    return {"address": socket.getaddrinfo(socket.gethostname(), None)[0][4][0]}


if __name__ == "__main__":
    told = {"world": world, "library": library, "threads": threads, "host": host}[sys.argv[1]]()
    # One write of one line: lines of several ranks do not mix.
    sys.stdout.write(f"{MARK}{json.dumps(told)}\n")
    sys.stdout.flush()
