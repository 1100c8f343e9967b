"""Engines as one SLURM job: one MPI world, engine id = rank, on the nodes that SLURM chooses.

connect(profile="slurm") copies this file to the IPython profile `slurm`; after that, `ipcluster start
--profile=slurm` works, too. ipcluster reads it after the settings of cluster_profiles/mpi.
labkit/cluster/places/slurm.py describes the file that says what to ask SLURM for.
"""

import sys

from labkit.cluster.places.slurm import controller_address, load
from labkit.cluster.supervisor import supervised
from mpiwatch import launch

c = get_config()  # noqa: F821  (given by traitlets)

c.MPILauncher.mpi_cmd = [*supervised("job"), sys.executable, "-P", "-m", "labkit.cluster.places.slurm"]
# Leave out the variables that the profile `mpi` sets for ranks of one machine.
c.MPILauncher.environment = launch.settings()
# Cancelling a job takes longer than ending processes on this machine.
c.MPILauncher.stop_seconds_until_kill = 40

# Nodes have to reach the controller, so it does not listen on this machine alone.
c.SupervisedControllerLauncher.controller_args.append(f"--ip={controller_address(load())}")
