"""What the system does not give enough of is named in one sentence: open files, processes, shared memory."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mpiwatch import launch
from mpiwatch.processes import LINUX, is_mpich
from tests.cluster_fixtures import DEADLINE_S, Kernel, World

pytestmark = pytest.mark.clusters

MAY_MOUNT = (
    LINUX and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
)
NEEDS_ROOT = pytest.mark.skipif(not MAY_MOUNT, reason="a private /dev/shm needs Linux and root")
NEEDS_MPICH = pytest.mark.skipif(not is_mpich(launch.mpiexec()), reason="Open MPI does without /dev/shm")
NEEDS_SHM = pytest.mark.skipif(not LINUX, reason="elsewhere, there is no /dev/shm")
LABKIT = str(Path(sys.prefix, "bin", "labkit"))
CONNECT = "from labkit.cluster import connect\nrc = connect({})"
# Each rank sends 16 MiB to each other one.
PROGRAM = """\
from labkit.cluster import connect
rc = connect(4)
def exchange():
    x, y = np.ones(1 << 21), np.empty(1 << 21)
    requests = [comm.Isend(x, other) for other in range(size)]
    for other in range(size):
        comm.Recv(y, other)
    for request in requests:
        request.Wait()
    comm.Allreduce(x, y)
    return float(y[-1])
print(rc[:].apply_sync(exchange))
"""


def in_private_shm(world: World, options: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees a /dev/shm of its own."""
    script = 'mount -t tmpfs -o "$0" tmpfs /dev/shm && exec "$@"'
    line = ["unshare", "-m", "sh", "-c", script, options, *command]
    done = subprocess.run(
        line, env=world.env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    world.wait_until_empty()
    return done


@NEEDS_ROOT
def test_64_mib_of_shared_memory_are_enough_for_four_ranks_as_in_docker(world: World) -> None:
    done = in_private_shm(world, "size=64m", sys.executable, "-c", PROGRAM)
    assert "4 ranks, one MPI world" in done.stdout and "[4.0, 4.0, 4.0, 4.0]" in done.stdout, done


@NEEDS_ROOT
@NEEDS_MPICH
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("size=4m", r"4\.0 of 4\.0 MiB are free in /dev/shm, and 4 ranks need 4\.4 MiB to start"),
        ("ro", r"/dev/shm cannot be written, and ranks share memory there"),
    ],
)
def test_too_little_shared_memory_is_named(world: World, options: str, what: str, tmp_path: Path) -> None:
    done = in_private_shm(world, options, sys.executable, "-c", PROGRAM)
    assert re.search(rf"ClusterError: 4 ranks cannot start: {what}\. To mend it: .*size=1g", done.stderr), (
        done
    )
    program = tmp_path / "program.py"
    program.write_text("from mpi4py import MPI")
    done = in_private_shm(world, options, LABKIT, "run", "-n", "4", str(program))
    assert done.returncode == 1 and re.fullmatch(rf"mpiwatch: {what}\.\n", done.stderr), done


@NEEDS_SHM
def test_a_bus_error_is_explained(kernel: Kernel) -> None:
    """That is how a rank dies if /dev/shm is full when its memory there grows."""
    kernel.run(CONNECT.format(2))
    said = kernel.run(
        "%%px\nimport os, subprocess\n"
        "if rank == 1:\n    subprocess.run(['kill', '-BUS', str(os.getpid())])\ncomm.Barrier()"
    )
    explained = (
        r"RankDied: rank 1 was killed by signal 7 \(SIGBUS\), .*\. This signal comes when /dev/shm is full"
    )
    assert re.search(explained, said), said


def test_a_low_limit_of_open_files_is_enough_for_some_ranks_and_named_for_more(kernel: Kernel) -> None:
    """The limit is 256 on macOS."""
    kernel.run("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))")
    assert "4 ranks, one MPI world" in kernel.run(CONNECT.format(4))
    said = kernel.run(CONNECT.format(64))
    what = "a process may have 256 files open here, and a notebook with 64 ranks needs 681"
    assert f"ClusterError: 64 ranks cannot start: {what}. `ulimit -n 1362`" in said, said
    assert said.count("\n") == 1, said


AS_ANOTHER_USER = """\
folder=$1 hidden=$2 copy=$3
if [ "$hidden" ]; then
    mount --bind "$folder" "$copy" && mount -t tmpfs -o mode=755 tmpfs "$hidden"
    mkdir -p "$folder" && mount --bind "$copy" "$folder"
fi
shift 3
exec setpriv --reuid 12345 --regid 12345 --clear-groups prlimit --nproc=60:60 "$@"
"""


@NEEDS_ROOT
def test_a_low_limit_of_processes_is_named(world: World, tmp_path: Path) -> None:
    """Linux does not hold root to it: another user runs the program, who must see this Python."""
    parents = Path(sys.executable).resolve().parents
    hidden = [path for path in parents if not path.stat().st_mode & stat.S_IXOTH]
    folder = parents[len(parents) - 1 - len(hidden[0].parts)] if hidden else Path()
    (tmp_path / "python").mkdir()
    places = [str(folder), *([str(hidden[0])] if hidden else [""]), str(tmp_path / "python")]
    command = [sys.executable, "-c", CONNECT.format(4)]
    world.folder.mkdir()
    os.chown(world.folder, 12345, 12345)
    for path in (world.folder, *world.folder.parents[:-2]):
        path.chmod(path.stat().st_mode | stat.S_IXOTH)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", AS_ANOTHER_USER, "sh", *places, *command],
        env={**world.env, "HOME": str(world.folder)}, cwd="/", capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    what = r"you may have 60 processes and threads here, \d+ are there, and 4 ranks would add 71"
    assert re.search(rf"ClusterError: 4 ranks cannot start: {what}\. End programs", done.stderr), done
