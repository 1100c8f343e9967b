"""The installed ipyparallel still has the undocumented parts whose loss no other test would notice.

A failure here names the part that has changed: adapt labkit/cluster/adapter. No other module uses such parts.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ipyparallel as ipp
import pytest
import zmq
from ipykernel.kernelbase import Kernel
from ipyparallel import error
from ipyparallel.client import view
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController
from ipyparallel.engine import app, nanny
from ipyparallel.engine.kernel import IPythonParallelKernel
from ipyparallel.error import CompositeError, RemoteError
from IPython.core.interactiveshell import InteractiveShell

import labkit
import mpiwatch
from labkit.cluster.adapter import client, functions, launchers
from labkit.cluster.adapter.controller import Controller, HeartMonitor
from labkit.cluster.adapter.magics import CellMagics
from labkit.cluster.completion.cells import OPTIONS
from labkit.cluster.failures import Failure, failures_in


def test_views_send_through_the_replaced_methods() -> None:
    source = inspect.getsource(view)
    assert "client.send_apply_request(" in source and "client.send_execute_request(" in source
    assert "client._send" not in source and "session.send" not in source  # a view has no other way to send
    assert all(callable(getattr(ipp.Client, name)) for name in (*client.VIEWS, *client.SENDS))
    assert all(callable(getattr(ipp.DirectView, name)) for name in client.USES_OF_VIEWS)


def test_errors_of_engines_are_shown_as_the_lab_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # This lets monkeypatch restore the method after the test.
    monkeypatch.setattr(RemoteError, "_render_traceback_", RemoteError._render_traceback_)
    client.render_errors_with(lambda error: ["a report"] if error.ename == "HangError" else None)
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
        controller.release_ports()
        assert not controller._bound
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        controller.ports = [port]
        with pytest.raises(OSError, match=f"in use .port {port}"):
            controller.next_port()


def test_the_heart_monitor_and_the_start_of_the_nanny_are_the_replaced_ones() -> None:
    assert "HeartMonitor" in heartmonitor._setup_heartmonitor.__code__.co_names
    assert heartmonitor.HeartMonitor is HeartMonitor
    # What HeartMonitor.start_to_beat does in place of the last lines of ipyparallel's `start`.
    (original,) = HeartMonitor.__bases__
    start = inspect.getsource(original.start)
    for line in (
        "self.pong_stream.on_recv(self.handle_pong)",
        "self.tic = time.monotonic()",
        "self.caller = ioloop.PeriodicCallback(self.beat, self.period)",
        "self.caller.start()",
    ):
        assert line in start
    # With threads, the controller starts one process, that of the heart monitor.
    source = inspect.getsource(IPController)
    assert source.count(" = Process(") == 3 and source.count("if 'Process' in self.mq_class:") == 2
    assert "start_nanny" in app.IPEngine.start_nanny.__code__.co_names
    # The nanny reads a pickled dict from its standard input, and prints its address.
    source = inspect.getsource(nanny.main)
    assert "pickle.load" in source and "sys.stdin" in source


def test_an_attached_cluster_leaves_the_file_of_a_new_one_alone(tmp_path: Path) -> None:
    file = tmp_path / "cluster-.json"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        cluster = ipp.Cluster(n=2, profile_dir=str(tmp_path), cluster_file=str(file), parent=None)
        state = cluster.to_dict() | {"controller": {"class": "local", "state": {"pid": child.pid}}}
        file.write_text(json.dumps(state))
        attached = launchers.attach(file)
        state = json.loads(file.read_text())
        child.communicate(b"\n")
    attached._controller_stopped({"exit_code": 0})  # ipyparallel calls it when it notices
    assert json.loads(file.read_text()) == state


def test_the_magics_run_each_cell_through_the_replaced_methods() -> None:
    own, original = (inspect.signature(each.parallel_execute) for each in (CellMagics, ParallelMagics))
    assert list(own.parameters) == list(original.parameters)
    assert "self.parallel_execute(" in inspect.getsource(ParallelMagics.cell_px)
    assert "self.parallel_execute(" in inspect.getsource(ParallelMagics.px)
    assert ".display_outputs(" in inspect.getsource(ParallelMagics.result)
    assert "'px' not in ip.magics_manager.magics[\"line\"]" in inspect.getsource(ipp.Client.__init__)


def test_an_engine_looks_for_modules_and_calls_functions_as_the_adapter_expects() -> None:
    assert "sys.path.insert(0, '')" in inspect.getsource(app.IPEngine.init_engine)
    assert "sys.path.insert(0, '')" in inspect.getsource(app.IPEngine.to_work_dir)
    assert "sys.path.insert(0, '')" in inspect.getsource(IPController.to_work_dir)
    called = inspect.getsource(IPythonParallelKernel.do_apply)
    assert all(f"'{part}'" in called or f'"{part}"' in called for part in ("f", "args", "kwargs", "result"))
    assert functions.is_in_use("_0123abcd_0123456789_f") and not functions.is_in_use("_")


def test_a_rank_answers_on_its_control_channel_in_a_thread_of_its_own() -> None:
    assert "control_thread" in inspect.getsource(app.IPEngine)
    assert "self.control_handlers.get(msg_type" in inspect.getsource(IPythonParallelKernel.process_control)
    assert "self._send(self._control_stream, msg_type" in inspect.getsource(ipp.Client._send_control_request)


def test_the_kernel_receives_requests_in_the_replaced_method() -> None:
    source = inspect.getsource(Kernel.start)
    assert "self.shell_stream.on_recv(self.shell_channel_thread_main, copy=False)" in source
    assert list(inspect.signature(Kernel.shell_channel_thread_main).parameters) == ["self", "msg"]


def test_the_options_of_px_are_ipyparallels() -> None:
    parser = ParallelMagics.cell_px.parser
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    assert set(OPTIONS) == options - {"--help"}


# What others may use of ipyparallel: names that its documentation has, and its errors.
PUBLIC = {"AsyncResult", "Client", "Cluster", "DirectView", "error"}
PUBLIC |= {name for name, thing in vars(error).items() if inspect.isclass(thing)}
CLASSES = ipp.AsyncResult, ipp.Client, ipp.Cluster, ipp.DirectView, RemoteError
PRIVATE = {name for kind in CLASSES for name in re.findall(r"\bself\.(_[a-z]\w+)", inspect.getsource(kind))}
PRIVATE -= {"_render_traceback_"}  # IPython's
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
LAB = Path(labkit.__file__).parent
OTHERS = sorted(
    path
    for folder in (LAB, Path(mpiwatch.__file__).parent, LAB.parent / "cluster_profiles")
    for path in folder.rglob("*.py")
    if "adapter" not in path.parts
)


def inside_of_ipyparallel(text: str) -> list[str]:
    """Return what a module uses of ipyparallel's inside: modules, names, private attributes, base classes.

    Also a replacement of an attribute of one of its classes, and the name of one of its modules in a text.
    """
    tree, own = ast.parse(text), set[str]()  # the names by which the module has parts of ipyparallel
    docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ipyparallel":
            own |= {alias.asname or alias.name for alias in node.names}
            if node.module not in ("ipyparallel", "ipyparallel.error"):
                found.append(f"from {node.module}")
            found += [alias.name for alias in node.names if alias.name not in PUBLIC]
        elif isinstance(node, ast.Import):
            parts = [alias for alias in node.names if alias.name.partition(".")[0] == "ipyparallel"]
            own |= {alias.asname or alias.name for alias in parts}
            found += [alias.name for alias in parts if alias.name != "ipyparallel"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_of_package = isinstance(node.value, ast.Name) and node.value.id in own
            if node.attr in PRIVATE and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.append(node.attr)
            elif is_of_package and not isinstance(node.ctx, ast.Load):
                found.append(f"{node.attr} is replaced")
            elif is_of_package and node.value.id == "ipp" and node.attr not in PUBLIC:  # type: ignore[attr-defined]
                found.append(node.attr)
        elif isinstance(node, ast.ClassDef):
            bases = {name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)}
            found += [f"class {node.name}"] if bases & own else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs:
            found += re.findall(r"\bipyparallel\.\w+", node.value)
    return found


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.relative_to(LAB.parent).as_posix())
def test_no_other_module_knows_the_inside_of_ipyparallel(path: Path) -> None:
    assert inside_of_ipyparallel(path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from ipyparallel.client.magics import ParallelMagics", ["from ipyparallel.client.magics"]),
        ("import ipyparallel.engine.app", ["ipyparallel.engine.app"]),
        ("import ipyparallel as ipp\nclass Mine(ipp.Client): pass", ["class Mine"]),
        ("import ipyparallel as ipp\nipp.Client = None", ["Client is replaced"]),
        ("from ipyparallel import Client\nClient.clear = None", ["clear is replaced"]),
        ("import ipyparallel as ipp\nipp.serialize", ["serialize"]),
        ("def ends(result): return result._children", ["_children"]),
        ("def sent(client): return client._send", ["_send"]),
        ('NAME = "ipyparallel.controller"', ["ipyparallel.controller"]),
        ("import ipyparallel as ipp\nfrom ipyparallel.error import RemoteError\nipp.Client()", []),
    ],
)
def test_what_counts_as_the_inside_of_ipyparallel(text: str, found: list[str]) -> None:
    assert [name for name in inside_of_ipyparallel(text) if name != "ParallelMagics"] == found
