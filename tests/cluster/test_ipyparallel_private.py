"""The installed ipyparallel still has the undocumented parts that the lab relies on.

A failure here names the part that has changed. Adapt labkit/cluster/ipyparallel_private.py, or the module
that the test names.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipyparallel as ipp
import psutil
import pytest
import zmq
from ipyparallel.client import view
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.cluster.launcher import LocalProcessLauncher, MPILauncher
from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController
from ipyparallel.engine import app, nanny
from ipyparallel.engine.kernel import IPythonParallelKernel
from ipyparallel.error import CompositeError, RemoteError
from IPython.core.interactiveshell import InteractiveShell

from labkit.cluster import ipyparallel_private as private
from labkit.cluster.controller import Controller, HeartMonitor
from labkit.cluster.failures import Failure, failures_in
from labkit.cluster.magics import RankMagics


def test_profile_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_one").mkdir()
    (tmp_path / "other").mkdir()
    assert private.profile_dirs() == [tmp_path / "profile_one"]


def test_a_result_has_a_future_for_each_engine() -> None:
    children: list[Any] = [Future(), Future()]
    for number, child in enumerate(children):
        child.msg_id, child.tracker, child.output = str(number), Future(), Future()
        child.output.metadata = {}
    result = ipp.AsyncResult(SimpleNamespace(), children, targets=[3, 5])
    assert private.futures(result) == {3: children[0], 5: children[1]}


def test_a_check_precedes_all_that_uses_the_engines() -> None:
    source = inspect.getsource(view)
    assert "client.send_apply_request(" in source and "client.send_execute_request(" in source
    assert "client._send" not in source and "session.send" not in source  # a view has no other way to send
    calls: list[str] = []
    client: Any = SimpleNamespace(**{name: partial(calls.append, name) for name in private.USES})
    sends = ("execute", "_really_apply")  # of a view: what runs a cell, and what calls a function
    view_ = SimpleNamespace(**{name: partial(calls.append, name) for name in sends})
    client.direct_view = lambda: calls.append("direct_view") or SimpleNamespace(**vars(view_))
    private.call_before_use(client, partial(calls.append, "check"), partial(calls.append, "prepare"))
    for name in private.USES:
        assert callable(getattr(ipp.Client, name))
        getattr(client, name)()
    assert calls == [call for name in private.USES for call in ("check", name)]
    calls.clear()
    for name in sends:
        assert callable(getattr(ipp.DirectView, name))
        getattr(client.direct_view(), name)()
    assert calls == [call for name in sends for call in ("check", "direct_view", "prepare", name)]


def test_functions_are_applied_by_a_method_that_an_engine_can_replace() -> None:
    assert "do_apply(content, bufs, msg_id, md)" in inspect.getsource(IPythonParallelKernel.apply_request)
    assert "return reply_content, result_buf" in inspect.getsource(IPythonParallelKernel.do_apply)


def test_errors_of_engines_are_shown_as_the_lab_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # This lets monkeypatch restore the method after the test.
    monkeypatch.setattr(RemoteError, "_render_traceback_", RemoteError._render_traceback_)
    private.render_errors_with(lambda error: ["a report"] if error.ename == "HangError" else None)
    hung, other = RemoteError("HangError", "", "frames"), RemoteError("ValueError", "", "frames")
    assert hung._render_traceback_() == ["a report"] and "frames" in other._render_traceback_()
    composite = CompositeError("", [("HangError", "text", "frames", {"engine_id": 3, "method": "apply"})])
    assert failures_in(composite) == [Failure(3, "HangError", "text", "frames")]
    assert "_render_traceback_()" in inspect.getsource(InteractiveShell.showtraceback)


def test_a_launcher_has_a_process_once_it_has_started_one(tmp_path: Path) -> None:
    launcher = LocalProcessLauncher(work_dir=str(tmp_path), profile_dir=str(tmp_path), identifier="test")
    assert private.process_of(launcher) is None
    launcher.cmd_and_args = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(launcher.cmd_and_args, stdin=subprocess.PIPE)
    try:
        # A launcher that is restored from a cluster file, as connect() does with a cluster it has found.
        restored = LocalProcessLauncher.from_dict({"pid": child.pid}, profile_dir=str(tmp_path))
        assert private.process_of(restored) == psutil.Process(child.pid)
    finally:
        child.communicate()
    assert issubclass(MPILauncher, LocalProcessLauncher)
    assert private.mpiexec_of(MPILauncher(mpi_cmd=["first", "mpiexec"])) == "mpiexec"


def test_a_cluster_file_names_the_controller_and_the_number_of_engines() -> None:
    state = ipp.Cluster(n=3, profile_dir=os.devnull, parent=None).to_dict()
    assert private.size_of(state) == 3 and private.controller_pid(state) is None
    state["controller"] = {"state": {"pid": 7}}
    state["engines"]["sets"] = {"1": {"n": 2}}
    assert private.size_of(state) == 2 and private.controller_pid(state) == 7


def test_the_controller_asks_for_ports_and_addresses_through_the_replaced_methods() -> None:
    for own, original in (
        (Controller.next_port, IPController.next_port),
        (Controller.construct_url, IPController.construct_url),
        (Controller.save_connection_dict, IPController.save_connection_dict),
    ):
        assert list(inspect.signature(own).parameters) == list(inspect.signature(original).parameters)
    source = inspect.getsource(IPController)
    assert source.count("self.next_port(") > 5 and source.count("self.construct_url(") > 2
    assert source.count("self.save_connection_dict(") > 1


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


def test_the_heart_monitor_is_the_replaced_one() -> None:
    assert (
        "HeartMonitor" in heartmonitor._setup_heartmonitor.__code__.co_names
    )  # labkit/cluster/controller.py
    assert heartmonitor.HeartMonitor is HeartMonitor
    start = inspect.getsource(HeartMonitor.start)
    assert "self.caller = ioloop.PeriodicCallback(self.beat, self.period)" in start


def test_the_engine_starts_its_nanny_through_the_replaced_function() -> None:
    assert "start_nanny" in app.IPEngine.start_nanny.__code__.co_names  # labkit/cluster/engine.py
    # The nanny reads a pickled dict from its standard input, and prints its address.
    source = inspect.getsource(nanny.main)
    assert "pickle.load" in source and "sys.stdin" in source
    assert {"pid", "pipe"} <= {*inspect.signature(nanny.KernelNanny.__init__).parameters}


def test_the_magics_take_the_same_arguments() -> None:
    own, original = (
        list(inspect.signature(each.parallel_execute).parameters) for each in (RankMagics, ParallelMagics)
    )
    assert own == original


def test_an_attached_cluster_leaves_the_file_of_a_new_one_alone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file = tmp_path / "cluster-.json"
    try:
        cluster = ipp.Cluster(n=2, profile_dir=str(tmp_path), cluster_file=str(file), parent=None)
        state = cluster.to_dict() | {"controller": {"class": "local", "state": {"pid": child.pid}}}
        file.write_text(json.dumps(state))
        attached = private.attach(file, parent=None)
        attached.update_cluster_file()
        assert private.controller_pid(json.loads(file.read_text())) == child.pid
        state["controller"]["state"]["pid"] = os.getpid()
        file.write_text(json.dumps(state))
    finally:
        child.communicate(b"\n")
    attached._controller_stopped({"exit_code": 0})  # ipyparallel calls it when it notices
    assert json.loads(file.read_text()) == state
