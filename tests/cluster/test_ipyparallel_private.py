"""The installed ipyparallel still has the undocumented parts whose loss no other test would notice.

A failure here names the part that has changed. Adapt labkit/cluster/ipyparallel_private.py, or the module
that the test names.
"""

from __future__ import annotations

import inspect
import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ipyparallel as ipp
import pytest
import zmq
from ipyparallel.client import view
from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController
from ipyparallel.engine import app, nanny
from ipyparallel.error import CompositeError, RemoteError
from IPython.core.interactiveshell import InteractiveShell

from labkit.cluster import clusters
from labkit.cluster import ipyparallel_private as private
from labkit.cluster.controller import Controller, HeartMonitor
from labkit.cluster.failures import Failure, failures_in


def test_views_send_through_the_replaced_methods() -> None:
    source = inspect.getsource(view)
    assert "client.send_apply_request(" in source and "client.send_execute_request(" in source
    assert "client._send" not in source and "session.send" not in source  # a view has no other way to send
    assert all(callable(getattr(ipp.Client, name)) for name in (*private.VIEWS, *private.SENDS))
    assert all(callable(getattr(ipp.DirectView, name)) for name in private.USES_OF_VIEWS)


def test_errors_of_engines_are_shown_as_the_lab_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # This lets monkeypatch restore the method after the test.
    monkeypatch.setattr(RemoteError, "_render_traceback_", RemoteError._render_traceback_)
    private.render_errors_with(lambda error: ["a report"] if error.ename == "HangError" else None)
    hung, other = RemoteError("HangError", "", "frames"), RemoteError("ValueError", "", "frames")
    assert hung._render_traceback_() == ["a report"] and "frames" in other._render_traceback_()
    composite = CompositeError("", [("HangError", "text", "frames", {"engine_id": 3, "method": "apply"})])
    assert failures_in(composite) == [Failure(3, "HangError", "text", "frames")]
    assert "_render_traceback_()" in inspect.getsource(InteractiveShell.showtraceback)


def test_the_controller_asks_for_ports_and_addresses_through_the_replaced_methods() -> None:
    source = inspect.getsource(IPController)
    for name, least in (("next_port", 6), ("construct_url", 3), ("save_connection_dict", 2)):
        own, original = getattr(Controller, name), getattr(IPController, name)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(original).parameters)
        assert source.count(f"self.{name}(") >= least


def test_a_connection_file_is_there_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []
    file, write = tmp_path / "engine.json", json.dumps
    monkeypatch.setattr(
        json, "dumps", lambda *what, **how: there.append(file.exists()) or write(*what, **how)
    )
    monkeypatch.setattr(Controller, "profile_dir", SimpleNamespace(security_dir=str(tmp_path)))
    Controller().save_connection_dict(file.name, {"key": "value"})
    assert there == [False] and json.loads(file.read_text()) == {"key": "value"}
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


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


def test_the_heart_monitor_and_the_start_of_the_nanny_are_the_replaced_ones() -> None:
    assert (
        "HeartMonitor" in heartmonitor._setup_heartmonitor.__code__.co_names
    )  # labkit/cluster/controller.py
    assert heartmonitor.HeartMonitor is HeartMonitor
    start = inspect.getsource(HeartMonitor.start)
    assert "self.caller = ioloop.PeriodicCallback(self.beat, self.period)" in start
    assert "start_nanny" in app.IPEngine.start_nanny.__code__.co_names  # labkit/cluster/engine.py
    # The nanny reads a pickled dict from its standard input, and prints its address.
    source = inspect.getsource(nanny.main)
    assert "pickle.load" in source and "sys.stdin" in source


def test_an_attached_cluster_leaves_the_file_of_a_new_one_alone(tmp_path: Path) -> None:
    file = tmp_path / "cluster-.json"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        cluster = ipp.Cluster(n=2, profile_dir=str(tmp_path), cluster_file=str(file), parent=None)
        state = cluster.to_dict() | {"controller": {"class": "local", "state": {"pid": child.pid}}}
        file.write_text(json.dumps(state))
        attached = clusters.attach(file)
        state = json.loads(file.read_text())
        child.communicate(b"\n")
    attached._controller_stopped({"exit_code": 0})  # ipyparallel calls it when it notices
    assert json.loads(file.read_text()) == state
