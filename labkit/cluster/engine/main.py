"""An ipyparallel engine that comes up sooner: its nanny is forked off, not started as a program of its own.

A nanny (the process that relays signals to an engine and reports its end) imports all of ipyparallel once
more, which for four engines on two cores is a third of the start of a cluster. Forked before MPI, threads
and sockets come up, it finds everything imported.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

from ipyparallel.engine import app, nanny


def fork_nanny() -> Any:
    """Fork the nanny-to-be; return what gives it its orders, in place of ipyparallel's `start_nanny`."""
    orders, give_orders = os.pipe()
    answers, answer = os.pipe()
    if os.fork() == 0:
        os.setsid()  # the terminal's signals are not for it
        os.dup2(orders, 0)
        os.dup2(answer, 1)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (its answer is one line: send it)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # above all the socket by which mpiexec sees a rank end
        try:
            nanny.main()
        finally:
            os._exit(0)
    os.close(orders)
    os.close(answer)

    def start_nanny(**what: Any) -> tuple[str, Any]:
        with open(give_orders, "wb") as file:
            pickle.dump({**what, "pid": os.getpid()}, file)
        # Left open: its closing tells the nanny of this engine's end.
        pipe = open(answers, encoding="utf-8")  # noqa: SIM115
        url = pipe.readline().strip()
        if not url:
            raise RuntimeError("the engine's nanny did not start")
        return url, pipe

    return start_nanny


def main() -> None:
    """Run an engine; the command line is ipyparallel's own."""
    app.start_nanny = fork_nanny()
    app.main()
