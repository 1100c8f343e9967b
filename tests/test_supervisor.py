"""Processes: the supervisor removes the files of its own cluster and of no other, and leaves no zombies."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from labkit.cluster import supervisor as cluster_supervisor
from mpiwatch import launch, processes
from mpiwatch.processes import LINUX, alive, supervised, wait_until_read
from tests.cluster_fixtures import wait_until
from tests.conftest import kill_tree

NEEDS_SHM = pytest.mark.skipif(not LINUX, reason="elsewhere, no directory lists the segments")


@pytest.mark.parametrize("successor", [False, True], ids=["alone", "with a successor"])
def test_files_of_a_new_cluster_of_the_same_name_are_kept(tmp_path: Path, successor: bool) -> None:
    (tmp_path / "security").mkdir()
    (tmp_path / "log").mkdir()
    files = [tmp_path / "security" / f"{name}.json" for name in ("cluster-", "ipcontroller-client")]
    environment = {**os.environ, "IPP_PROFILE_DIR": str(tmp_path), "IPP_CLUSTER_ID": ""}
    read_a_line = [sys.executable, "-c", "print(flush=True); input()"]
    job = subprocess.Popen(
        [*cluster_supervisor.supervised("controller"), *read_a_line],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdin and job.stdout.readline() == b"\n"  # now the command runs
    controller = os.getppid() if successor else job.pid  # any other process that is alive
    files[0].write_text(json.dumps({"controller": {"state": {"pid": controller}}}))
    files[1].write_text("{}")
    job.communicate(b"\n", timeout=60)
    assert [file.exists() for file in files] == [successor, successor]


@pytest.mark.skipif(not LINUX, reason="elsewhere, no link names the file of an output")
@pytest.mark.parametrize("end", ["killed", "stops its controller and is killed"])
def test_the_logs_of_a_killed_kernel_are_removed(tmp_path: Path, end: str) -> None:
    """As on a busy server: Jupyter kills a kernel that has not stopped its cluster within seconds."""
    (tmp_path / "log").mkdir()
    own, others = (tmp_path / "log" / f"ipengine-{name}-7-8.log" for name in ("notebook-1", "notebook-12"))
    for log in (own, others):
        log.write_text("")
    controllers = tmp_path / "log" / "ipcontroller-notebook-1-7.log"
    kernel = subprocess.Popen(["sleep", "60"])
    supervisor = cluster_supervisor.supervised("controller")
    supervisor[-2] = str(kernel.pid)  # STARTER; what to remove follows
    environment = {**os.environ, "IPP_PROFILE_DIR": str(tmp_path), "IPP_CLUSTER_ID": "notebook-1"}
    try:
        with (
            controllers.open("wb") as log,
            subprocess.Popen([*supervisor, "sh", "-c", "echo; sleep 60"], env=environment, stdout=log) as job,
        ):
            wait_until(lambda: controllers.read_bytes() == b"\n", "the controller runs")
            if end == "killed":
                kernel.kill()
                kernel.wait()
            else:
                job.terminate()  # while the kernel lives
    finally:
        kernel.kill()
        kernel.wait()
    assert not own.exists() and not controllers.exists() and others.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another process adopts orphans")
def test_an_orphan_that_ends_is_no_zombie_while_the_command_runs() -> None:
    """As engines whose kernel has ended: `connect()` in the next kernel waits until they are gone."""
    job = subprocess.Popen(
        [*supervised(), "sh", "-c", "sh -c 'sleep 0.1 & echo $!'; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdin
    orphan = int(job.stdout.readline())
    try:
        wait_until(lambda: not psutil.pid_exists(orphan), "the orphan is gone")
        assert job.poll() is None
    finally:
        job.communicate(b"\n", timeout=60)
    assert job.returncode == 0


@NEEDS_SHM
def test_files_of_other_programs_survive_a_job_although_they_are_named_like_mpis() -> None:
    """Python's SharedMemory begins with `psm_`, and anyone may call a file `ucx_results`."""
    names = ("psm_", "ucx_shm_posix_", "mpich_shm_", "sm_segment.", "ofi_", "../../tmp/hydra_hwloc_xmlfile_")
    before, during = (
        [Path(processes.SHM, f"{name}{os.getpid()}{when}") for name in names] for when in ("before", "during")
    )

    def write(files: list[Path]) -> None:
        # Another process writes them: what this one, which starts the job, has open counts as the job's.
        subprocess.run(["tee", *files], input=b"kept", stdout=subprocess.DEVNULL, check=True)

    script = "from mpi4py import MPI; print('begun', flush=True); input() if MPI.COMM_WORLD.rank == 0 else 0"
    try:
        write(before)
        job = subprocess.Popen(
            [*supervised(), launch.mpiexec(), "-n", "2", sys.executable, "-c", script],
            env={**os.environ, **launch.settings()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert job.stdout and job.stdin and b"begun" in job.stdout.readline()
        write(during)
        job.communicate(b"\n", timeout=60)
        assert {file.read_text() for file in before + during} == {"kept"}
    finally:
        processes.remove(list(map(str, before + during)))


@NEEDS_SHM
def test_ranks_that_are_killed_as_soon_as_mpi_has_begun_leave_no_segment() -> None:
    """A rank that has ended does not tell which segments it had mapped.

    The supervisor is woken when a segment is created. On a busy machine it may run later than the ranks:
    they live until it has looked and waits again.
    """
    script = (
        "import os, psutil, time; from mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "mapped = [line.split()[-1] for line in open('/proc/self/maps') if '/dev/shm/' in line]\n"
        f"supervisor, = [it for it in psutil.Process().parents() if {processes.__file__!r} in it.cmdline()]\n"
        "end = time.monotonic() + 30\n"
        "while supervisor.status() != psutil.STATUS_SLEEPING and time.monotonic() < end: time.sleep(0.001)\n"
        "if MPI.COMM_WORLD.rank == 0: print(*mapped, flush=True)\n"
        "MPI.COMM_WORLD.Barrier(); os.kill(os.getpid(), 9)"
    )
    command = [*supervised(), launch.mpiexec(), "-n", "2", sys.executable, "-c", script]
    environment = {**os.environ, **launch.settings()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() and not any(map(os.path.exists, done.stdout.split())), done


@NEEDS_SHM
def test_a_killed_starter_that_has_loaded_mpi_leaves_no_segment() -> None:
    """As a notebook's kernel that has imported mpi4py after `connect()`."""
    script = (
        "import subprocess, time; from mpiwatch.processes import supervised\n"
        "job = subprocess.Popen([*supervised(), 'sh', '-c', 'echo; read line'], stdin=subprocess.PIPE)\n"
        "input(); from mpi4py import MPI; print('begun', flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert starter.stdin and starter.stdout and starter.stdout.readline() == "\n"  # the command runs
        starter.stdin.write("\n")
        starter.stdin.flush()
        assert starter.stdout.readline() == "begun\n"
        supervisor = next(
            each for each in psutil.Process(starter.pid).children() if processes.__file__ in each.cmdline()
        )
        # A segment made milliseconds ago may be newer than the supervisor's last look, which then follows.
        wait_until(lambda: supervisor.status() == psutil.STATUS_SLEEPING, "the supervisor has looked")
        made = processes.in_use(processes.files_of_mpi(), [starter.pid])
    finally:
        starter.kill()
        starter.communicate()
    assert made or not processes.is_mpich(launch.mpiexec())  # Open MPI makes no segment for one process
    wait_until(lambda: not any(map(os.path.exists, made)), "the segments are gone")


SETTLED = """
import os, signal, sys
from mpiwatch import processes

def in_use(files, pids):
    used = real(files, pids)
    print(len(files), len(used), flush=True)
    return used

real, processes.in_use = processes.in_use, in_use
processes.SETTLED_S, processes.GATHER_S = -1.0, 0.5
command = [sys.executable, "-c", sys.argv[1]]
processes.supervise(command, os.getppid(), 5.0, signal.SIGKILL, lambda pid, stopped: [])
"""


@NEEDS_SHM
def test_files_of_another_job_cost_a_settled_one_few_looks() -> None:
    """As a check's nine files, which the supervisors of all servers see that run as the same user."""
    words = [sys.executable, "-c", SETTLED, "print('runs', flush=True); input()"]
    job = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    paths = [Path(f"{processes.SHM}/mpich_shm_test{os.getpid()}_{number}") for number in range(20)]
    assert job.stdin and job.stdout and job.stdout.readline() == "runs\n"
    looks = list[tuple[int, ...]]()
    try:
        for path in paths:
            os.mknod(path)  # does not open it: this process started the supervisor, so its files count
            time.sleep(0.02)  # a supervisor that looks at each file has the time to do so
        while sum(number for number, _ in looks) < len(paths):  # each file is looked at once
            looks.append(tuple(map(int, job.stdout.readline().split())))
    finally:
        job.communicate("\n", timeout=60)
        processes.remove(list(map(str, paths)))
    assert len(looks) < len(paths) / 2 and not any(used for _, used in looks), looks


@NEEDS_SHM
def test_a_file_that_a_settled_job_makes_as_its_rank_is_killed_is_removed() -> None:
    """Another rank has it mapped: the supervisor asks the others as soon as one has ended."""
    path = Path(f"{processes.SHM}/mpich_shm_test{os.getpid()}")
    rank = (
        "import mmap, os, signal, sys, time\n"
        f"file = open({str(path)!r}, 'wb+'); file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096)\n"
        "file.close()\n"
        "if os.fork() == 0: shared[0] = 1; time.sleep(60)\n"
        "while not shared[0]: time.sleep(0.001)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    try:
        subprocess.run([sys.executable, "-c", SETTLED, rank], timeout=60, check=False)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def is_noticed_at_once(number: int) -> bool:
    """Return whether a settled job's supervisor notices a file as a rank makes it; check that it is removed.

    If another test makes a file just before, the supervisor looks next after ten minutes.
    """
    path = Path(f"{processes.SHM}/mpich_shm_test{os.getpid()}_{number}")
    rank = (
        "import mmap, os, signal\n"
        f"file = open({str(path)!r}, 'wb+'); file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096)\n"
        "input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    words = [sys.executable, "-c", SETTLED.replace("-1.0, 0.5", "-1.0, 600.0"), launcher]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            ready, _, _ = select.select([job.stdout], [], [], 10)
            if not ready or job.stdout is None or job.stdout.readline() != "1 1\n":
                return False
            job.communicate("\n", timeout=60)
            assert not path.exists()
            return True
        finally:
            if job.poll() is None:
                kill_tree(job)
            path.unlink(missing_ok=True)


@NEEDS_SHM
def test_a_file_of_a_rank_that_a_launcher_has_started_is_noticed_at_once() -> None:
    """Its end wakes no supervisor, which is not its parent."""
    assert any(map(is_noticed_at_once, range(5)))


@pytest.mark.skipif(not LINUX, reason="elsewhere another process adopts orphans")
def test_a_second_signal_does_not_interrupt_the_end(tmp_path: Path) -> None:
    """As a terminal's SIGINT and the starter's SIGTERM, which come together."""
    script = "sh -c 'trap \"\" INT TERM; echo $$; exec sleep 60' & sleep 60"
    for number in range(3):
        words = [*supervised(0.5), "sh", "-c", script]
        job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert job.stdout
        grandchild = int(job.stdout.readline())
        os.kill(job.pid, signal.SIGSTOP)
        os.kill(job.pid, signal.SIGINT)
        os.kill(job.pid, signal.SIGTERM)
        os.kill(job.pid, signal.SIGCONT)
        job.communicate(timeout=60)
        is_alive = alive(grandchild)
        if is_alive:
            os.kill(grandchild, signal.SIGKILL)
        assert not is_alive, number


@pytest.mark.skipif(not LINUX, reason="elsewhere no system tells of orphans")
@pytest.mark.parametrize("above", ["of engines", "of JupyterLab"])
def test_a_supervisor_below_has_time_to_remove_a_folder(tmp_path: Path, above: str) -> None:
    """The supervisor of a check's files is below that of the engines, and both are below JupyterLab's."""
    folder = tmp_path / "check"
    folder.mkdir()
    for number in range(3000):  # so that their removal takes longer than a kill
        (folder / str(number)).touch()
    below = supervised(remove=str(folder))[:-1]  # the last word is the pid of its starter
    engine = (
        f"import os, subprocess; subprocess.run([*{below}, str(os.getpid()), 'sh', '-c', 'echo; sleep 60'])"
    )
    of_engines, of_jupyterlab = cluster_supervisor.supervised("engines"), supervised(0.5, supervisors_s=5.0)
    words = [*(of_engines if above == "of engines" else of_jupyterlab), sys.executable, "-c", engine]
    environment = {**os.environ, "IPP_PROFILE_DIR": str(tmp_path), "IPP_CLUSTER_ID": ""}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as job:
        assert job.stdout and job.stdout.readline() == b"\n"
        job.terminate()
    assert not folder.exists()


@pytest.mark.skipif(not LINUX, reason="elsewhere names are not cut")
def test_a_process_whose_name_is_cut_within_a_character_is_seen(tmp_path: Path) -> None:
    program = tmp_path / ("x" * 14 + "ä")
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as child:
        try:
            wait_until(lambda: b"\xc3" in Path(f"/proc/{child.pid}/comm").read_bytes(), "the name is cut")
            assert alive(child.pid) and child.pid in processes.descendants(os.getpid())
        finally:
            child.kill()


@pytest.mark.skipif(not LINUX or os.getuid(), reason="another user's file needs root")
def test_a_folder_of_another_user_with_the_name_of_open_mpis_is_kept(tmp_path: Path) -> None:
    pid = 2**22 + os.getpid()  # no process's
    folder = Path(f"/tmp/ompi.{pid}")
    folder.mkdir()
    try:
        os.chown(folder, 12345, 12345)
        processes.sweep(processes.JobFiles(), pid)
        assert folder.exists()
        os.chown(folder, 0, 0)
        processes.sweep(processes.JobFiles(), pid)
        assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert alive(os.getpid()) and alive(child.pid)
    assert child.stdin
    child.stdin.close()
    wait_until(lambda: not alive(child.pid), "the child has ended and is a zombie")
    os.kill(child.pid, 0)  # the system still knows it
    child.wait()
    assert not alive(child.pid)


def test_the_supervisor_imports_only_the_standard_library_and_mpiwatch() -> None:
    command = [*processes.supervised(), "true"]
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()[1:]]
    others = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"mpiwatch"}


def test_wait_until_read_waits_for_the_reader_of_a_pipe_until_the_deadline() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"an error")
    wait_until_read(writer, deadline_s=0.01)  # nobody reads
    waiting = threading.Thread(target=wait_until_read, args=(writer, 600.0))
    waiting.start()
    assert os.read(reader, 100) == b"an error"
    waiting.join(60)
    assert not waiting.is_alive()
    os.close(reader)
    os.close(writer)
    with open(os.devnull, "w") as no_pipe:
        wait_until_read(no_pipe.fileno(), deadline_s=600.0)


@NEEDS_SHM
def test_descendants_are_found_by_their_tasks_as_in_the_table_of_all_processes() -> None:
    """A thread's child belongs to the thread; a child's child to the child."""
    command = "import subprocess, sys, threading\n"
    command += "start = lambda: subprocess.Popen(['sh', '-c', 'sleep 60 & echo; wait']).wait()\n"
    command += "threading.Thread(target=start, daemon=True).start()\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdin and job.stdout and job.stdout.readline() == b"\n"
        pids = processes.descendants_by_tasks(job.pid)
        assert len(pids) == 2 and pids == processes.descendants(job.pid)
        for pid in pids:
            os.kill(pid, 9)
        job.kill()
