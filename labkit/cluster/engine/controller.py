"""An ipyparallel controller that loses none of its ports to other programs while it starts.

    python -m labkit.cluster.engine.controller [OPTION …]

The options are ipyparallel's. Its controller asks the system for about sixteen free ports, releases them, and
starts child processes that listen on them about a second later. If another program gets a port in between,
its listener is missing, without any message: without the heartbeat's listener, engines wait half a minute and
end.
"""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

from ipyparallel.controller.app import IPController


class Controller(IPController):
    """Keep each chosen port bound until the controller ends.

    Replaces IPController.next_port, which is not documented (see tests/cluster/test_ipyparallel_private.py).
    """

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._bound: list[socket.socket] = []

    def initialize(self, argv: Any = None) -> None:
        """Sign messages even if they are encrypted; otherwise, each client warns about unsigned messages."""
        self.config.Session.key = uuid4().hex.encode()
        super().initialize(argv)

    def next_port(self, pool_name: str = "common") -> int:
        """Return a free port, which from now on only this program's listeners can use.

        Raise OSError if a port from the settings (`IPController.ports` and similar) is taken.
        """
        port: int = super().next_port(pool_name)
        # A bound socket that does not listen blocks the port for every program, except for listeners that set
        # SO_REUSEADDR and ask for this very port, as ZeroMQ's do.
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("", port))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (port {port})") from None
        self._bound.append(bound)
        return port


if __name__ == "__main__":
    Controller.launch_instance()
