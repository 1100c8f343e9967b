"""Choose where the ranks of a notebook run: on a cluster, on hosts of this machine, or here alone."""

from __future__ import annotations

import os
import shutil
import subprocess

from labkit import hosts
from labkit.cluster.connection import chosen_by_environment

BANDWIDTH = "1gbit"  # of the links between hosts that are made here
SINFO_S = 30.0  # for SLURM's controller, which may be busy


def best_profile(n: int = 4) -> str:
    """Return "slurm" if a SLURM cluster answers, "hosts" if hosts are up or can be made here, else "mpi".

    If the environment variable LABKIT_PROFILE is set, it decides; LABKIT_RANKS replaces `n`, as in `connect`.
    Hosts that are made, one for each of n ranks, are removed when this process ends. If they cannot be made,
    a printed line says why.
    """
    n, profile, _ = chosen_by_environment(n, "")
    if profile:
        return profile
    if slurm_answers():
        return "slurm"
    try:
        hosts.running()
    except hosts.HostsError:
        return _hosts_or_mpi(n)
    return "hosts"


def slurm_answers() -> bool:
    """Return whether this machine has SLURM's commands, and its controller answers."""
    if not shutil.which("sinfo"):
        return False
    try:
        done = subprocess.run(["sinfo", "-h"], capture_output=True, check=False, timeout=SINFO_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _hosts_or_mpi(n: int) -> str:
    """Make n hosts and return "hosts"; return "mpi", and print why, if this system does not allow that."""
    try:
        hosts.up(n, BANDWIDTH, owner=os.getpid())
    except hosts.HostsError as error:
        print(f"The ranks run on this machine alone, without links: {error}")
        return "mpi"
    return "hosts"
