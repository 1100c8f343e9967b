"""An environment whose variables are known, and the MPI library in it."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from labkit.doctor.trials import start_probe
from mpiwatch import launch
from mpiwatch.processes import is_mpich

MPIEXEC = Path(launch.mpiexec())
OPEN_MPI = not is_mpich(launch.mpiexec())
LINUX = sys.platform == "linux"
# The user's environment without the settings that the doctor checks.
OWN = launch.ONE_THREAD | launch.OPEN_MPI
CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}
CLEAN["PATH"] = f"{MPIEXEC.parent}{os.pathsep}{CLEAN['PATH']}"


@cache
def library() -> dict[str, Any]:
    """Return what the probe `library` reports of the MPI library here."""
    record: dict[str, Any] = start_probe("library", os.environ).finish().records[0]
    return record


def add_package(folder: Path, name: str, version: str) -> None:
    """Write metadata of a package that importlib.metadata takes for an installed one."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
