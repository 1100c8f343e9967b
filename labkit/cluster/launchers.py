"""How controllers and engines are started, so that they end with whoever started them."""

from __future__ import annotations

from ipyparallel.cluster.launcher import LocalControllerLauncher

from labkit.supervisor import supervised

__all__ = ["SupervisedControllerLauncher", "supervised"]


class SupervisedControllerLauncher(LocalControllerLauncher):
    """A controller that ends with the process that started it, SIGKILL included.

    `ipcluster start --daemonize` and `Cluster(shutdown_atexit=False)` ask for the contrary and get it.
    """

    def find_args(self) -> list[str]:
        command = super().find_args()
        return [*supervised("controller"), *command] if self.parent.shutdown_atexit else command
