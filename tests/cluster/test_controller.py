"""A port that a controller has chosen belongs to it before its listeners start."""

from __future__ import annotations

import socket

import pytest
import zmq

from labkit.cluster.controller import Controller


def test_only_the_listener_can_use_a_chosen_port() -> None:
    controller = Controller()
    port = controller.next_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with zmq.Context() as context, context.socket(zmq.PUB) as listener:
        listener.bind(f"tcp://127.0.0.1:{port}")
        controller.ports = [port]
        with pytest.raises(OSError, match=f"in use .port {port}"):
            controller.next_port()
