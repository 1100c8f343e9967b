"""What started this process, as the launcher's environment variables tell it. Standard library only.

A launcher of one MPI library that starts programs of another, and `srun` with the wrong `--mpi`, make n
worlds of one rank, each of which exits with status 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

COUNTS = {  # the variables that hold the number of ranks, and who sets them; an inner launcher comes first
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "PMI_SIZE": "MPICH's mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "SLURM's batch script",
}
# How each MPI library's ranks are started under SLURM without its own mpiexec.
SRUN = {"MPICH": "srun --mpi=pmi2", "Open MPI": "srun --mpi=pmix"}


def node_name(host: str) -> str:
    """Return SLURM's name for the node that this rank runs on; without SLURM, the name `host`."""
    return os.environ.get("SLURMD_NODENAME") or host


def started(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return what started this process, and how many ranks it started: `("", 1)` for nothing."""
    count, launcher = next(
        ((environment[name], launcher) for name, launcher in COUNTS.items() if name in environment), ("1", "")
    )
    if launcher == "srun" or (launcher == COUNTS["PMI_SIZE"] and "SLURM_MPI_TYPE" in environment):
        launcher = f"srun --mpi={environment.get('SLURM_MPI_TYPE') or 'none'}"
    return launcher, int(count)


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is the launcher's first rank, whatever the MPI library thinks."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((environment[name] for name in names if name in environment), "0") == "0"


def world_of_one(size: int, library: str, mpiexec: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return why this rank must not go on, if its launcher started several and its world has only this one.

    Empty if all is well. `size` is that of MPI.COMM_WORLD, `library` the name in MPI.get_vendor(), and
    `mpiexec` the path of the library's own.
    """
    launcher, count = started(environment)
    if size != 1 or count == 1:
        return ""
    others = f"`{srun}` or " if (srun := SRUN.get(library)) else ""
    inside = " inside the allocation" if "SLURM_JOB_ID" in environment else ""
    if launcher == COUNTS["SLURM_NTASKS"]:
        found = f"this is one process in a SLURM job of {count} tasks, and nothing has started the others"
    else:
        found = (
            f"`{launcher}` has started {count} processes, but each is an MPI world of one rank: "
            f"{library} does not understand this launcher"
        )
    return f"{found}. Start the ranks with {others}`{mpiexec} -n {count}`{inside}."
