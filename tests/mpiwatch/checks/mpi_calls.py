"""Find the MPI call that a rank is inside, for every way to write a call: here, one that raises an error."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import pickle
import select
import threading
import time
from types import SimpleNamespace
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from mpiwatch import watchdog

SETUP = """
class Holder:
    def __init__(self):
        self.comm = comm
        self.runs = 0
        self.list = [comm, comm]
    @property
    def trap(self):
        assert self.runs == 0, "a property was run by the watchdog"
        self.runs += 1
        return comm
    def method(self):
        self.comm.Bcast(a, b)
holder = Holder()
bound = comm.Bcast
unbound = MPI.Comm.Bcast
partial = functools.partial(comm.Bcast, root=b)
reqs = [MPI.REQUEST_NULL, MPI.REQUEST_NULL]
by_name = {"world": comm}
i = 1
yes = True
class Client:
    Get = staticmethod(math.floor)
    def __getattr__(self, name):
        return math.floor
client = Client()
"""

FORMS = {
    "comm.Bcast(a, b)": "Bcast",
    "comm.Bcast(a, root=b)": "Bcast",
    "holder.comm.Bcast(a,\n *[b])": "Bcast",
    "bound(a, root=b)": "Bcast",
    "comm.Bcast(*[a, b])": "Bcast",
    "x = 1 + comm.bcast(b)": "bcast",
    "unbound(comm, a, b)": "Bcast",
    "partial(a)": "Bcast",
    "MPI.Comm.Bcast(comm, a, b)": "Bcast",
    "mpi4py.MPI.COMM_WORLD.Bcast(a, b)": "Bcast",
    "holder.list[i].Bcast(a, b)": "Bcast",
    "by_name['world'].Bcast(a, b)": "Bcast",
    "holder.method()": "Bcast",
    "(comm\n  .Bcast(\n    a,\n    root=b,\n))": "Bcast",
    "(other := comm).Bcast(a, b)": "Bcast",
    "comm.Bcast(a, [None, b][1] if len([y for y in (1, 2) if y]) else None)": "Bcast",
    "comm.Bcast(a, [c for c in [b]][0])": "Bcast",
    "comm.Allreduce(b, b)": "Allreduce",
    "comm.Isend(b, 0).Wait()": "Isend",
    "list(map(lambda c: c.Bcast(a, b), holder.list))": "Bcast",
    "[c.Bcast(a, b) for c in holder.list]": "Bcast",
    "any(c.Bcast(a, b) for c in holder.list)": "Bcast",
    "(lambda: comm.Bcast(a, b))()": "Bcast",
    "with contextlib.nullcontext(comm) as inside:\n    inside.Bcast(a, b)": "Bcast",
    "def f(c, k=0):\n    z = 3\n    return c.Bcast(a, root=k)\nf(comm, b)": "Bcast",
    "def f():\n    c = comm\n    def g():\n        return c.Bcast(a, b)\n    return g()\nf()": "Bcast",
    "def f():\n    yield comm.Bcast(a, b)\nnext(f())": "Bcast",
    "def f():\n    from mpi4py import MPI as M\n    M.COMM_WORLD.Bcast(a, b)\nf()": "Bcast",
    "class C:\n    comm.Bcast(a, b)": "Bcast",
    "MPI.Request.Waitall(b)": "Waitall",
    "reqs[0].Waitall(b)": "Waitall",
    "MPI.Win.Allocate(b)": "Allocate",
    "MPI.File.Open(comm, b)": "Open",
    "comm.Split(b)": "Split",
    "comm.Dup().Bcast(a, b)": "Bcast",
    "MPI.Intracomm(comm).Bcast(a, b)": "Bcast",
    "lib.MPI_Barrier(b)": "MPI_Barrier",
    "barrier = lib.MPI_Barrier\nbarrier(b)": "MPI_Barrier",
    # Python loads two variables by one instruction.
    "def f(z, c):\n    return (z, c.bcast(b))\nf(1, comm)": "bcast",
    "def f(z, c):\n    return (z, c[0].bcast(b))\nf(1, holder.list)": "bcast",
    "def f(c, k):\n    return c[k].bcast(b)\nf(holder.list, 0)": "bcast",
    "def f(z, c):\n    return (z, c(a, b))\nf(1, comm.Bcast)": "Bcast",
    "class D(MPI.Intracomm):\n    def go(self):\n        super().Bcast(a, b)\nD(comm).go()": "Bcast",
    # Of an object that the watchdog does not know, only the method's name: most in capitals are MPI's.
    "holder.trap.Bcast(a, b)": "Bcast",
    "(comm if yes else holder.comm).Bcast(a, b)": "Bcast",
    # These are not calls of MPI, or not certain to be:
    "time.sleep(b)": "",
    "lib.abs(b)": "",
    "np.linalg.svd(b)": "",
    "list(b)": "",
    "[].__class__(b)": "",
    "threading.Event().wait(b)": "",
    "threading.Lock().acquire(True, b)": "",
    "select.select([], [], b)": "",
    "comm.rank and 0 or math.floor(b)": "",
    "holder.trap.bcast(a, b)": "",
    "(comm if yes else holder.comm).bcast(a, b)": "",
    "getattr(comm, 'Bcast')(b)": "",
    "def f(z, c):\n    return (z, c.Get(b))\nf(1, client)": "",
    "Client().Get(b)": "",
    "client.Open(b)": "",
    "x = [comm.rank, math.floor(b)]": "",
    "math.floor(b); comm.Barrier()": "",
    "comm.Get_rank(); math.floor(b)": "",
    "comm.allreduce(math.floor(b))": "",
    "pickle.dumps(b)": "",
}


def names() -> dict[str, Any]:
    library = ctypes.CDLL(None)
    library_of_mpi = ctypes.CDLL(MPI.__file__)
    library.MPI_Barrier = library_of_mpi.MPI_Barrier  # type: ignore[assignment]
    modules = np, functools, contextlib, math, pickle, select, threading, time, mpi4py
    named = {
        "MPI": MPI,
        "comm": MPI.COMM_SELF,
        "a": np.ones(1),
        "b": lambda: None,  # which no function accepts, and which cannot be pickled
        "rank": 0,
        "lib": library,
        "np": np,
    }
    return {module.__name__: module for module in modules} | named


def looked(code: str, in_function: bool) -> str | None:
    """Return which MPI call is seen where some code raises an error; None if that ran a property."""
    text = f"{SETUP}{code}"
    if in_function:
        text = "def whole():\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "whole()"
    try:
        exec(compile(text, "<string>", "exec"), names())
    except AssertionError:
        return None
    except Exception as error:
        entry, last = error.__traceback__, None
        while entry is not None:
            last = entry if entry.tb_frame.f_code.co_filename == "<string>" else last
            entry = entry.tb_next
        assert last is not None
        frame = last.tb_frame
        scopes = {name: getattr(frame, name) for name in ("f_locals", "f_globals", "f_builtins")}
        stand_in: Any = SimpleNamespace(f_code=frame.f_code, f_lasti=last.tb_lasti, f_back=None, **scopes)
        return watchdog.mpi_call(stand_in)[0]
    return "no error"


def check_the_call_of_each_form(comm: MPI.Intracomm) -> None:
    """A call is recognised in every form, and nothing else is taken for one."""
    wrong: dict[tuple[str, bool], str | None] = {}
    for code, expected in FORMS.items():
        for in_function in (False, True):
            if in_function and "class C" in code:
                continue  # in a class body, a name of the function around it
            if (found := looked(code, in_function)) != expected:
                wrong[code, in_function] = found
    assert not wrong, "\n".join(f"{where}: {found!r}" for where, found in wrong.items())
