"""Clusters of ipyparallel's: make one, attach to one that runs, start its controller under a supervisor."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel import util
from ipyparallel.cluster.launcher import LocalControllerLauncher
from traitlets import Any as AnyTrait
from traitlets import List, Unicode

# A controller's command line has one of these words: ipyparallel's own program, or the lab's.
CONTROLLERS = {"ipyparallel.controller", "labkit.cluster.adapter.controller"}
CONTROLLER = [sys.executable, "-P", "-m", "labkit.cluster.adapter.controller"]

quiet = logging.getLogger("labkit.cluster")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


class SupervisedControllerLauncher(LocalControllerLauncher):
    """Start a controller that ends with its starter, even if SIGKILL ends that process.

    Not with `ipcluster start --daemonize` and `Cluster(shutdown_atexit=False)`: that controller stays.

    `find_args` and `parent` are not documented.
    """

    supervisor = List(Unicode(), help="First words of a command line: it then ends with this process.").tag(
        config=True
    )
    before_start = AnyTrait(help="Function of the cluster; returns arguments of the controller.").tag(
        config=True
    )

    def start(self) -> Any:
        """Start the controller."""
        before_start: Callable[[ipp.Cluster], list[str]] | None = self.before_start
        if before_start is not None:
            # The launcher of the engines has the same settings, and starts later.
            self.controller_args += before_start(self.parent)
        return super().start()

    def find_args(self) -> list[str]:
        command: list[str] = super().find_args()
        return [*self.supervisor, *command] if self.parent.shutdown_atexit else command


def new_cluster(n: int, cluster_id: str, profile: str) -> ipp.Cluster:
    """Return a cluster that has not been started, and that prints nothing about itself."""
    return ipp.Cluster(n=n, cluster_id=cluster_id, profile=profile, parent=None, log=quiet)


def attach(cluster_file: Path) -> ipp.Cluster:
    """Return the cluster that a cluster file describes, without taking charge of its end.

    The object does not rewrite or remove the file when the cluster ends, as ipyparallel's objects do in each
    process that has one: by then the file may describe a new cluster of the same name.
    """
    cluster = ipp.Cluster.from_file(str(cluster_file), parent=None, log=quiet)
    # A subclass would not do: from_file() makes an object of the class that the file names.
    cluster.update_cluster_file = lambda: None
    return cluster


def environment_of_engines(cluster: ipp.Cluster) -> dict[str, str]:
    """Return the variables that a cluster's engines will get, to be changed in place."""
    environment: dict[str, str] = cluster.config.MPILauncher.environment
    return environment


def profile_dirs() -> list[Path]:
    """Return all of this user's IPython profile folders."""
    # ipyparallel.util has no public function for it; `ipcluster list` uses this one.
    return [Path(folder) for folder in util._all_profile_dirs()]


def process_of(launcher: Any) -> psutil.Process | None:
    """Return the process on this machine that a launcher of a controller or of engines has started."""
    # LocalProcessLauncher, the base of the local and the MPI launchers, sets .process when it starts one or
    # is restored from a cluster file. Launchers for batch systems and ssh have none.
    process = getattr(launcher, "process", None)
    return process if isinstance(process, psutil.Process) else None


def output_of(launcher: Any) -> list[str]:
    """Return the lines that a controller or the starter of engines has written, without empty ones."""
    return [line for line in launcher.get_output().splitlines() if line]


def is_of_a_log(line: str) -> bool:
    """Return whether a line that the starter of engines has written is of the log of an engine or a nanny."""
    return re.match(r"\S+ \S+ \[(IPEngine|Engine|KernelNanny)\b", line) is not None


def starter_of_engines(cluster: ipp.Cluster) -> str:
    """Return the program that starts a cluster's engines, or the name of the class that does."""
    commands = [getattr(engines, "mpi_cmd", None) for engines in cluster.engines.values()]
    return next((command[-1] for command in commands if command), cluster.engine_launcher_class.__name__)
