"""How controllers and engines are started, so that they end with whoever started them."""

from __future__ import annotations

import os
import sys

from ipyparallel.cluster.launcher import LocalControllerLauncher

from labkit.cluster import lifeline


def tied(role: str) -> list[str]:
    """Return the start of a command line, by which the rest ends with this process (see lifeline.py)."""
    # -I -S: neither the user's environment nor site-packages; a watcher must start at once.
    return [sys.executable, "-I", "-S", os.path.abspath(lifeline.__file__), role, str(os.getpid())]


class TiedControllerLauncher(LocalControllerLauncher):
    """A controller that ends with the process that started it, SIGKILL included.

    `ipcluster start --daemonize` and `Cluster(shutdown_atexit=False)` ask for the contrary and get it.
    """

    def find_args(self) -> list[str]:
        command = super().find_args()
        return [*tied("controller"), *command] if self.parent.shutdown_atexit else command
