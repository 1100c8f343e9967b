"""A controller that nobody can take a port from while it starts.

    python -m labkit.cluster.engine.controller [OPTION …]

The options are ipyparallel's own. Its controller asks the system for some sixteen free ports, lets go of
them, and has child processes listen there about a second later. A port that another program has got by then
costs its listener, and nobody is told: without the heartbeat's, engines wait for half a minute and end.
"""

from __future__ import annotations

import socket

from ipyparallel.controller.app import IPController


class Controller(IPController):
    """Holds each port that it chooses until it ends."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._held: list[socket.socket] = []

    def next_port(self, pool_name: str = "common") -> int:
        """Return a port that is free now, and that from now on only this program's listeners get.

        Raises OSError: a port of the settings (`IPController.ports` and the like) is taken.
        """
        port: int = super().next_port(pool_name)
        holder = socket.socket()
        # A bound socket that does not listen keeps its port from all but those who ask for it by number with
        # this option, as ZeroMQ's listeners do.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (port {port})") from None
        self._held.append(holder)
        return port


if __name__ == "__main__":
    Controller.launch_instance()
