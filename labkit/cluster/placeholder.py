"""What `%%px` is without engines: one sentence that says what to do.

An IPython extension, which cluster_profiles/mpi/ipython_kernel_config.py loads into each kernel of the
environment. It imports nothing of ipyparallel: a kernel must not start later for it.
"""

from __future__ import annotations

from typing import Any

from labkit.cluster.errors import ClusterError

BEFORE = "there are no engines yet: run the notebook's cell with `connect()` first."
FAILED = (
    "this notebook has no engines, because `connect()` failed. Do what its message says, then run its cell "
    "again."
)


def load_ipython_extension(shell: Any) -> None:
    """Define the magics of a kernel that starts."""
    install(shell, BEFORE)


def install(shell: Any, message: str) -> None:
    """Let `%%px` and its relatives raise ClusterError with this message, until `connect()` replaces them."""

    def px(line: str, cell: str | None = None) -> None:
        """Run a cell on the ranks, after `connect()`."""
        raise ClusterError(message)

    shell.register_magic_function(px, "line_cell", "px")
    for name in ("autopx", "pxconfig", "pxresult"):
        shell.register_magic_function(px, "line", name)
