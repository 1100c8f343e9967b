"""JupyterHub on a cluster: each student's server is a SLURM job, and so are its kernels and their ranks.

docs/slurm.md explains it. Start it as root, on a machine on which `sbatch` works and which the nodes can
reach: jupyterhub --config jupyterhub_slurm.py
"""

import sys
from pathlib import Path
from shlex import quote

import batchspawner  # noqa: F401  (a job tells the hub its port there)

c = get_config()  # noqa: F821  (given by traitlets)
HERE = Path(__file__).parent
if not (HERE / "jupyterhub_config.py").exists():
    raise FileNotFoundError(f"jupyterhub_config.py is not in {HERE}: copy it there")
load_subconfig("jupyterhub_config.py", str(HERE))  # noqa: F821

# The environment that has the lab, jupyterhub and batchspawner, in a folder that all nodes see.
BIN = Path(sys.executable).parent

c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.JupyterHub.hub_ip = "0.0.0.0"  # the nodes connect to the hub
c.Spawner.cmd = [quote(f"{BIN}/jupyterhub-singleuser")]  # a part of the job's script, as the next one
c.SlurmSpawner.batchspawner_singleuser_cmd = quote(f"{BIN}/batchspawner-singleuser")
c.SlurmSpawner.req_srun = ""  # the job's one process; connect() starts the ranks beside it, on the same node

# What a job asks for. Four ranks take four cores if they are to compute at once; two are enough for a class.
c.SlurmSpawner.req_nprocs = "2"
c.SlurmSpawner.req_memory = "2G"
c.SlurmSpawner.req_runtime = "4:00:00"
c.SlurmSpawner.req_partition = ""  # the cluster's default

# Bring the student's copies of the notebooks up to date before the server starts.
c.SlurmSpawner.req_prologue = f"cd && {quote(f'{BIN}/labkit')} lab --copy-only"
