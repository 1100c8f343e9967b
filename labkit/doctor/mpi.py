"""Checks of MPI: does it load, is there one alone, is mpiexec of it, do ranks make one world?"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from labkit import env
from labkit.doctor.findings import Finding, fault, note, ok
from labkit.doctor.trials import Outcome
from labkit.doctor.versions import MPIS, bound_of

# By which a user's environment can lead mpi4py to another library than the environment's own.
LEADING = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
LEAVE = {name: value for name, value in env.OPEN_MPI.items() if "RUN_AS_ROOT" in name}
ROOM = {name: value for name, value in env.OPEN_MPI.items() if value == ":oversubscribe"}
PIP = f"{shlex.quote(sys.executable)} -m pip"


def wheels() -> dict[str, metadata.Distribution]:
    """Return the MPI libraries that are installed as Python packages, by the package's name."""
    found = {}
    for name in (*MPIS, "impi-rt"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.distribution(name)
    return found


def install() -> str:
    """Return the command that installs one MPI anew: the one that is here, if it is alone."""
    here = list(wheels())
    name = here[0] if len(here) == 1 else next(iter(MPIS))
    add = f"{PIP} install --force-reinstall {shlex.quote(f'{name}{bound_of(name)}')}"
    return f"{PIP} uninstall -y {' '.join(here)} && {add}" if len(here) > 1 else add


def unset(environment: Mapping[str, str]) -> str:
    """Return the command that lets mpi4py look for its library by itself, if variables lead it elsewhere."""
    names = [name for name in LEADING if environment.get(name)]
    for name in PATHS:
        folders = environment.get(name, "").split(os.pathsep)
        if any(folder and any(Path(folder).glob("libmpi*")) for folder in folders):
            names.append(name)
    return f"unset {' '.join(names)}" if names else ""


def match(mpiexec: str | None, environment: Mapping[str, str]) -> str:
    """Return the command that brings an mpiexec and the library that mpi4py loads together again."""
    own = Path(env.mpiexec())
    if own.exists() and (mpiexec is None or own.resolve() != Path(mpiexec).resolve()):
        return f"export PATH={shlex.quote(str(own.parent))}:$PATH"
    return unset(environment) or install()


def loads(outcome: Outcome, environment: Mapping[str, str]) -> Finding:
    """Does mpi4py load an MPI library, of a version that the lab supports?"""
    if not outcome.told:
        missing = "No module named 'mpi4py'" in outcome.said
        again = f"{PIP} install --force-reinstall --no-deps mpi4py"
        return fault(
            "mpi",
            "mpi4py is not installed" if missing else f"mpi4py finds no MPI that loads: it {outcome.end()}",
            "Without MPI there are no ranks.",
            again if missing else unset(environment) or (again if wheels() else install()),
        )
    library = outcome.told[0]
    says = f"{library['name']} {library['version']}, {library['file']}"
    for name, vendor in MPIS.items():
        bound = bound_of(name)
        if vendor == library["name"] and not bound.contains(library["version"]):
            return fault(
                "mpi",
                f"{says}: the lab supports {vendor} {bound}",
                "It is tested with no older one, and its settings are not known there.",
                f"{PIP} install {shlex.quote(f'{name}{bound}')}",
            )
    return ok("mpi", says)


def alone(
    installed: Mapping[str, metadata.Distribution], loaded: str, environment: Mapping[str, str]
) -> Finding:
    """Is there one MPI in this environment, and is it the one that mpi4py loads, from the file `loaded`?"""
    if len(installed) > 1:
        names = " and ".join(f"{name} {wheel.version}" for name, wheel in installed.items())
        return fault(
            "one mpi",
            f"{names} are installed together",
            "Both own bin/mpiexec: ranks are started by the one and load the other, each alone in its world.",
            install(),
        )
    for name, wheel in installed.items():
        own = {Path(str(file.locate())).resolve() for file in wheel.files or ()}
        if loaded and Path(loaded).resolve() not in own:
            return fault(
                "one mpi",
                f"mpi4py loads {loaded}, not {name} {wheel.version} of this environment",
                "mpiexec is of the other: versions that differ crash, other MPIs start worlds of one rank.",
                unset(environment) or f"{PIP} install --force-reinstall --no-deps --no-cache-dir mpi4py",
            )
    return ok("one mpi", f"{next(iter(installed), 'the system has it')} alone")


def kind_of(version: str) -> str:
    """Return the MPI that `mpiexec --version` tells of, by mpi4py's name; empty if it tells none we know."""
    for word, kind in {
        "Intel(R) MPI": "Intel MPI",
        "HYDRA": "MPICH",
        "Open MPI": "Open MPI",
        "OpenRTE": "Open MPI",
    }.items():
        if word in version:
            return kind
    return ""


def launcher(path: str | None, version: str, library: str, environment: Mapping[str, str]) -> Finding:
    """Is the `mpiexec` on PATH of the MPI library that mpi4py loads (by its name; empty if none loads)?"""
    own = env.mpiexec()
    if path is None and not Path(own).exists():
        found = "there is none, neither on PATH nor in this environment"
        return fault("mpiexec", found, "It starts the ranks.", install())
    if path is None:
        why = f"Notebooks find {own} by themselves; `mpiexec -n 4 labkit train` as typed does not."
        return note("mpiexec", "none on PATH", why, match(path, environment))
    kind = kind_of(version)
    if kind and library and kind != library:
        return fault(
            "mpiexec",
            f"{path} is of {kind}, but mpi4py loads {library}",
            "Its ranks do not find each other: they are n worlds of one rank each, or do not start.",
            match(path, environment),
        )
    return ok("mpiexec", f"{path}{f', of {kind}' * bool(kind)}")


def is_world(outcome: Outcome, n: int) -> bool:
    """Tell whether n ranks came up as one world, in which a sum of ones is n."""
    met = sorted((one["rank"], one["size"], one["sum"]) for one in outcome.told)
    return outcome.code == 0 and met == [(rank, n, n) for rank in range(n)]


def is_of_ones(outcome: Outcome) -> bool:
    """Tell whether more than one process came up, each the only rank of a world of its own."""
    return len(outcome.told) > 1 and all(one["size"] == 1 for one in outcome.told)


def engines(outcome: Outcome, n: int, environment: Mapping[str, str]) -> Finding:
    """Do ranks that are started as the lab starts its engines make one world?"""
    mpiexec = env.mpiexec()
    if is_world(outcome, n):
        return ok("engines", f"{n} ranks, one world, by {mpiexec} with the lab's settings")
    if is_of_ones(outcome):
        found = f"{mpiexec} starts {len(outcome.told)} worlds of one rank, not one world of {n}"
        return fault("engines", found, "connect() refuses such engines.", match(mpiexec, environment))
    return fault(
        "engines",
        f"{n} ranks did not come up: {mpiexec} {outcome.end()}",
        "connect() and `labkit lab` start their engines so.",
        "first what else is a fault here; if nothing is, the lines above are what MPI says of it",
    )


def needs_leave(outcome: Outcome) -> bool:
    """Tell whether Open MPI has refused to start as root."""
    return "run as root" in outcome.said and not outcome.told


def needs_room(outcome: Outcome) -> bool:
    """Tell whether Open MPI has refused to start more ranks than cores."""
    return "not enough slots" in outcome.said and not outcome.told


def export(settings: Mapping[str, str]) -> str:
    return "export " + " ".join(f"{name}={value}" for name, value in settings.items())


def root(refused: bool) -> Finding:
    """May mpiexec, as typed, start ranks as this user?"""
    if refused:
        return note(
            "root",
            "Open MPI's mpiexec refuses to run as root",
            "What you type yourself (`mpiexec -n 4 labkit train`) does not start; notebooks do.",
            export(LEAVE),
        )
    return ok("root", "mpiexec starts ranks as this user")


def slots(refused: bool, n: int, cores: int) -> Finding:
    """Does mpiexec, as typed, start n ranks on this many cores?"""
    if refused:
        return note(
            "slots",
            f"mpiexec refuses {n} ranks: it counts fewer slots ({cores} core{'s' * (cores > 1)} here)",
            "What you type yourself (`mpiexec -n 4 labkit train`) does not start; notebooks do.",
            export(ROOM),
        )
    return ok("slots", f"mpiexec starts {n} ranks on {cores} core{'s' * (cores > 1)}")


def world(outcome: Outcome, n: int, mpiexec: str, environment: Mapping[str, str]) -> Finding:
    """Do ranks that are started as typed make one world?"""
    if is_world(outcome, n):
        return ok("world", f"`mpiexec -n {n}` makes one world of {n} ranks")
    mend = match(mpiexec, environment)
    if is_of_ones(outcome):
        found = f"`mpiexec -n {n}` starts {len(outcome.told)} worlds of one rank, not one world of {n}"
        return fault("world", found, "Each rank trains alone on everything, and averages with nobody.", mend)
    return fault("world", f"`mpiexec -n {n}` {outcome.end()}", "What you type yourself does not run.", mend)
