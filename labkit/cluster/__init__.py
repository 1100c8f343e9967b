"""The notebook's side of the lab: connect to engines or start them, run cells, recover from failures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.cluster.connection import connect
    from labkit.cluster.magics import last_hang

__all__ = ["connect", "last_hang"]

# The environment variables that `labkit lab` and connect() take the number of ranks and the profile from,
# before anything else.
RANKS, PROFILE = "LABKIT_RANKS", "LABKIT_PROFILE"


def __getattr__(name: str) -> Any:
    """Import the functions when they are used: engines and new kernels do not need ipyparallel's client."""
    module = {"connect": "connection", "last_hang": "magics"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"labkit.cluster.{module}"), name)


def load_ipython_extension(shell: Any) -> None:
    """Prepare a kernel that starts.

    cluster_profiles/mpi/ipython_kernel_config.py loads this package into each kernel of the environment.
    """
