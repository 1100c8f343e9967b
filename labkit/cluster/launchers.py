"""The launcher of controllers that end together with the process that started them."""

from __future__ import annotations

from ipyparallel.cluster.launcher import LocalControllerLauncher

from labkit.supervisor import supervised


class SupervisedControllerLauncher(LocalControllerLauncher):
    """Start a controller that ends with its starter, even if SIGKILL ends that process.

    Not with `ipcluster start --daemonize` and `Cluster(shutdown_atexit=False)`: that controller stays.
    """

    def find_args(self) -> list[str]:
        command = super().find_args()
        return [*supervised("controller"), *command] if self.parent.shutdown_atexit else command
