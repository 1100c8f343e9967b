"""Where engines run: the IPython profiles that the lab installs, and the default one, here called `mpi`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from IPython.paths import get_ipython_dir

from labkit import hosts
from labkit.cluster.errors import ClusterError
from labkit.cluster.slurm.settings import load

# What `labkit lab` and connect() take the number of ranks and the profile from, before anything else.
RANKS, PROFILE = "LABKIT_RANKS", "LABKIT_PROFILE"
DEFAULT = "mpi"
FILE = "ipcluster_config.py"
INSTALLED = Path(sys.prefix, "share", "labkit", "cluster_profiles")


def names() -> list[str]:
    """Return the names of the installed profiles, without the default one."""
    return sorted(path.parent.name for path in INSTALLED.glob(f"*/{FILE}"))


def check(profile: str) -> None:
    """Raise ClusterError unless the profile exists."""
    if profile not in [DEFAULT, *names()]:
        raise ClusterError(
            f"there is no profile {profile!r}; the profiles are {', '.join([DEFAULT, *names()])}. "
            f"If one is missing, install the lab again: `make env`, or pip for a wheel."
        )


def prepare(profile: str, n: int) -> str:
    """Check that n engines can run in a profile, install its settings, and return IPython's name for it.

    Raise ClusterError or labkit.hosts.HostsError if the profile does not exist or is not ready for n engines.
    """
    check(profile)
    if profile == DEFAULT:
        return "default"
    if profile == "hosts" and (up := len(hosts.running().hosts)) < n:
        raise ClusterError(
            f"{n} ranks do not fit on {up} hosts: each host runs one rank. "
            f"Run `labkit hosts down`, then `labkit hosts up --n {n}`."
        )
    if profile == "slurm":
        load()  # report a wrong setting here rather than as a controller that does not start
        if not shutil.which("sbatch"):
            raise ClusterError(
                "the profile `slurm` needs SLURM's commands, and this machine has no `sbatch`. Run the "
                "notebook on the cluster's login node, or leave the profile out."
            )
    folder = Path(get_ipython_dir(), f"profile_{profile}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text((INSTALLED / profile / FILE).read_text())
    return profile


def of(cluster_file: Path) -> str:
    """Return the lab's name for the profile that a cluster file belongs to."""
    name = cluster_file.parent.parent.name.removeprefix("profile_")
    return name if name in names() else DEFAULT
