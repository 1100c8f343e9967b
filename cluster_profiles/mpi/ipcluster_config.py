"""Engines on this machine: one MPI world, engine id = rank, gone when their owner is gone.

Installed as etc/ipython/ipcluster_config.py of the environment, where `ipcluster`, `ipyparallel.Cluster()`
and JupyterLab's cluster panel read it, whatever HOME and profile.
"""

import os
import sys

from labkit import env
from labkit.supervisor import supervised

c = get_config()  # noqa: F821  (given by traitlets)

c.Cluster.engine_launcher_class = "mpi"
c.Cluster.n = 4

# The environment's own mpiexec: another MPI's would start n worlds of one rank.
c.MPILauncher.mpi_cmd = [*supervised("engines"), env.mpiexec()]
# Each engine under a witness, which tells which rank died first.
c.EngineLauncher.engine_cmd = [sys.executable, "-m", "labkit.cluster.engine.exit_recorder"]
# Open MPI looks for a fabric for a second while it starts; on one machine there is none to find.
fabric = {"OMPI_MCA_btl": os.environ.get("OMPI_MCA_btl", "^ofi")}  # noqa: SIM112  (its name)
c.MPILauncher.environment = {**env.settings(), **fabric}
c.Cluster.controller_launcher_class = "supervised"
c.SupervisedControllerLauncher.controller_cmd = [sys.executable, "-m", "labkit.cluster.engine.controller"]

# An engine registers only after a heartbeat: the default of 3 s is most of a start. It counts as lost after
# 5 s of silence, for a laptop can be busy elsewhere for that long; a death is told at once.
# Of the launcher, not of the cluster: `ipcluster start` overwrites Cluster.controller_args with its own.
heart = ["--HeartMonitor.period=100", "--HeartMonitor.max_heartmonitor_misses=50"]
c.SupervisedControllerLauncher.controller_args = heart
# Engines import while their controller does, and read its connection file when it is there.
c.Cluster.delay = 0
c.Cluster.send_engines_connection_env = False
c.EngineLauncher.engine_args = ["--IPEngine.wait_for_url_file=60"]

# Engines that end within the first seconds failed to start; later, somebody ended one, and wants them back.
c.IPClusterEngines.early_shutdown = 3
