"""What `%%px` says in a notebook that has no engines.

IPython loads this extension when a cell uses `%%px` and nothing has registered it: see `lazy_magics` in
cluster_profiles/mpi/ipython_kernel_config.py. So nothing keeps ipyparallel from registering its own `%%px` in
a notebook that makes an `ipyparallel.Client` by itself.
"""

from __future__ import annotations

from typing import Any

from labkit.cluster.errors import ClusterError

NOT_YET = "there are no engines yet: run the notebook's cell with `connect()` first."
FAILED = (
    "this notebook has no engines, because `connect()` failed. Do what its message says, then run its cell "
    "again."
)
# ipyparallel's magics, listed here because importing it takes time, and labkit's `%%replay`.
MAGICS = "px", "autopx", "pxconfig", "pxresult", "replay"

message = NOT_YET


def load_ipython_extension(shell: Any) -> None:
    """Raise the error for a cell with `%%px`. IPython tries again at the next use."""
    raise ClusterError(message)


def say_that_connect_failed(shell: Any) -> None:
    """Take `%%px` and its relatives away, and let each further use say that `connect()` has failed."""
    global message  # noqa: PLW0603
    message = FAILED
    for registered in shell.magics_manager.magics.values():
        for name in MAGICS:
            registered.pop(name, None)
