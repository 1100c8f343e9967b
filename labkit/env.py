"""What every rank needs, whichever MPI library carries it: its environment variables and its mpiexec."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# One BLAS thread per rank: ranks that each take every core slow each other down.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

OPEN_MPI = {
    # A waiting rank gives its core to one that computes: a lab has more ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Shared-memory windows need no network; looking for one, this component complains where there is none.
    "OMPI_MCA_osc": "^ucx",
    # More ranks than cores are welcome.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # Open MPI refuses to start as root (in a container, say) unless told twice.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def settings() -> dict[str, str]:
    """Return a rank's environment variables: the user's own value where there is one.

    BLAS and MPI read them once, while they load. Those of an MPI that is not in use do no harm.
    """
    return {name: os.environ.get(name, value) for name, value in {**ONE_THREAD, **OPEN_MPI}.items()}


def apply() -> None:
    """Set them in this process, for itself and what it starts; call it before importing NumPy or mpi4py."""
    os.environ.update(settings())


def mpiexec() -> str:
    """Return the path of this environment's `mpiexec`, else of the one on PATH, else the bare word."""
    own = Path(sys.prefix, "bin", "mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec") or "mpiexec"
