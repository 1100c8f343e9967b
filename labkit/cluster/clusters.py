"""The clusters of this machine: find those that run, start and stop this notebook's own, in a chosen profile.

A profile says where the ranks run. The lab installs settings for each, which IPython knows by the same name;
`mpi` is IPython's default profile.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import LocalControllerLauncher
from IPython.core.profiledir import ProfileDir
from IPython.paths import get_ipython_dir

from labkit.cluster import ipyparallel_private as private
from labkit.cluster import slurm, ssh
from labkit.cluster.errors import ClusterError
from labkit.cluster.ownership import Claim
from labkit.cluster.supervisor import cluster_files, supervised
from mpiwatch.processes import alive, remove

DEFAULT_PROFILE = "mpi"
SETTINGS = "ipcluster_config.py"
INSTALLED = Path(sys.prefix, "share", "labkit", "cluster_profiles")
# A cluster that a notebook starts is named after its kernel: no other notebook uses it. Machines may share a
# home folder, so the machine is part of the name.
THIS_PROCESS = f"{socket.gethostname()}-{os.getpid()}"
OWN = f"notebook-{THIS_PROCESS}"
# `labkit lab` sets this environment variable to the id of its cluster, for the kernels of its JupyterLab.
CHOSEN = "LABKIT_CLUSTER"
LAB = "lab-"  # followed by THIS_PROCESS of `labkit lab`
CONTROLLERS = {"ipyparallel.controller", "labkit.cluster.controller"}

quiet = logging.getLogger("labkit.cluster")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False

own_cluster: ipp.Cluster | None = None  # the cluster that this kernel has started


class SupervisedControllerLauncher(LocalControllerLauncher):
    """Start a controller that ends with its starter, even if SIGKILL ends that process.

    Not with `ipcluster start --daemonize` and `Cluster(shutdown_atexit=False)`: that controller stays.
    """

    def start(self) -> Any:
        """Start the controller; for the profile `ssh`, look at its machines first."""
        if Path(self.profile_dir).name == "profile_ssh":
            # The launcher of the engines has the same settings, and starts later.
            self.controller_args += ssh.before_controller(self.parent)
        return super().start()

    def find_args(self) -> list[str]:
        command = super().find_args()
        return [*supervised("controller"), *command] if self.parent.shutdown_atexit else command


def find_or_start(n: int, profile: str, only_own: bool, hosts: str | None) -> tuple[ipp.Cluster, str, bool]:
    """Return a cluster for n engines, a phrase that says where it comes from, and whether it is new.

    Of the clusters that run, one whose engines this notebook uses already comes first, then one with free
    engines, then one that another notebook holds without running a cell on it, then a busy one.
    """
    global own_cluster  # noqa: PLW0603
    ipython_profile = prepare_profile(profile, n)
    found = [path for path, size in running(profile) if size == n]
    if profile == "ssh" and hosts:  # not a cluster on other machines
        wanted = ssh.hosts_of_ranks(ssh.host_file(hosts), n)
        found = [path for path in found if ssh.hosts_of(path) in ([], wanted)]
    if own_cluster is not None and Path(own_cluster.cluster_file) in found:
        return own_cluster, "this notebook's cluster", False
    if found and not only_own:
        path = min(found, key=lambda path: Claim(str(path.parent.parent), id_of(path)).preference())
        return attach(path), f"connected to the running cluster {path.stem.removesuffix('-')}", False
    stop_own_cluster()  # if there is one, it has another size, or its controller has died
    own_cluster = ipp.Cluster(n=n, cluster_id=OWN, profile=ipython_profile, parent=None, log=quiet)
    if hosts:
        own_cluster.config.MPILauncher.environment[ssh.FILE] = str(ssh.host_file(hosts))
    own_cluster.start_cluster_sync()
    atexit.register(stop_own_cluster)
    return own_cluster, "cluster started; it ends with this notebook", True


def client_of(cluster: ipp.Cluster) -> ipp.Client:
    """Return a client once the controller is up; raise ClusterError if the controller has ended."""
    try:
        return cluster.connect_client_sync()
    except RuntimeError:  # the controller ended while ipyparallel waited for it
        last = [line for line in cluster.controller.get_output().splitlines() if line][-1:]
        if cluster is own_cluster:
            stop_own_cluster()
        raise ClusterError(
            f"the cluster's controller has ended{': '.join(['', *last])}. Call connect() again: it takes "
            f"other ports, unless your ipcontroller_config.py sets them."
        ) from None


def stop_own_cluster() -> None:
    """Stop this kernel's cluster, engines first: a controller waits for engines that nobody stopped."""
    global own_cluster  # noqa: PLW0603
    atexit.unregister(stop_own_cluster)
    if own_cluster is not None:
        own_cluster.stop_engines_sync()
        own_cluster.stop_controller_sync()
        # A controller that was killed leaves these files, and the next one has the same name.
        files = cluster_files(own_cluster.profile_dir, own_cluster.cluster_id)
        remove([files["client"], files["engine"]])
        own_cluster = None


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs, and its pid is not another process's by now; a zombie does not run."""
    return process.is_running() and alive(process.pid)


def running(profile: str) -> Iterator[tuple[Path, int | None]]:
    """Yield the cluster file and the number of engines of each running cluster that this notebook may use."""
    paths = [path for folder in private.profile_dirs() for path in folder.glob("security/cluster-*.json")]
    for path in sorted(paths, key=lambda path: (id_of(path) != os.environ.get(CHOSEN), path)):
        name = path.parent.parent.name.removeprefix("profile_")
        if (name if name in profiles() else DEFAULT_PROFILE) != profile or belongs_to_another(id_of(path)):
            continue
        try:
            state = json.loads(path.read_text())
            controller = psutil.Process(private.controller_pid(state) or 0)
            is_controller = not CONTROLLERS.isdisjoint(
                controller.cmdline()
            )  # its pid may be another's by now
        except (OSError, ValueError, psutil.Error):  # just removed, not written completely yet, or ended
            continue
        if is_controller:
            yield path, private.size_of(state)


def belongs_to_another(cluster_id: str) -> bool:
    """Return whether a cluster ends with another notebook, or with a JupyterLab that is not this kernel's."""
    chosen = os.environ.get(CHOSEN, cluster_id)  # outside of `labkit lab`, as in VS Code, any will do
    return (cluster_id.startswith("notebook-") and cluster_id != OWN) or (
        cluster_id.startswith(LAB) and cluster_id != chosen
    )


def id_of(path: Path) -> str:
    """Return the id of the cluster that a cluster file describes; empty for a plain `ipcluster start`."""
    return path.stem.removeprefix("cluster-")


def attach(path: Path) -> ipp.Cluster:
    """Return the cluster that a cluster file describes, without taking charge of its end.

    The object does not rewrite or remove the file when the cluster ends, as ipyparallel's objects do in each
    process that has one: by then the file may describe a new cluster of the same name.
    """
    cluster = ipp.Cluster.from_file(str(path), parent=None, log=quiet)
    # A subclass would not do: from_file() makes an object of the class that the file names.
    cluster.update_cluster_file = lambda: None
    return cluster


def profiles() -> list[str]:
    """Return the names of the profiles, the default one first."""
    return [DEFAULT_PROFILE, *sorted(path.parent.name for path in INSTALLED.glob(f"*/{SETTINGS}"))]


def check_profile(profile: str) -> None:
    if profile not in profiles():
        raise ClusterError(
            f"there is no profile {profile!r}; the profiles are {', '.join(profiles())}. "
            f"If one is missing, install the lab again: `make env`, or pip for a wheel."
        )


def prepare_profile(profile: str, n: int) -> str:
    """Check that n engines can run in a profile, install its settings, and return IPython's name for it.

    Raise ClusterError or labkit.hosts.HostsError if the profile does not exist or is not ready for n engines.
    """
    check_profile(profile)
    if profile == DEFAULT_PROFILE:
        return "default"
    if profile == "hosts":
        from labkit import hosts  # noqa: PLC0415  (`ipcluster` loads this module, and should not wait for it)

        hosts.running(n)
    if profile == "slurm":
        slurm.load()  # report a wrong setting here rather than as a controller that does not start
        if not shutil.which("sbatch"):
            raise ClusterError(
                "the profile `slurm` needs SLURM's commands, and this machine has no `sbatch`. Run the "
                "notebook on the cluster's login node, or leave the profile out."
            )
    install_settings(ProfileDir.create_profile_dir_by_name(get_ipython_dir(), profile))
    return profile


def install_settings(folder: ProfileDir | None) -> None:
    """Copy a profile's settings to its folder, if the lab has such a profile."""
    settings = INSTALLED / Path(folder.location if folder else "").name.removeprefix("profile_") / SETTINGS
    if folder and settings.exists():
        Path(folder.location, SETTINGS).write_text(settings.read_text())
