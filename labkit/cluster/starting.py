"""The cluster that a notebook uses: one that runs, or a new one that ends with the notebook's kernel."""

from __future__ import annotations

import atexit
from pathlib import Path

import ipyparallel as ipp

from labkit.cluster import discovery, profiles
from labkit.cluster.errors import ClusterError
from labkit.leftovers import cluster_files, remove

own_cluster: ipp.Cluster | None = None  # the cluster that this kernel has started


def find_or_start(n: int, profile: str, only_own: bool) -> tuple[ipp.Cluster, str, bool]:
    """Return a cluster for n engines, a phrase that says where it comes from, and whether it is new."""
    global own_cluster  # noqa: PLW0603
    ipython_profile = profiles.prepare(profile, n)
    found = list(discovery.running(profile))
    if own_cluster is not None and (Path(own_cluster.cluster_file), n) in found:
        return own_cluster, "this notebook's cluster", False
    path = None if only_own else discovery.preferred(path for path, size in found if size == n)
    if path is not None:
        return discovery.attach(path), f"cluster found running: {path.stem.removesuffix('-')}", False
    stop_own_cluster()  # if there is one, it has another size, or its controller has died
    own_cluster = ipp.Cluster(
        n=n, cluster_id=discovery.OWN, profile=ipython_profile, parent=None, log=discovery.quiet
    )
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
