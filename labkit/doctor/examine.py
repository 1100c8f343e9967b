"""Run all checks: of packages, of the machine, and of MPI."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.requirements import Requirement

from labkit.doctor import mpi
from labkit.doctor.trials import Finding, Outcome, Trial, fault, note, ok, start_probe
from labkit.units import MIB
from mpiwatch import launch, processes
from mpiwatch.processes import cores
from mpiwatch.report import counted

RANKS = 4  # the number that the notebooks use
# Per rank, measured with four ranks and large messages: MPICH 5.0 takes 5.3 MiB, and a signal kills it if it
# finds less; Open MPI 5.0 reserves up to 16 MiB.
REQUIRED, AMPLE = 6 * MIB, 16 * MIB


def examine(environment: Mapping[str, str], n: int = RANKS) -> list[Finding]:
    """Run all checks for n ranks and return their findings, after some seconds.

    `environment` is the user's own, without the lab's settings. Nothing that is started remains.
    """
    lab_environment = {**environment, **launch.settings(), **launch.one_machine(environment)}
    forgotten = processes.forgotten_segments()
    typed_mpiexec = shutil.which("mpiexec", path=environment.get("PATH"))
    library_probe = start_probe("library", environment)
    lab_threads = start_probe("threads", lab_environment)
    user_threads = start_probe("threads", environment)
    host_probe = start_probe("host", environment)
    version = Trial([typed_mpiexec, "--version"], environment) if typed_mpiexec else None
    engines = start_probe("world", lab_environment, launch.mpiexec(), "-n", str(n))

    findings: list[Finding] = []

    def check(name: str, function: Callable[..., Finding], *arguments: Any, **named: Any) -> None:
        try:
            finding = function(*arguments, **named)
        except Exception as error:  # a check that fails must not prevent the others
            found = f"could not be checked: {type(error).__name__}: {error}"
            why = "The check needs something that is missing here, or has an error of its own."
            finding = note(found, why, "Fix the other findings first.")
        findings.append(replace(finding, check=name))

    check("packages", packages)
    check("settings", settings)
    check("segments", segments, forgotten)
    check("shared memory", shared_memory, n)
    check("temp folder", temporary_folder, environment)

    library = library_probe.finish()
    loaded = library.records[0] if library.records else {"name": "", "file": ""}
    check("mpi", mpi.library, library, environment)
    check("one mpi", lambda: mpi.single_library(mpi.wheels(), loaded["file"], environment))
    version_text = version.finish().output if version else ""
    check("mpiexec", mpi.mpiexec, typed_mpiexec, version_text, loaded["name"], environment)
    engines_outcome = engines.finish()
    if library.records:
        check("engines", mpi.world, engines_outcome, n, launch.mpiexec(), environment, typed=False)
        if typed_mpiexec:
            other_mpi = mpi.vendor_of(version_text) not in ("", loaded["name"])
            typed_environment = {**environment, **launch.OPEN_MPI} if other_mpi else environment
            findings += mpi.typed_command(typed_mpiexec, typed_environment, n, cores())
    outcomes = lab_threads.finish(), user_threads.finish()
    check("threads", blas_threads, *outcomes, environment, n, cores())
    check("host name", host_name, host_probe.finish())
    return findings


def packages(wanted: Iterable[Requirement] | None = None) -> Finding:
    """Check that every package that the lab imports is installed, in a version that the lab supports."""
    missing = []
    found = []
    needed = [
        each
        for each in wanted or mpi.requirements()
        if not each.marker or each.marker.evaluate({"extra": ""})
    ]
    for each in needed:
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or not each.specifier.contains(version, prereleases=True):
            missing.append(f"{each.name}{each.specifier}")
            found.append(f"{each.name}: {version}, the lab supports {each.specifier}")
    if missing:
        return fault(
            "; ".join(found),
            "Functions that the lab calls are missing or behave differently.",
            f"{shlex.quote(sys.executable)} -m pip install {' '.join(map(shlex.quote, missing))}",
        )
    return ok(f"{len(needed)} packages, each in a supported version, for {sys.executable}")


def settings(prefix: str = sys.prefix) -> Finding:
    """Check that this environment has the settings with which `ipcluster` and connect() start engines."""
    file = Path(prefix, "etc", "ipython", "ipcluster_config.py")
    if file.exists():
        return ok(str(file))
    return fault(
        f"{file} is missing",
        "Engines start without MPI or by another mpiexec, as n worlds of one rank.",
        reinstall(),
    )


def reinstall() -> str:
    """Return the command that installs the lab again from where it was installed from: a clone or a wheel."""
    text = metadata.distribution("labkit").read_text("direct_url.json")
    source: dict[str, Any] = json.loads(text) if text else {"url": "labkit"}  # from a package index
    editable = ["--editable"] if source.get("dir_info", {}).get("editable") else []
    place = unquote(source["url"].removeprefix("file://"))
    words = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", *editable, place]
    return shlex.join(words)


def segments(paths: Sequence[str]) -> Finding:
    """Report shared memory that killed ranks left. `paths`: from mpiwatch.processes.forgotten_segments()."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += os.stat(path).st_blocks * 512
    if not paths:
        return ok("no shared memory of ranks that no longer run")
    return note(
        f"{counted(len(paths), 'segment')} of ranks that no longer run held {size >> 10} KiB",
        "They fill /dev/shm until they are removed. The lab removes only what its own jobs have made.",
        f"rm -f {' '.join(map(shlex.quote, paths))}",
    )


def blas_threads(lab: Outcome, user: Outcome, environment: Mapping[str, str], n: int, cores: int) -> Finding:
    """Check that the BLAS threads of n ranks fit on the cores.

    `lab` is the outcome of the probe `threads` in a rank's environment, `user` its outcome in the user's
    environment, whose variables are in `environment`.
    """
    for outcome in (lab, user):
        if not outcome.records:
            found = f"NumPy cannot multiply matrices: the probe {outcome.describe()}"
            command = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall numpy"
            return fault(found, "Every notebook needs NumPy.", command)
    in_lab, in_own = lab.records[0]["threads"], user.records[0]["threads"]
    chosen = {name: environment[name] for name in launch.ONE_THREAD if environment.get(name, "1") != "1"}
    if n * in_lab > cores and in_lab > 1:
        subject, threads = f"{n} ranks", in_lab
    elif n * in_own > cores and in_own > 1 and chosen:
        subject, threads = f"{n} ranks of your own program", in_own
    else:
        more = f"; of your own program {in_own}, unless OMP_NUM_THREADS=1" if in_own > in_lab else ""
        return ok(f"a rank of the lab uses {counted(in_lab, 'BLAS thread')}{more}")
    one = " ".join(f"{name}=1" for name in (*launch.ONE_THREAD, "VECLIB_MAXIMUM_THREADS"))
    because = f" ({', '.join(f'{name}={value}' for name, value in chosen.items())})" if chosen else ""
    return note(
        f"{subject} use {threads} BLAS threads each on {counted(cores, 'core')}{because}",
        "Ranks take cores from each other: steps are slower and timings vary.",
        f"export {' '.join(f'{name}=1' for name in chosen) or one}",
    )


def shared_memory(n: int, folder: str = processes.SHM) -> Finding:
    """Check that there is room for what n ranks exchange through shared memory."""
    try:
        room = os.statvfs(folder)
    except FileNotFoundError:
        return ok(f"there is no {folder}: MPI uses files or System V segments")
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    found = f"{free // MIB} MiB of {total // MIB} MiB are free in {folder}"
    if free > n * AMPLE:
        return ok(found)
    if total > 2 * n * AMPLE:  # large enough, but full
        fix = f"ls -lS {shlex.quote(folder)}   (remove what no running program needs)"
    elif any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        fix = "start the container with --shm-size=1g"
    else:
        fix = f"sudo mount -o remount,size=1g {shlex.quote(folder)}"
    if free < n * REQUIRED:
        why = f"{n} ranks need up to {n * REQUIRED // MIB} MiB; with less a signal (bus error) kills them."
        return fault(found, why, fix)
    why = f"It is enough for {n} ranks of MPICH; Open MPI, more ranks or a second notebook may need more."
    return note(found, why, fix)


def temporary_folder(environment: Mapping[str, str]) -> Finding:
    """Check that MPI can write to the temporary folder."""
    chosen = environment.get("TMPDIR", "")
    folder = chosen or tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(64 << 10))
    except OSError as error:
        free_or_allow = f"free some space or correct the permissions: df -h {folder}; ls -ld {folder}"
        return fault(
            f"{folder} is not writable: {error.strerror}",
            "MPI and Jupyter keep sockets and short-lived files there.",
            "unset TMPDIR" if chosen else free_or_allow,
        )
    return ok(f"{folder} is writable")


def host_name(outcome: Outcome) -> Finding:
    """Check that this machine's name resolves to an address, from the outcome of the probe `host`."""
    name = os.uname().nodename
    if outcome.records:
        return ok(f"{name} is {outcome.records[0]['address']}")
    return note(
        f"{name} does not resolve to an address",
        "MPI and ipyparallel look it up when they start: they wait for an answer, or give up.",
        'echo "127.0.0.1 $(hostname)" | sudo tee -a /etc/hosts',
    )
