"""A controller that engines reach through the file system, since engines on hosts have another network.

    python -m labkit.cluster.engine.socket_controller [OPTION …]

The options are ipyparallel's. Clients run in the controller's network and connect as usual.
"""

from __future__ import annotations

import os
from typing import Any

from labkit.cluster.engine.controller import Controller
from labkit.hosts.state import folder


class SocketController(Controller):
    """Listen to engines on Unix sockets in the hosts' folder, named by the controller's pid and a number.

    Replaces IPController.construct_url, which is not documented.
    """

    def initialize(self, argv: Any = None) -> None:
        self.engine_transport = "ipc"
        self.engine_ip = str(folder() / str(os.getpid()))
        super().initialize(argv)

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Return a channel's address with a colon before the number, as engines write it, not a hyphen."""
        url: str = super().construct_url(kind, channel, index)
        head, separator, number = url.rpartition("-")
        return f"{head}:{number}" if separator and url.startswith("ipc:") else url


if __name__ == "__main__":
    SocketController.launch_instance()
