"""A controller that engines reach through the file system: those on hosts have another network than it has.

    python -m labkit.cluster.engine.socket_controller [OPTION …]

The options are ipyparallel's own. Clients, who are in the controller's network, connect as always.
"""

from __future__ import annotations

import os
from typing import Any

from labkit.cluster.engine.controller import Controller
from labkit.hosts.state import folder


class SocketController(Controller):
    """Listens to engines on sockets in the hosts' folder, named by its process id and a number."""

    def initialize(self, argv: Any = None) -> None:
        self.engine_transport = "ipc"
        self.engine_ip = str(folder() / str(os.getpid()))
        super().initialize(argv)

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Return a channel's address: with a colon, as engines write it, not with ipyparallel's hyphen."""
        url: str = super().construct_url(kind, channel, index)
        head, separator, number = url.rpartition("-")
        return f"{head}:{number}" if separator and url.startswith("ipc:") else url


if __name__ == "__main__":
    SocketController.launch_instance()
