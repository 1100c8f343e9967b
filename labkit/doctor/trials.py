"""What the checks work with: findings, and trials in child processes that end at a deadline.

mpiexec -n 4 python -m labkit.doctor.trials world

prints what each rank found, as one line of JSON.
"""

# ruff: noqa: PLC0415 (imports inside functions: each probe loads only what it examines)

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.children import end, start_child

DEADLINE_S = 30.0  # a trial takes one second on an idle machine, and several run at once
MARK = "labkit-doctor: "  # begins the line of a probe


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    `status` is "ok"; "note" if the lab works, but something costs time or a command typed by hand would fail;
    or "fault" if the lab does not work or computes wrong results. `why` says what harm it does, and `fix` how
    to fix it, with one command where possible; both are empty if the status is "ok".
    """

    status: str
    found: str
    why: str = ""
    fix: str = ""
    check: str = ""


ok, note, fault = (partial(Finding, status) for status in ("ok", "note", "fault"))


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended: its exit status, None if it reached the deadline, and all of its output."""

    status: int | None
    output: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return what its probes reported, one record each."""
        lines = self.output.splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]

    def describe(self) -> str:
        """Return how it ended, with the lines that matter: the last of a traceback, else the first."""
        late = f"did not end within {DEADLINE_S:g} s"
        how = late if self.status is None else f"ended with status {self.status}"
        lines = [line.strip(" =") for line in self.output.splitlines() if not line.startswith(MARK)]
        words = [line for line in lines if any(letter.isalpha() for letter in line)]
        words = words[-3:] if "Traceback" in self.output else words[:3]
        return f"{how}: {' / '.join(words)}" if words else how


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command."""
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    return start_child(command, env=environment, stdout=pipe, stderr=same, text=True, errors="replace")


def start_probe(name: str, environment: Mapping[str, str], *launcher: str) -> subprocess.Popen[str]:
    """Start a probe as one process, or by a launcher such as `mpiexec -n 4`."""
    return start([*launcher, sys.executable, "-P", "-m", "labkit.doctor.trials", name], environment)


def finish(trial: subprocess.Popen[str]) -> TrialOutcome:
    """Wait until the command has ended, and end it at the deadline."""
    try:
        output, _ = trial.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        end(trial)
        return TrialOutcome(None, trial.communicate()[0])
    return TrialOutcome(trial.returncode, output)


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

    symbol = (ctypes.c_char_p * 4)()  # Dl_info of <dlfcn.h>, whose first field is the path of the file
    function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Init, ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(function, ctypes.byref(symbol))
    name, version = MPI.get_vendor()
    return {"name": name, "version": ".".join(map(str, version)), "file": (symbol[0] or b"").decode()}


def host() -> dict[str, Any]:
    """Report the address that this machine's name resolves to."""
    import socket

    return {"address": socket.getaddrinfo(socket.gethostname(), None)[0][4][0]}


if __name__ == "__main__":
    record = {"world": world, "library": library, "host": host}[sys.argv[1]]()
    # One write per line, so that the lines of several ranks do not mix.
    sys.stdout.write(f"{MARK}{json.dumps(record)}\n")
    sys.stdout.flush()
