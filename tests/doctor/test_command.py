"""`labkit doctor` as a command: it reports real faults, and none where there is none."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from labkit.doctor.trials import Finding
from mpiwatch import launch
from mpiwatch.processes import cores
from tests.conftest import run_python
from tests.doctor.helpers import CLEAN, MPIEXEC, OPEN_MPI, add_package, library


def doctor(**environment: str) -> tuple[int, dict[str, Finding]]:
    """Run `labkit doctor --json` with these variables in a clean environment; return status and findings."""
    done = run_python("-m", "labkit", "doctor", "--json", code=None, env={**CLEAN, **environment})
    assert done.stdout.startswith("["), done.stdout + done.stderr
    findings = {row["check"]: Finding(**row) for row in json.loads(done.stdout)}
    for finding in findings.values():
        assert finding.status in ("ok", "note", "fault") and finding.found
        assert bool(finding.why) == bool(finding.fix) == (finding.status != "ok"), finding
    assert done.returncode == any(finding.status == "fault" for finding in findings.values())
    return done.returncode, findings


def make_other_mpiexec(folder: Path) -> Path:
    """Write an mpiexec that acts like another MPI's: it starts n processes that do not find each other."""
    folder.mkdir()
    version = "HYDRA build details:" if OPEN_MPI else "mpiexec (Open MPI) 5"
    path = folder / "mpiexec"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec echo "{version}"\n'
        'n=$2; shift 2; for i in $(seq "$n"); do "$@" & done; wait\n'
    )
    path.chmod(0o755)
    return path


def test_a_healthy_environment_has_no_fault() -> None:
    code, findings = doctor(**launch.OPEN_MPI)
    assert code == 0
    real = ("packages", "mpi", "one mpi", "mpiexec", "engines", "root", "slots", "world", "threads")
    assert {name: findings[name].status for name in real} == dict.fromkeys(real, "ok")
    assert library()["version"] in findings["mpi"].found and str(MPIEXEC) in findings["mpiexec"].found


@pytest.mark.skipif(not OPEN_MPI, reason="MPICH needs no permission")
def test_missing_permissions_of_open_mpi_are_notes_and_the_fix_grants_them() -> None:
    code, findings = doctor()
    assert code == 0  # the lab itself works
    as_root, few_cores = os.geteuid() == 0, cores() < 4
    assert findings["root"].status == ("note" if as_root else "ok")
    assert findings["slots"].status == ("note" if few_cores else "ok")
    if as_root:
        fix = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        assert findings["root"].fix == fix
    if few_cores:
        assert findings["slots"].fix == "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
    assert findings["engines"].status == findings["world"].status == "ok"


def test_each_of_many_faults_is_found(tmp_path: Path) -> None:
    other = make_other_mpiexec(tmp_path / "bin")
    site = tmp_path / "site"
    add_package(site, "click", "7.0")
    code, findings = doctor(
        PATH=f"{other.parent}{os.pathsep}{CLEAN['PATH']}",
        PYTHONPATH=os.pathsep.join([str(site), CLEAN.get("PYTHONPATH", "")]),
        TMPDIR=str(tmp_path / "missing"),
        **{name: "64" for name in launch.ONE_THREAD},
    )
    assert code == 1
    assert findings["mpiexec"].status == "fault" and str(other) in findings["mpiexec"].found
    assert findings["world"].status == "fault" and "4 worlds of one rank" in findings["world"].found
    own_first = f"export PATH={shlex.quote(str(MPIEXEC.parent))}:$PATH"
    assert findings["mpiexec"].fix == findings["world"].fix == own_first
    assert findings["engines"].status == "ok"  # the lab does not use the mpiexec on PATH
    assert findings["packages"].found == "click: 7.0, the lab supports >=8.1"
    assert "pip install 'click>=8.1'" in findings["packages"].fix
    assert (findings["temp folder"].status, findings["temp folder"].fix) == ("fault", "unset TMPDIR")
    if cores() > 1:  # BLAS takes no more threads than there are cores
        ones = " ".join(f"{name}=1" for name in launch.ONE_THREAD)
        assert (findings["threads"].status, findings["threads"].fix) == ("note", f"export {ones}")


def test_an_mpi_that_does_not_load_is_a_fault_and_the_other_checks_still_run(tmp_path: Path) -> None:
    add_package(tmp_path, "labkit", "0")
    with (tmp_path / "labkit-0.dist-info" / "METADATA").open("a") as file:
        file.write("Requires-Dist: no > name\n")
    code, findings = doctor(MPI4PY_LIBMPI="/nonexistent", PYTHONPATH=str(tmp_path))
    assert findings["packages"].status == "note" and "InvalidRequirement" in findings["packages"].found
    if findings["mpi"].status == "ok":
        pytest.skip("this mpi4py is built for one library and ignores MPI4PY_LIBMPI")
    assert code == 1 and "/nonexistent" in findings["mpi"].found
    assert findings["mpi"].fix == "unset MPI4PY_LIBMPI"
    assert findings["threads"].status == "ok" and "engines" not in findings
