"""The clusters of this machine: find one that a person has started, start this notebook's own, stop it.

A profile says where the ranks run. The lab installs settings for each, which IPython knows by the same name;
`mpi` is IPython's default profile.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ipyparallel as ipp
import psutil
from IPython.core.profiledir import ProfileDir
from IPython.paths import get_ipython_dir

from labkit.cluster.adapter import files, launchers
from labkit.cluster.engine_lock import EngineLock
from labkit.cluster.errors import ClusterError
from labkit.cluster.places.files import cluster_files
from labkit.cluster.places.place import Engines, place
from mpiwatch.processes import alive, remove

DEFAULT_PROFILE = "mpi"
SETTINGS = "ipcluster_config.py"
INSTALLED = Path(sys.prefix, "share", "labkit", "cluster_profiles")
# A cluster that a notebook starts is named after its kernel: no other notebook uses it. Machines may share a
# home folder, so the machine is part of the name.
OF_A_NOTEBOOK = "notebook-"
OWN = f"{OF_A_NOTEBOOK}{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True)
class KernelsEngines:
    """The engines that a kernel has: those of its own cluster, or of a person's, whose lock it holds."""

    cluster: ipp.Cluster
    n: int
    profile: str
    lock: EngineLock | None  # None for the kernel's own cluster

    def are_wanted(self, n: int, profile: str, machines: Sequence[str]) -> bool:
        """Return whether their controller runs, and they are what connect() asks for."""
        if (self.n, self.profile) != (n, profile) or not are_on(Path(self.cluster.cluster_file), machines):
            return False
        return self.cluster.controller is not None and is_up(self.cluster.controller)

    def __str__(self) -> str:
        if self.lock is None:
            return "this notebook's cluster"
        controller = launchers.process_of(self.cluster.controller)
        since = controller.create_time() if controller is not None else time.time()
        return f"still connected to {described(self.cluster.cluster_id, since)}"


class Obtained(NamedTuple):
    """The engines for connect(), and where they come from.

    `origin`: a phrase for the line that connect() prints. `are_started`: this call has started them.
    `were_here`: this kernel had them before, and their variables are its own.
    """

    cluster: ipp.Cluster
    origin: str
    are_started: bool = False
    were_here: bool = False


kernels_engines: KernelsEngines | None = None


def obtain(n: int, profile: str, hosts: str | None) -> Obtained:
    """Return n engines for this kernel, which from then on holds them.

    It keeps those that it has. Else it takes those of a cluster that a person has started from this
    environment, if no other kernel holds them. Else it starts its own.
    """
    global kernels_engines  # noqa: PLW0603
    ipython_profile = prepare_profile(profile, n)
    machines = place(profile).machines_of(n, hosts)
    if kernels_engines is not None and kernels_engines.are_wanted(n, profile, machines):
        return Obtained(kernels_engines.cluster, str(kernels_engines), were_here=True)
    # First: if a new lock is in the same file as the old one, closing the file would release both.
    leave()
    reasons = []
    for cluster in clusters_of_persons(profile):
        if cluster.n != n or not are_on(cluster.file, machines):
            continue
        lock = EngineLock(cluster_files(str(cluster.file.parents[1]), cluster.id)["lock"])
        reason = cluster.why_not(lock)
        if not reason:
            kernels_engines = KernelsEngines(launchers.attach(cluster.file), n, profile, lock)
            return Obtained(kernels_engines.cluster, f"connected to {cluster}")
        reasons.append(reason)
    return start_own(n, profile, ipython_profile, hosts, reasons)


def start_own(n: int, profile: str, ipython_profile: str, hosts: str | None, reasons: list[str]) -> Obtained:
    """Start this kernel's own cluster. `reasons`: why it cannot have engines of those that run."""
    global kernels_engines  # noqa: PLW0603
    environment = place(profile).before_start(n, hosts)
    cluster = launchers.new_cluster(n, OWN, ipython_profile)
    launchers.environment_of_engines(cluster).update(environment)
    kernels_engines = KernelsEngines(cluster, n, profile, None)
    cluster.start_cluster_sync()
    atexit.register(leave)  # it runs before ipyparallel's own function, which reports what it does
    because = f", because {' and '.join(reasons)}" if reasons else ""
    return Obtained(cluster, f"cluster started{because}; it ends with this notebook", are_started=True)


def client_of(cluster: ipp.Cluster) -> ipp.Client:
    """Return a client once the controller is up; raise ClusterError if the controller has ended."""
    try:
        return cluster.connect_client_sync()
    except RuntimeError:  # the controller ended while ipyparallel waited for it
        last = launchers.output_of(cluster.controller)[-1:]
        leave()
        raise ClusterError(
            f"the cluster's controller has ended{': '.join(['', *last])}. Call connect() again: it takes "
            f"other ports, unless your ipcontroller_config.py sets them."
        ) from None


def leave() -> None:
    """Give up the engines that this kernel has: stop its own cluster, or let others use a person's."""
    global kernels_engines  # noqa: PLW0603
    atexit.unregister(leave)
    if kernels_engines is None:
        return
    cluster, lock = kernels_engines.cluster, kernels_engines.lock
    kernels_engines = None
    if lock is not None:
        lock.release()
        return
    cluster.stop_engines_sync()  # first: a controller waits for engines that nobody stopped
    cluster.stop_controller_sync()
    # A controller that was killed leaves these files, and the next one has the same name.
    paths = cluster_files(cluster.profile_dir, cluster.cluster_id)
    remove([paths["client"], paths["engine"]])


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs, and its pid is not another process's by now; a zombie does not run."""
    return process.is_running() and alive(process.pid)


def is_up(launcher: Any) -> bool:
    """Return whether a controller or a set of engines is up or starting, as far as this machine knows."""
    process = launchers.process_of(launcher)
    # Without a process on this machine, trust what the launcher reports.
    return bool(launcher.running) if process is None else is_running(process)


def are_on(cluster_file: Path, machines: Sequence[str]) -> bool:
    """Return whether ranks are on these machines, as far as that is known; True without machines."""
    return not machines or engines_of(cluster_file).machines() in ([], machines)


def engines_of(cluster_file: Path) -> Engines:
    """Return what the place of a cluster's engines knows of them."""
    profile_dir, cluster_id = str(cluster_file.parents[1]), files.cluster_id_of(str(cluster_file))
    file = Path(cluster_files(profile_dir, cluster_id)["place"])
    return place(profile_of(cluster_file.parents[1])).engines(file)


def described(cluster_id: str, since: float) -> str:
    """Return the words for a running cluster: its id, and since when it runs, in seconds of the clock."""
    start = time.localtime(since)
    is_of_today = start[:3] == time.localtime()[:3]
    when = time.strftime("%H:%M" if is_of_today else "%d %b %H:%M", start)
    return f"the running cluster{' ' if cluster_id else ''}{cluster_id}, up since {when}"


class PersonsCluster(NamedTuple):
    """A running cluster that no notebook has started.

    `n`: the number of its engines, None if it is not known. `python`: the program that runs the controller.
    `since`: when the controller was started, in seconds of the clock.
    """

    file: Path
    n: int | None
    python: str
    since: float

    @property
    def id(self) -> str:
        """Return the id of the cluster; empty for a plain `ipcluster start`."""
        return files.cluster_id_of(str(self.file))

    def __str__(self) -> str:
        return described(self.id, self.since)

    def why_not(self, lock: EngineLock) -> str:
        """Return why this kernel cannot have its engines; if it can, lock them and return an empty text."""
        if not in_one_folder(self.python, sys.executable):
            return f"{self}, belongs to another environment ({os.path.dirname(self.python)})"
        try:
            return "" if lock.acquire() else f"another notebook uses {self}"
        except OSError as error:
            return f"{self}, cannot be locked ({error.strerror}: {lock.path})"


def in_one_folder(program: str, other: str) -> bool:
    """Return whether two programs are in one folder: each environment has its own `bin`."""
    try:
        return os.path.samefile(os.path.dirname(program), os.path.dirname(other))
    except OSError:
        return False


def clusters_of_persons(profile: str) -> Iterator[PersonsCluster]:
    """Yield the running clusters of a profile, without those that notebooks have started."""
    paths = [path for folder in launchers.profile_dirs() for path in folder.glob("security/cluster-*.json")]
    for path in sorted(paths):
        if profile_of(path.parents[1]) != profile:
            continue
        try:
            state = json.loads(path.read_text())
            controller = psutil.Process(files.controller_pid(state) or 0)
            words, since = controller.cmdline(), controller.create_time()
        except (OSError, ValueError, psutil.Error):  # just removed, not written completely yet, or ended
            continue
        cluster = PersonsCluster(path, files.size_of(state), words[0] if words else "", since)
        is_controller = not launchers.CONTROLLERS.isdisjoint(words)  # its pid may be another process's by now
        if is_controller and not cluster.id.startswith(OF_A_NOTEBOOK):
            yield cluster


def profiles() -> list[str]:
    """Return the names of the profiles, the default one first."""
    return [DEFAULT_PROFILE, *sorted(path.parent.name for path in INSTALLED.glob(f"*/{SETTINGS}"))]


def profile_of(folder: Path) -> str:
    """Return the profile of a cluster by its profile folder; the default for those of the user's own."""
    name = folder.name.removeprefix("profile_")
    return name if name in profiles() else DEFAULT_PROFILE


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
    place(profile).check(n)
    if profile == DEFAULT_PROFILE:
        return "default"
    install_settings(ProfileDir.create_profile_dir_by_name(get_ipython_dir(), profile))
    return profile


def install_settings(folder: ProfileDir | None) -> None:
    """Copy a profile's settings to its folder, if the lab has such a profile."""
    settings = INSTALLED / Path(folder.location if folder else "").name.removeprefix("profile_") / SETTINGS
    if folder and settings.exists():
        Path(folder.location, SETTINGS).write_text(settings.read_text())
