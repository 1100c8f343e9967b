"""JupyterHub for the lab: local accounts, one shared environment, nothing left of idle students.

docs/install.md explains it. Start it as root: jupyterhub --config jupyterhub_config.py
"""

import sys
from pathlib import Path

c = get_config()  # noqa: F821  (given by traitlets)

# The environment that has the lab and jupyterhub. Students read it; only root writes it.
BIN = Path(sys.executable).parent

# Bring the student's copies in ~/my-notebooks up to date, then start the server as `jupyterhub-singleuser`
# does, in a third of the processor time.
c.Spawner.cmd = [
    "sh",
    "-c",
    'cd && "$0"/labkit lab --copy-only && '
    'exec "$0"/python -P -m labkit.jupyter_server jupyterhub.singleuser "$@"',
    str(BIN),
]
c.Spawner.environment = {
    "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",  # else each kernel starts a BLAS thread for each core
}
c.Spawner.default_url = "/lab/tree/my-notebooks/00_meet_the_cluster.ipynb"
c.Spawner.args = [
    # Kernels listen on sockets in the student's home instead of ports that all students can reach.
    "--KernelManager.transport=ipc",
    # A kernel that has been idle for an hour ends, and its engines with it.
    "--MappingKernelManager.cull_idle_timeout=3600",
    "--MappingKernelManager.cull_interval=300",
    "--MappingKernelManager.cull_connected=True",
]

# When a whole class arrives at once, a server can take longer to start than the 30 seconds of JupyterHub.
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300

# With systemd, each student has a unit with limits. If a loop allocates more memory, Linux ends the
# largest process, mostly a rank, and JupyterLab goes on (OOMPolicy). The weight lets the units share the
# cores evenly, however many processes each has.
if Path("/run/systemd/system").is_dir():
    c.JupyterHub.spawner_class = "systemd"
    c.SystemdSpawner.mem_limit = "4G"
    c.SystemdSpawner.unit_extra_properties = {"TasksMax": "1000", "OOMPolicy": "continue", "CPUWeight": "100"}

# A server that nobody has used for two hours ends, too.
c.JupyterHub.services = [
    {"name": "idle", "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=7200"]}
]
c.JupyterHub.load_roles = [
    {
        "name": "idle",
        "services": ["idle"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]

# Passwords and cells must not cross the network unencrypted, and this file has no certificate: listen on this
# machine alone, behind a web server with TLS. To listen on another address, set ssl_key and ssl_cert first.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"

# Every account of this machine may log in, with its password.
c.Authenticator.allow_all = True
