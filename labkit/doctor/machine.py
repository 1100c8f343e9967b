"""Checks of the machine: BLAS threads, shared memory, the temporary folder, the host name."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labkit.doctor.findings import Finding, fault, note, ok
from labkit.doctor.trials import Outcome
from labkit.units import MIB
from mpiwatch import env
from mpiwatch.leftovers import SHM
from mpiwatch.wording import counted

# Per rank, measured with four ranks and large messages: MPICH 5.0 takes 5.3 MiB, and a signal kills it if it
# finds less; Open MPI 5.0 reserves up to 16 MiB.
REQUIRED, AMPLE = 6 * MIB, 16 * MIB
# A socket's path may have 103 bytes on macOS. Open MPI puts its sockets about 50 bytes below TMPDIR, whose
# default there has 49.
LONGEST_TMPDIR = 53


def blas_threads(lab: Outcome, user: Outcome, environment: Mapping[str, str], n: int, cores: int) -> Finding:
    """Check that the BLAS threads of n ranks fit on the cores.

    `lab` is the outcome of the probe `threads` in a rank's environment, `user` its outcome in the user's
    environment, whose variables are in `environment`.
    """
    for outcome in (lab, user):
        if not outcome.records:
            found = f"NumPy cannot multiply matrices: the probe {outcome.describe()}"
            command = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall numpy"
            return fault("threads", found, "Every notebook needs NumPy.", command)
    in_lab, in_own = lab.records[0]["threads"], user.records[0]["threads"]
    chosen = {name: environment[name] for name in env.ONE_THREAD if environment.get(name, "1") != "1"}
    if n * in_lab > cores and in_lab > 1:
        subject, threads = f"{n} ranks", in_lab
    elif n * in_own > cores and in_own > 1 and chosen:
        subject, threads = f"{n} ranks of your own program", in_own
    else:
        more = f"; of your own program {in_own}, unless OMP_NUM_THREADS=1" if in_own > in_lab else ""
        return ok("threads", f"a rank of the lab uses {counted(in_lab, 'BLAS thread')}{more}")
    one = " ".join(f"{name}=1" for name in (*env.ONE_THREAD, "VECLIB_MAXIMUM_THREADS"))
    because = f" ({', '.join(f'{name}={value}' for name, value in chosen.items())})" if chosen else ""
    return note(
        "threads",
        f"{subject} use {threads} BLAS threads each on {counted(cores, 'core')}{because}",
        "Ranks take cores from each other: steps are slower and timings vary.",
        f"export {' '.join(f'{name}=1' for name in chosen) or one}",
    )


def shared_memory(n: int, folder: str = SHM) -> Finding:
    """Check that there is room for what n ranks exchange through shared memory."""
    try:
        room = os.statvfs(folder)
    except FileNotFoundError:
        return ok("shared memory", f"there is no {folder}: MPI uses files or System V segments")
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    found = f"{free // MIB} MiB of {total // MIB} MiB are free in {folder}"
    if free > n * AMPLE:
        return ok("shared memory", found)
    if total > 2 * n * AMPLE:  # large enough, but full
        fix = f"ls -lS {shlex.quote(folder)}   (remove what no running program needs)"
    elif any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        fix = "start the container with --shm-size=1g"
    else:
        fix = f"sudo mount -o remount,size=1g {shlex.quote(folder)}"
    if free < n * REQUIRED:
        why = f"{n} ranks need up to {n * REQUIRED // MIB} MiB; with less a signal (bus error) kills them."
        return fault("shared memory", found, why, fix)
    why = f"It is enough for {n} ranks of MPICH; Open MPI, more ranks or a second notebook may need more."
    return note("shared memory", found, why, fix)


def temporary_folder(environment: Mapping[str, str], platform: str = sys.platform) -> Finding:
    """Check that MPI can write to the temporary folder and create a socket there."""
    chosen = environment.get("TMPDIR", "")
    folder = chosen or tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(64 << 10))
    except OSError as error:
        free_or_allow = f"free some space or correct the permissions: df -h {folder}; ls -ld {folder}"
        return fault(
            "temp folder",
            f"{folder} is not writable: {error.strerror}",
            "MPI and Jupyter keep sockets and short-lived files there.",
            "unset TMPDIR" if chosen else free_or_allow,
        )
    if platform == "darwin" and len(os.fsencode(folder)) > LONGEST_TMPDIR:
        return note(
            "temp folder",
            f"the path {folder} has {len(os.fsencode(folder))} bytes",
            "The paths of sockets in it are longer than macOS allows: Open MPI may not start.",
            "export TMPDIR=/tmp",
        )
    return ok("temp folder", f"{folder} is writable")


def host_name(outcome: Outcome) -> Finding:
    """Check that this machine's name resolves to an address, from the outcome of the probe `host`."""
    name = os.uname().nodename
    if outcome.records:
        return ok("host name", f"{name} is {outcome.records[0]['address']}")
    return note(
        "host name",
        f"{name} does not resolve to an address",
        "MPI and ipyparallel look it up when they start: they wait for an answer, or give up.",
        'echo "127.0.0.1 $(hostname)" | sudo tee -a /etc/hosts',
    )
