"""Engines on the machines of a host file: one MPI world, engine id = rank, started by ssh.

`ipcluster start --profile=ssh` and connect(profile="ssh") copy this file to the IPython profile `ssh`.
ipcluster reads it after the settings of cluster_profiles/mpi. docs/machines.md describes the host file.
"""

import sys

from labkit.cluster.places.ssh import before_controller
from labkit.cluster.supervisor import supervised
from mpiwatch import launch

c = get_config()  # noqa: F821  (given by traitlets)

c.MPILauncher.mpi_cmd = [*supervised("engines"), sys.executable, "-P", "-m", "labkit.cluster.places.ssh"]
# Leave out the variables that the profile `mpi` sets for ranks of one machine.
c.MPILauncher.environment = launch.settings()
# Look at each machine before the controller starts, and add its address.
c.SupervisedControllerLauncher.before_start = before_controller
