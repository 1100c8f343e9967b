"""Where engines run: the IPython profiles that the lab brings along, beside the plain one (`mpi`)."""

from __future__ import annotations

import sys
from pathlib import Path

from IPython.paths import get_ipython_dir

from labkit import hosts
from labkit.cluster.world import ClusterError

PLAIN = "mpi"
FILE = "ipcluster_config.py"
BROUGHT = Path(sys.prefix, "share", "labkit", "cluster_profiles")


def names() -> list[str]:
    """Return the names of all profiles but the plain one."""
    return sorted(path.parent.name for path in BROUGHT.glob(f"*/{FILE}"))


def prepare(profile: str, n: int) -> str:
    """See that n engines can run in a profile, and put its settings in place; return IPython's name of it.

    Raises ClusterError or HostsError: there is no such profile, or it is not ready for n engines.
    """
    if profile == PLAIN:
        return "default"
    if profile not in names():
        raise ClusterError(
            f"there is no profile {profile!r}; there are {', '.join([PLAIN, *names()])}. "
            f"`make env` installs them."
        )
    if profile == "hosts" and (up := len(hosts.running().hosts)) < n:
        raise ClusterError(
            f"{n} ranks on {up} hosts: a host takes one rank. "
            f"`labkit hosts down`, then `labkit hosts up --n {n}`."
        )
    folder = Path(get_ipython_dir(), f"profile_{profile}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text((BROUGHT / profile / FILE).read_text())
    return profile


def of(cluster_file: Path) -> str:
    """Return the lab's name of the profile that a cluster file belongs to."""
    name = cluster_file.parent.parent.name.removeprefix("profile_")
    return name if name in names() else PLAIN
