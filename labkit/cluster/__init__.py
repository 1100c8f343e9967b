"""The notebook's side of the lab: connect to engines or start them, run cells, recover from failures."""

from __future__ import annotations

import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # supervisors do not wait for the import
    from typing import Any

    from labkit.cluster.connection import connect
    from labkit.cluster.magics import last_hang
    from labkit.cluster.replay import last_replay

__all__ = ["connect", "last_hang", "last_replay"]

# The environment variables that `labkit lab` and connect() take the number of ranks and the profile from,
# before anything else.
RANKS, PROFILE = "LABKIT_RANKS", "LABKIT_PROFILE"


def __getattr__(name: str) -> Any:
    """Import the functions when they are used: engines and new kernels do not need ipyparallel's client.

    They and what they need are imported from the environment alone: a file psutil.py beside the notebook must
    not take the place of a package.
    """
    module = {"connect": "connection", "last_hang": "magics", "last_replay": "replay"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    places = sys.path.copy()
    sys.path[:] = [place for place in places if place not in ("", os.getcwd())]
    try:
        return getattr(import_module(f"labkit.cluster.{module}"), name)
    finally:
        sys.path[:] = places


def load_ipython_extension(shell: Any) -> None:
    """Prepare a kernel that starts.

    cluster_profiles/mpi/ipython_kernel_config.py loads this package into each kernel of the environment.
    """
    from labkit.cluster import meant_errors  # noqa: PLC0415  (kernels alone need these)
    from labkit.cluster.completion.in_kernel import answer_in_kernel  # noqa: PLC0415
    from labkit.cluster.text_bars import draw_bars_as_text, has_widgets  # noqa: PLC0415

    # One click on JupyterLab's debugger would let debugpy replace the functions that start processes, for
    # good: each Python program that this kernel starts would wait for a debugger. ipykernel has imported
    # debugpy by now, where it is installed.
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None:
        debugpy.configure(subProcess=False)
    answer_in_kernel(shell)
    meant_errors.register(shell)
    if not has_widgets():
        draw_bars_as_text()
