"""Find and remove what a killed cluster or MPI job leaves behind. Standard library only.

Ranks that are killed cannot remove their shared-memory segments, and a killed controller cannot remove the
files that describe its cluster. The supervisor removes both; `labkit doctor` reports what is still there.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

if __name__ == "__main__":  # run by path with -I -S, Python does not know where labkit is
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from labkit.processes import LINUX, alive

SHM = "/dev/shm"
# The names that MPICH, UCX, libfabric and Open MPI give to their segments.
SEGMENTS = (
    "mpich*",
    "ucx*",
    "sm_segment*",
    "vader_segment*",
    "osc_sm*",
    "osc_rdma*",
    "ofi*",
    "fi_shm*",
    "psm*",
)
FLIGHT_RECORDER = "labkit-flight-recorder-"  # followed by its creator's pid (labkit.watch.flight_recorder)


def cluster_files(profile_dir: str, cluster_id: str) -> dict[str, str]:
    """Return the paths of the files that describe an ipyparallel cluster and its ranks.

    ipyparallel writes `cluster`, `client`, `engine` and `engines`; the lab writes `owner` (the notebook that
    uses the engines), `exits` (how each rank ended), `reports` (hang reports, one line of JSON each) and
    `job` (the state of the engines' SLURM job).
    """
    security, log = f"{profile_dir}/security", f"{profile_dir}/log"
    controller = f"{security}/ipcontroller-{cluster_id}" if cluster_id else f"{security}/ipcontroller"
    return {
        "cluster": f"{security}/cluster-{cluster_id}.json",
        "client": f"{controller}-client.json",
        "engine": f"{controller}-engine.json",
        "engines": f"{log}/engines{cluster_id}.json",
        "owner": f"{log}/owner-{cluster_id}",
        "exits": f"{log}/exits-{cluster_id}",
        "reports": f"{log}/reports-{cluster_id}",
        "job": f"{log}/job-{cluster_id}",
    }


def files_of_this_cluster() -> dict[str, str]:
    """Return the cluster_files of the cluster that this process belongs to."""
    # ipyparallel sets both variables for the controllers and engines that it starts.
    return cluster_files(os.environ.get("IPP_PROFILE_DIR", ""), os.environ.get("IPP_CLUSTER_ID", ""))


def engine_logs_of_this_cluster() -> list[str]:
    """Return the log files of engines of the cluster that this process belongs to, if it has an id.

    A kernel that was killed while it stopped its engines has left their log, and the controller ends last.
    """
    folder, id_ = os.environ.get("IPP_PROFILE_DIR", ""), os.environ.get("IPP_CLUSTER_ID", "")
    return glob.glob(f"{glob.escape(folder)}/log/ipengine-{id_}-*.log") if id_ else []


def remove(paths: list[str]) -> None:
    """Remove files that may be gone already."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_own(path: str) -> bool:
    """Return whether a file exists and belongs to this user."""
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def files_in_use(folder: str = SHM) -> set[str]:
    """Return the files below a folder that a process of this user has mapped, and all files it has open."""
    used = set()
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError), open(f"{process}/maps") as maps:
            used |= {line.split(maxsplit=5)[5].strip() for line in maps if f"{folder}/" in line}
        with contextlib.suppress(OSError):
            for link in os.scandir(f"{process}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(link.path))
    return used


def forgotten_segments(folder: str = SHM) -> list[str]:
    """Return this user's MPI shared-memory segments that no process uses."""
    found = [path for pattern in SEGMENTS for path in glob.glob(f"{folder}/{pattern}")]
    # Read after the list is made: a segment created since then is open in the process that created it.
    used = files_in_use(folder) if found else set()
    return [path for path in found if path not in used and is_own(path)]


def forgotten_flight_recorders() -> list[str]:
    """Return this user's flight recorders whose creator has ended."""
    found = [
        path for folder in (SHM, tempfile.gettempdir()) for path in glob.glob(f"{folder}/{FLIGHT_RECORDER}*")
    ]
    pids = {path: os.path.basename(path).removeprefix(FLIGHT_RECORDER).split("-")[0] for path in found}
    return [path for path, pid in pids.items() if pid.isdigit() and not alive(int(pid)) and is_own(path)]


def forgotten_hydra_files() -> list[str]:
    """Return this user's temporary files of MPICH's mpiexec; none while an MPICH job of this user runs.

    The files do not say which job they belong to.
    """
    if not LINUX:
        return []
    for path in glob.glob("/proc/[0-9]*/comm"):
        with contextlib.suppress(OSError), open(path) as file:
            if file.read() == "hydra_pmi_proxy\n" and is_own(path) and alive(int(path.split("/")[2])):
                return []
    return [path for path in glob.glob("/tmp/hydra_hwloc_xmlfile_*") if is_own(path)]


def forgotten() -> list[str]:
    """Return what this user's killed jobs have left behind in the folders that all MPI jobs share."""
    return forgotten_segments() + forgotten_flight_recorders() + forgotten_hydra_files()


def sweep(mpiexec: int) -> None:
    """Remove what killed ranks left behind; `mpiexec` is the pid that their mpiexec had."""
    remove(forgotten())
    for folder in {"/tmp", os.environ.get("TMPDIR", "/tmp")}:
        shutil.rmtree(f"{folder}/ompi.{mpiexec}", ignore_errors=True)  # Open MPI's session folder


def sweep_after_this_job() -> None:
    """Start a process that sweeps as soon as this rank and its launcher have ended, however they end.

    It is for ranks that no supervisor watches, such as those of `mpiexec -n 4 labkit train`. It is in a
    session of its own, so that a launcher that kills its ranks does not kill it, and ends soon after them.
    """
    subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), str(os.getppid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    job = [int(pid) for pid in sys.argv[1:]]
    while any(map(alive, job)):
        time.sleep(0.2)
    sweep(job[-1])
