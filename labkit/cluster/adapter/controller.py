"""An ipyparallel controller that loses none of its ports to other programs while it starts.

    python -m labkit.cluster.adapter.controller [OPTION …]

The options are ipyparallel's. Its controller asks the system for about sixteen free ports, releases them, and
starts child processes that listen on them about a second later. If another program gets a port in between,
its listener is missing, without any message: without the heartbeat's listener, engines wait half a minute and
end.

ipyparallel's heart monitor pings the engines at one period (ten times a second in cluster_profiles/mpi). An
engine is registered when it first answers. This one pings at that period while an engine waits to be
registered, for a second after an engine has come or ended, and while one does not answer; else every three
seconds. Pings are most of what idle engines compute, and slow a class that starts together.

It is one process. ipyparallel's controller has a process for each of its seven schedulers and one for the
heart monitor. Here three schedulers are threads of ZeroMQ, which Python does not run, and the others take
turns with the hub (`use_threads` in cluster_profiles/mpi); so does the heart monitor.

It watches the processes of engines that are on its machine and have no nanny.

It starts without NumPy and without ipyparallel's part that starts clusters: their imports are half of what
its start computes, and a quarter of its memory. Of what a controller does, only the choice of an engine by
`TaskScheduler.scheme_name = "weighted"` needs one of them, and does not work here.

With the option `--IPController.engine_transport=ipc`, engines reach the controller through the file system:
engines on hosts (`labkit hosts`) have another network. Clients connect as usual.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

if __name__ == "__main__":  # before ipyparallel is imported
    sys.modules["numpy"] = None  # type: ignore[assignment]  # optional for the scheduler of tasks
    sys.modules["ipyparallel.cluster"] = ModuleType("ipyparallel.cluster")
    vars(sys.modules["ipyparallel.cluster"]).update(Cluster=None, ClusterManager=None)

import psutil
import zmq
from ipyparallel.controller import app, heartmonitor, hub
from ipyparallel.controller.app import IPController
from tornado.ioloop import IOLoop, PeriodicCallback

from labkit.cluster.adapter.engine import WATCHED
from labkit.guard import Guard
from labkit.limits import raise_limit_of_files
from mpiwatch.processes import start_time

if __name__ == "__main__":  # a person's settings may import both
    del sys.modules["numpy"], sys.modules["ipyparallel.cluster"]

LISTENING_S = 5.0  # after the start; all listeners are there within a second
QUIET_MS = 3000  # between pings while no engine comes or ends
CHANGING_S = 1.0  # since an engine came or ended
FEW_MISSES = 1  # of an engine on a busy machine; one that has ended misses all
# An engine looks for pings every so often (and 0.5 s), so that it sees one in each quiet period.
ENGINE_LOOKS_MS = 2 * QUIET_MS


class Controller(IPController):
    """Keep each chosen port bound until a listener has it.

    Replaces methods of IPController that are not documented.
    """

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        raise_limit_of_files()
        self._bound: list[socket.socket] = []

    def initialize(self, argv: Any = None) -> None:
        """Sign messages even if they are encrypted; otherwise, each client warns about unsigned messages."""
        self.config.Session.key = uuid4().hex.encode()
        super().initialize(argv)

    def to_work_dir(self) -> None:
        """Import nothing from the folder of the notebook: a file queue.py may be there."""
        super().to_work_dir()
        sys.path[:] = [place for place in sys.path if place]

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

    def start(self) -> None:
        """Start; when all listeners must be there, close the sockets that have kept their ports."""
        self.loop.call_later(LISTENING_S, self.release_ports)
        super().start()

    def release_ports(self) -> None:
        """Close each socket whose port has its listener: now the listener keeps other programs from it."""
        own = psutil.Process().net_connections("tcp")
        listening = {each.laddr.port for each in own if each.status == psutil.CONN_LISTEN}
        for bound in list(self._bound):
            if bound.getsockname()[1] in listening:
                self._bound.remove(bound)
                bound.close()

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Write a connection file whole: an engine reads it as soon as it exists."""
        part, folder = f".{fname}", Path(self.profile_dir.security_dir)
        super().save_connection_dict(part, cdict)
        (folder / part).replace(folder / fname)

    def _engine_ip_default(self) -> str:
        """Name Unix sockets in the hosts' folder by this process; labkit.cluster.supervisor removes them."""
        if self.engine_transport == "ipc":
            from labkit.hosts.state import folder  # noqa: PLC0415  (other controllers start without it)

            return str(folder() / str(os.getpid()))
        return str(super()._engine_ip_default())

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Return a channel's address; before a socket's number, engines write a colon, not a hyphen."""
        url: str = super().construct_url(kind, channel, index)
        head, separator, number = url.rpartition("-")
        return f"{head}:{number}" if separator and url.startswith("ipc:") else url


class HeartMonitor(heartmonitor.HeartMonitor):
    """Ping less often while all engines respond; take turns with the hub.

    `start`, `beat`, `caller`, `hearts` and the `handle_…` are not documented.
    """

    # An error in one of these ends no heartbeat.
    STEPS = "ping", "adapt_period", "note_new_heart"
    changed = 0.0  # in seconds of its lifetime
    running: HeartMonitor | None = None  # the one of this process
    waiting: Collection[Any] = ()  # the engines that wait to be registered, as the hub has them

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.guard = Guard("the heart monitor", self.log.error)

    def start(self) -> None:
        """Start once the hub listens. ipyparallel's waits for that here, and the hub would wait for it."""
        self.monitor_stream.on_recv(self.start_to_beat)

    def start_to_beat(self, subscription: Any) -> None:
        """Start to send pings; the hub has subscribed to what this monitor reports."""
        self.monitor_stream.stop_on_recv()
        self.pong_stream.on_recv(self.handle_pong)
        self.tic = time.monotonic()
        self.caller = PeriodicCallback(self.beat, self.period)
        self.caller.start()
        HeartMonitor.running = self

    def end_quiet(self) -> None:
        """Ping again in a moment, and often: an engine comes or has ended."""
        self.changed = self.lifetime + time.monotonic() - self.tic
        if self.caller.callback_time != self.period:
            self.caller.stop()
            self.caller.callback_time = self.period
            self.caller.start()

    def beat(self) -> None:
        before = set(self.hearts)
        self.guard.do("ping", self.ping)
        self.guard.do("adapt_period", self.adapt_period, before)

    def handle_pong(self, msg: list[bytes]) -> None:
        """Note an engine's answer; if it is the first one, tell the hub at once, and not at the next ping."""
        super().handle_pong(msg)
        self.guard.do("note_new_heart", self.note_new_heart, msg[0])

    def note_new_heart(self, heart: bytes) -> None:
        """Tell the hub of an engine that has answered for the first time."""
        if heart in self.responses and heart not in self.hearts:
            self.handle_new_hearts([heart])

    def ping(self) -> None:
        """Count which engines have answered the last ping, and send the next."""
        super().beat()

    def adapt_period(self, before: set[Any]) -> None:
        """Set when the next ping comes; `before`: the engines that were there before this one."""
        misses = max(self.on_probation.values(), default=0)
        if before != self.hearts or misses > FEW_MISSES or self.waiting:
            self.changed = self.lifetime
        is_quiet = self.lifetime - self.changed > CHANGING_S
        self.caller.callback_time = max(QUIET_MS, self.period) if is_quiet else self.period


heartmonitor.HeartMonitor = HeartMonitor


class HeartMonitorInLoop:
    """The heart monitor in the controller's loop, in place of the process that ipyparallel starts for it.

    `Process` in ipyparallel's module of the controller is this class. The controller makes one of them if its
    schedulers are threads.
    """

    def __init__(self, *, target: Any, kwargs: dict[str, Any], daemon: bool) -> None:
        assert target is heartmonitor.start_heartmonitor, f"the controller starts a process for {target}"
        self.settings = kwargs

    def start(self) -> None:
        """Start the heart monitor as soon as the loop runs."""
        context: Any = zmq.Context.instance()
        IOLoop.current().add_callback(heartmonitor._setup_heartmonitor, ctx=context, **self.settings)

    def terminate(self) -> None:
        """Do nothing: the heart monitor ends with the controller."""


app.Process = HeartMonitorInLoop


class Hub(hub.Hub):
    """Take engines off the list as soon as their processes have ended.

    `register_engine`, `incoming_registrations`, `unregister_engine` and `heartmonitor_period` are not
    documented.
    """

    # An error in one of these ends no controller; the heart monitor then notices the end of an engine.
    STEPS = "watch", "unregister", "end_quiet"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.guard = Guard("the hub", self.log.error)
        self.heartmonitor_period = ENGINE_LOOKS_MS  # as engines are told when they register

    def end_quiet(self) -> None:
        """Let the heart monitor ping the engines soon."""
        if HeartMonitor.running is not None:
            HeartMonitor.running.end_quiet()

    def register_engine(self, reg: Any, msg: dict[str, Any]) -> int | None:
        """Register an engine, and watch its process if it asks for that."""
        HeartMonitor.waiting = self.incoming_registrations
        self.guard.do("end_quiet", self.end_quiet)
        engine: int | None = super().register_engine(reg, msg)
        pid, started = msg["metadata"].get(WATCHED, (0, ""))
        if engine is not None and pid:
            self.guard.do("watch", self.watch, engine, msg["content"]["uuid"], pid, started)
        return engine

    def watch(self, engine: int, uuid: str, pid: int, started: str) -> None:
        """Call `unregister` when a process has ended.

        Do nothing if no process of this pid was started at this time: it is on another machine.
        """
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)

            def has_ended(*_: object) -> None:
                self.loop.remove_handler(process)
                os.close(process)
                self.guard.insist("unregister", self.unregister, engine, uuid)

            if start_time(pid) == started:
                self.loop.add_handler(process, has_ended, IOLoop.READ)
            else:
                os.close(process)

    def unregister(self, engine: int, uuid: str) -> None:
        """Take an engine off the list, unless its number is another engine's by now."""
        registered = [self.engines.get(engine), *self.incoming_registrations.values()]
        if any(connector is not None and connector.uuid == uuid for connector in registered):
            self.unregister_engine(None, {"content": {"id": engine}})
            self.guard.do("end_quiet", self.end_quiet)


app.Hub = Hub

if __name__ == "__main__":
    Controller.launch_instance()
