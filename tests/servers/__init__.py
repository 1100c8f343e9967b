"""What docs/server.md, slurm.md and kubernetes.md set up: JupyterHub, a container image, Kubernetes."""

from __future__ import annotations

import shutil
from importlib.util import find_spec


def missing_of_jupyterhub() -> str:
    """Return why no JupyterHub can be started here; empty if one can."""
    if find_spec("jupyterhub") is None:
        return "there is no JupyterHub: `make test-env ADD=servers`"
    if shutil.which("configurable-http-proxy") is None:
        return "there is no proxy for JupyterHub: `npm install --global configurable-http-proxy`"
    return ""
