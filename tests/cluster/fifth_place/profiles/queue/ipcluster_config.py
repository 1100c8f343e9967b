"""Engines that wait in the queue of tests/cluster/fifth_place/queue.py."""

import os
import sys

from labkit.cluster.supervisor import supervised

c = get_config()  # noqa: F821  (given by traitlets)

c.MPILauncher.mpi_cmd = [*supervised("engines"), sys.executable, "-P", os.environ["QUEUE_PROGRAM"]]
