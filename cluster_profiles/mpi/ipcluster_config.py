"""Engines on this machine: one MPI world, engine id = rank. They end with the process that started them.

Installed as etc/ipython/ipcluster_config.py of the environment, where `ipcluster`, `ipyparallel.Cluster()`
and JupyterLab's cluster panel read it, in any home folder and profile.
"""

from traitlets.config import Application

from labkit import forking
from labkit.cluster.adapter.launchers import CONTROLLER
from labkit.cluster.clusters import install_settings
from labkit.cluster.supervisor import ENGINE, supervised
from mpiwatch import launch

c = get_config()  # noqa: F821  (given by traitlets)

# `ipcluster start --profile=ssh` works as typed, in a profile that connect() has never used: ipcluster reads
# the profile's settings after these.
if Application.initialized():
    install_settings(getattr(Application.instance(), "profile_dir", None))

c.Cluster.engine_launcher_class = "mpi"
c.Cluster.n = 4

# This environment's mpiexec. Another MPI's would start n worlds of one rank.
c.MPILauncher.mpi_cmd = [*supervised("engines"), launch.mpiexec()]
# Open MPI's mpiexec starts a stand-in for each engine; the supervisor forks MPICH's engines without mpiexec.
c.EngineLauncher.engine_cmd = [*forking.stand_in(), ENGINE]
# These ranks need no network, which also saves Open MPI a second of looking for a fast one.
c.MPILauncher.environment = {**launch.settings(), **launch.one_machine()}
c.Cluster.controller_launcher_class = "supervised"
c.SupervisedControllerLauncher.controller_cmd = CONTROLLER
c.SupervisedControllerLauncher.supervisor = supervised("controller")

# An engine registers only after a heartbeat: the default period of 3 s would be most of a cluster's start. An
# engine that misses all of them for 30 s (the default) is lost for good, also if it lives: a busy machine may
# not let it run for some seconds. The death of an engine shows at once: the controller watches the processes
# of its own machine, and elsewhere each engine has a nanny. This sets the launcher's arguments because
# `ipcluster start` overwrites the cluster's.
heart = ["--HeartMonitor.period=100", "--HeartMonitor.max_heartmonitor_misses=300"]
# Every user of the machine can connect to the controller's ports. With CurveZMQ it answers only programs that
# have its key, which is in the connection files; without, all others would read the cells and their output.
key = "--IPController.enable_curve=True"
# One process, not nine: its schedulers are threads, and views that broadcast have one, not a tree of three.
one_process = ["--IPController.use_threads=True", "--IPController.broadcast_scheduler_depth=0"]
c.SupervisedControllerLauncher.controller_args = [*heart, key, *one_process]
# Engines start together with their controller, and read its connection file once it exists.
c.Cluster.delay = 0
c.Cluster.send_engines_connection_env = False
# An engine gives up on a controller without pings after about half a minute: five looks, 6.5 s apart
# (ENGINE_LOOKS_MS in labkit/cluster/adapter/controller.py).
c.EngineLauncher.engine_args = ["--IPEngine.wait_for_url_file=60", "--IPEngine.max_heartbeat_misses=5"]

# `ipcluster` stops if engines end within this many seconds; later, connect() may start new ones.
c.IPClusterEngines.early_shutdown = 3
