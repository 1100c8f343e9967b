"""Checks of the machine: threads of BLAS, shared memory, temporary files, its name."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labkit import env
from labkit.doctor.findings import Finding, fault, note, ok
from labkit.doctor.trials import Outcome
from labkit.leftovers import SHM

MiB = 1 << 20
# Measured with four ranks and large messages: MPICH 5.0 takes 5.3 MiB a rank, and ends by a signal where it
# finds less. Open MPI 5.0 reserves up to 16 MiB.
LEAST, AMPLE = 6 * MiB, 16 * MiB
# A socket's path may have 103 bytes on macOS; Open MPI makes its own some 50 bytes below TMPDIR, which is 49
# bytes long there unless set otherwise.
LONGEST_TMPDIR = 53


def blas(lab: Outcome, own: Outcome, environment: Mapping[str, str], n: int, here: int) -> Finding:
    """Do n ranks, each with its threads of BLAS, fit on the cores that are here?

    Args:
        lab: what the probe `threads` told in a rank's environment.
        own: what it told in the user's environment.
        environment: the user's.
        n: ranks.
        here: cores.

    """
    if not lab.told or not own.told:
        end = (lab if not lab.told else own).end()
        return fault("threads", f"NumPy does not multiply: it {end}", "Every notebook needs it.", "make env")
    each, typed = lab.told[0]["threads"], own.told[0]["threads"]
    chosen = {name: environment[name] for name in env.ONE_THREAD if environment.get(name, "1") != "1"}
    if n * each > here and each > 1:
        whose, count = "ranks", each
    elif n * typed > here and typed > 1 and chosen:
        whose, count = "ranks of a program of your own", typed
    else:
        rest = f"; in a program of your own {typed}, unless OMP_NUM_THREADS=1" if typed > each else ""
        return ok("threads", f"a rank of the lab computes with {each} thread{'s' * (each > 1)} of BLAS{rest}")
    one = " ".join(f"{name}=1" for name in (*env.ONE_THREAD, "VECLIB_MAXIMUM_THREADS"))
    set_to = f" ({', '.join(f'{name}={value}' for name, value in chosen.items())})" if chosen else ""
    return note(
        "threads",
        f"{n} {whose} compute with {count} threads of BLAS each, on {here} core{'s' * (here > 1)}{set_to}",
        "Ranks take each other's cores: steps become slower, and times mean little.",
        f"export {' '.join(f'{name}=1' for name in chosen) or one}",
    )


def shared_memory(n: int, folder: str = SHM) -> Finding:
    """Is there room for what n ranks exchange by shared memory?"""
    try:
        room = os.statvfs(folder)
    except FileNotFoundError:
        return ok("shared memory", f"no {folder} here: MPI uses files or System V segments")
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    says = f"{free // MiB} MiB free of {total // MiB} in {folder}"
    if free > n * AMPLE:
        return ok("shared memory", says)
    if total > 2 * n * AMPLE:  # large enough, but full
        mend = f"ls -lS {shlex.quote(folder)}   (remove what no running program needs)"
    elif any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        mend = "start the container with --shm-size=1g"
    else:
        mend = f"sudo mount -o remount,size=1g {shlex.quote(folder)}"
    if free < n * LEAST:
        why = f"{n} ranks take up to {n * LEAST // MiB} MiB; with less they end by a signal (bus error)."
        return fault("shared memory", says, why, mend)
    why = f"Enough for {n} ranks of MPICH; Open MPI's, more ranks or a second notebook may find it full."
    return note("shared memory", says, why, mend)


def temporary(environment: Mapping[str, str], platform: str = sys.platform) -> Finding:
    """Can MPI write where temporary files go, and make a socket there?"""
    chosen = environment.get("TMPDIR", "")
    folder = chosen or tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(64 << 10))
    except OSError as error:
        return fault(
            "temporary",
            f"{folder} cannot be written: {error.strerror}",
            "MPI and Jupyter keep sockets and short-lived files there.",
            "unset TMPDIR"
            if chosen
            else f"free some room or mend the rights: df -h {folder}; ls -ld {folder}",
        )
    if platform == "darwin" and len(os.fsencode(folder)) > LONGEST_TMPDIR:
        return note(
            "temporary",
            f"the name of {folder} is {len(os.fsencode(folder))} bytes long",
            "The path of a socket in it becomes longer than macOS allows: Open MPI may not start.",
            "export TMPDIR=/tmp",
        )
    return ok("temporary", f"{folder} can be written")


def name(outcome: Outcome) -> Finding:
    """Does this machine's name stand for an address?"""
    if outcome.told:
        return ok("host name", f"{os.uname().nodename} is {outcome.told[0]['address']}")
    return note(
        "host name",
        f"{os.uname().nodename} stands for no address",
        "MPI and ipyparallel look it up while they start: they wait for an answer, or give up.",
        'echo "127.0.0.1 $(hostname)" | sudo tee -a /etc/hosts',
    )
