"""The program of a trial: use one part of the machine and print what it found as one line of JSON.

mpiexec -n 4 python -m labkit.doctor.probe world
"""

# ruff: noqa: PLC0415 (imports inside functions: each probe loads only what it examines)

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "labkit-doctor: "  # begins the line


def world() -> dict[str, Any]:
    """Report this process's rank, the number of ranks, and the sum of a one from each."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return {"rank": comm.rank, "size": comm.size, "sum": comm.allreduce(1)}


def library() -> dict[str, Any]:
    """Report which MPI library mpi4py loads, and from which file. Do not initialise MPI."""
    import ctypes

    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    class Symbol(ctypes.Structure):  # Dl_info of <dlfcn.h>
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
    """Report how many threads a matrix product uses: this one, and those that NumPy's BLAS starts."""
    import psutil

    process = psutil.Process()
    before = process.num_threads()
    import numpy as np

    square = np.ones((512, 512))
    square @ square
    return {"threads": 1 + process.num_threads() - before}


def host() -> dict[str, Any]:
    """Report the address that this machine's name resolves to."""
    import socket

    return {"address": socket.getaddrinfo(socket.gethostname(), None)[0][4][0]}


if __name__ == "__main__":
    record = {"world": world, "library": library, "threads": threads, "host": host}[sys.argv[1]]()
    # One write per line, so that the lines of several ranks do not mix.
    sys.stdout.write(f"{MARK}{json.dumps(record)}\n")
    sys.stdout.flush()
