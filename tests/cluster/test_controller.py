"""A port that a controller has chosen is its own before its listeners are there."""

from __future__ import annotations

import socket

import pytest
import zmq

from labkit.cluster.engine.controller import Controller


def test_a_chosen_port_is_held_for_its_listener_alone() -> None:
    controller = Controller()
    port = controller.next_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with zmq.Context() as context, context.socket(zmq.PUB) as listener:
        listener.bind(f"tcp://127.0.0.1:{port}")
        controller.ports = [port]
        with pytest.raises(OSError, match=f"in use .port {port}"):
            controller.next_port()
