"""Engines on the hosts that `labkit hosts up` creates: one MPI world with one rank on each host.

connect(profile="hosts") copies this file to the IPython profile of that name, for which then
`ipcluster start --profile=hosts` works, too. It is read after the settings of cluster_profiles/mpi.
"""

import glob
import sys

from labkit.cluster.supervisor import supervised
from labkit.hosts import state
from mpiwatch import launch

c = get_config()  # noqa: F821  (given by traitlets)

c.MPILauncher.mpi_cmd = [*supervised("engines"), sys.executable, "-P", "-m", "labkit.hosts.mpi"]
# Leave out the variables that the profile `mpi` sets for ranks of one machine.
c.MPILauncher.environment = launch.settings()
# The controller is in another network than the engines, which reach it through the file system.
c.SupervisedControllerLauncher.controller_args.append("--IPController.engine_transport=ipc")
# The Unix sockets that it makes for this.
c.SupervisedControllerLauncher.supervisor = supervised(
    "controller", f"{glob.escape(str(state.folder()))}/{{pid}}:*"
)
