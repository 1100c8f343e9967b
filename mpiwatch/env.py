"""What every rank needs, whichever MPI library runs it: its environment variables and its mpiexec."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping

from mpiwatch.processes import LINUX

# One BLAS thread per rank: ranks that each start a thread per core slow each other down.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

OVERSUBSCRIBE = "PRTE_MCA_rmaps_default_mapping_policy"
OPEN_MPI = {
    # A waiting rank yields its core to a rank that computes: a lab has more ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Shared-memory windows need no network; this component prints a complaint where it finds none.
    "OMPI_MCA_osc": "^ucx",
    # Allow more ranks than cores.
    OVERSUBSCRIBE: ":oversubscribe",
    # Open MPI refuses to start as root (in a container, for example) unless both variables are set.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

# Ranks of one machine need no port: they reach each other through its memory. UCX and libfabric are MPICH's
# transports; libfabric opens a port even so, here one that other machines cannot reach.
ONE_MACHINE = {"UCX_TLS": "sm,self", "OMPI_MCA_btl": "sm,self", "FI_TCP_IFACE": "lo"}
# Variables that a user sets in order to choose the transport, by their first letters.
TRANSPORT = "UCX_", "FI_", "OMPI_MCA_btl", "OMPI_MCA_pml"
# Variables of batch systems and files of hosts, which make mpiexec start ranks on several machines.
SEVERAL_MACHINES = {
    *("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_HOSTS", "PE_HOSTFILE", "LABKIT_HOSTS_TOKEN"),
    *("HYDRA_HOST_FILE", "PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile"),
}


def one_machine(environment: Mapping[str, str] = os.environ, *, spawns: bool = False) -> dict[str, str]:
    """Return environment variables that close the ports of ranks that mpiexec starts on this machine.

    Return nothing if `environment` shows that the ranks may run on several machines, or that the user has
    chosen a transport. With `spawns`, let programs start further processes (`Spawn`): Open MPI needs ports
    for that.
    """
    if LINUX and SEVERAL_MACHINES.isdisjoint(environment):
        own = {name for name in environment if name.startswith(TRANSPORT)}
        return {
            name: value
            for name, value in ONE_MACHINE.items()
            if not own and not (spawns and name.startswith("OMPI"))
        }
    return {}


def settings() -> dict[str, str]:
    """Return a rank's environment variables, with the user's own value where a variable is set.

    BLAS and MPI read them once, while they load. Variables of an MPI library that is not in use do no harm.
    """
    return {name: os.environ.get(name, value) for name, value in {**ONE_THREAD, **OPEN_MPI}.items()}


def apply() -> None:
    """Set a rank's variables in this process and its future children. Call it before NumPy loads."""
    os.environ.update(settings())


def mpiexec() -> str:
    """Return the path of this environment's `mpiexec`, else of the one on PATH, else the bare name."""
    own = os.path.join(sys.prefix, "bin", "mpiexec")
    return own if os.path.exists(own) else shutil.which("mpiexec") or "mpiexec"


def is_mpich(mpiexec: str) -> bool:
    """Return whether an `mpiexec` is Hydra, the process manager of MPICH."""
    path = os.path.realpath(mpiexec)
    return "hydra" in path or os.path.exists(os.path.join(os.path.dirname(path), "hydra_pmi_proxy"))


def end_signal(mpiexec: str) -> signal.Signals:
    """Return the signal that makes an `mpiexec` end its ranks even if they are in a deadlock.

    MPICH's leaves such ranks running after SIGTERM, Open MPI's after SIGKILL.
    """
    return signal.SIGKILL if is_mpich(mpiexec) else signal.SIGTERM
