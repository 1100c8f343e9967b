"""A student's JupyterLab server, alone or of a JupyterHub, and what a browser's tab with a notebook does.

JupyterLab's page talks to the server by its REST interface and to a kernel by a websocket; so does this.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import websocket

from labkit import jupyter_server
from mpiwatch.processes import supervised

START_S = 300.0  # for a server, a kernel or a restart on a busy machine
ASK_AGAIN_S = 5.0
POLL_S = 0.1
RECEIVE_S = 1.0  # between two looks at the clock while no message comes
END_S = 120.0  # for all processes of a student to end
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What differs from the example: any name logs in, and a service may start and use all servers.
HUB_SETTINGS = """\
import json
from pathlib import Path

settings = json.loads(Path("settings.json").read_text())
c = get_config()
load_subconfig(settings["example"])
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.bind_url = settings["url"]
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = settings["hub_port"]
c.ConfigurableHTTPProxy.api_url = settings["api_url"]
c.JupyterHub.services.append({"name": "class", "api_token": settings["token"]})
scopes = ["admin:users", "admin:servers", "access:servers"]
c.JupyterHub.load_roles.append({"name": "class", "services": ["class"], "scopes": scopes})
c.Spawner.args.append("--allow-root")
"""
# Without accounts: all servers run as the user of this process, in home folders below the hub's.
LOCAL_SERVERS = """\
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = settings["home"] + "/{username}"
"""
JUPYTERLAB = [*jupyter_server.command("jupyterlab.labapp"), "--no-browser", "--allow-root"]


class SessionLostError(Exception):
    """The kernel has ended by itself, or does not answer."""


@dataclass
class Reply:
    """What a cell has answered: its status, its error's name, all that it shows, and its seconds."""

    status: str = ""
    error: str = ""
    text: str = ""
    seconds: float = 0.0
    is_idle: bool = field(default=False, repr=False)


class Program:
    """A program with a home folder of its own. Both end with this process, however that ends."""

    def __init__(self, home: Path, words: Sequence[str], **environment: str) -> None:
        self.home, self.log = home, home / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*supervised(remove=str(home)), *words],
                env={**os.environ, "HOME": str(home), **environment},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this program, which ends the other in its turn
            )

    def wait_for(self, answers: Callable[[], bool], what: str) -> None:
        """Wait until the program answers. Raise SessionLostError if it ends, or does not within START_S."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError, ValueError):
                if answers():
                    return
            time.sleep(POLL_S)
        raise SessionLostError(f"{what} does not answer\n{self.log.read_text()[-2000:]}")

    def end(self) -> None:
        """End the program with all that it has started; do not wait."""
        self.process.terminate()

    def wait_for_the_end(self) -> list[str]:
        """Return what is left END_S after `end`: processes; empty as soon as nothing is."""
        return wait_until_nothing_is_left(self.home, self.process)


class Server(Program):
    """A JupyterLab server of a student."""

    def __init__(self, home: Path) -> None:
        self.runtime = home / "r"
        self.url, self.token = "", secrets.token_hex(24)
        options = ["--ServerApp.port=0", f"--ServerApp.root_dir={home}", "--ServerApp.log_level=ERROR"]
        options.append("--KernelManager.transport=ipc")
        folders = {"JUPYTER_RUNTIME_DIR": str(self.runtime), "IPYTHONDIR": str(home / "ipython")}
        super().__init__(home, [*JUPYTERLAB, *options], JUPYTER_TOKEN=self.token, **folders)

    def wait_until_it_answers(self) -> None:
        """Wait for the server. Raise SessionLostError if it ends, or does not answer within START_S."""
        self.wait_for(self._answers, f"the server of {self.home.name}")

    def _answers(self) -> bool:
        for file in self.runtime.glob("jpserver-*.json"):
            self.url = str(json.loads(file.read_text())["url"])
            self.ask("GET", "status")
            return True
        return False

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request of the REST interface; return the answer."""
        return ask(method, f"{self.url}api/{path}", self.token, content)


class Hub(Program):
    """A JupyterHub with the settings of an example of the lab, but without passwords.

    `servers`: settings for how it starts the students' servers.
    """

    def __init__(
        self, home: Path, example: str = "jupyterhub_config.py", servers: str = LOCAL_SERVERS
    ) -> None:
        self.token = secrets.token_hex(24)
        port, api_port, hub_port = free_ports(3)
        self.url = f"http://127.0.0.1:{port}/"
        settings = {"example": str(EXAMPLES / example), "home": str(home), "token": self.token}
        settings |= {"url": self.url, "api_url": f"http://127.0.0.1:{api_port}", "hub_port": hub_port}
        (home / "settings.json").write_text(json.dumps(settings))
        (home / "hub_of_a_class.py").write_text(HUB_SETTINGS + servers)
        super().__init__(home, [sys.executable, "-m", "jupyterhub", "--config=hub_of_a_class.py"])

    def wait_until_it_answers(self) -> None:
        """Wait for the hub. Raise SessionLostError if it ends, or does not answer within START_S."""
        self.wait_for(lambda: bool(self.ask("GET", "users") is not None), "JupyterHub")

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request of the hub's REST interface; return the answer."""
        return ask(method, f"{self.url}hub/api/{path}", self.token, content)


class HubServer:
    """The server of a student of a JupyterHub: the student's name is that of the home folder."""

    def __init__(self, home: Path, hub: Hub) -> None:
        self.home, self.hub, self.token = home, hub, hub.token
        self.url = f"{hub.url}user/{home.name}/"
        with suppress(urllib.error.HTTPError):  # the student has been here before
            hub.ask("POST", f"users/{home.name}")
        hub.ask("POST", f"users/{home.name}/server", {})

    def wait_until_it_answers(self) -> None:
        """Wait for the server. Raise SessionLostError if the hub gives up, or after START_S."""
        self.hub.wait_for(self._answers, f"the hub's server of {self.home.name}")

    def _answers(self) -> bool:
        user = self.hub.ask("GET", f"users/{self.home.name}")
        server = user["servers"].get("")
        if server is None:
            raise SessionLostError(f"JupyterHub has not started the server of {self.home.name}")
        return bool(server["ready"])

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request of the REST interface; return the answer."""
        return ask(method, f"{self.url}api/{path}", self.token, content)

    def end(self) -> None:
        """Let the hub end the server."""
        with suppress(OSError):  # the hub has ended, and its servers with it
            self.hub.ask("DELETE", f"users/{self.home.name}/server")

    def wait_for_the_end(self) -> list[str]:
        """Return what is left END_S after `end`: processes; empty as soon as nothing is."""
        return wait_until_nothing_is_left(self.home)


def ask(method: str, url: str, token: str, content: Any) -> Any:
    """Send a request with content in JSON; return the answer, None if it is empty."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"token {token}"}, method=method)
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def free_ports(count: int) -> list[int]:
    """Return ports that no program uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def wait_until_nothing_is_left(home: Path, process: subprocess.Popen[bytes] | None = None) -> list[str]:
    """Wait until a program and all processes with this home folder have ended; return those that have not."""
    deadline = time.monotonic() + END_S
    while True:
        left = [f"process {other.pid} of {home.name}" for other in at_home(home)]
        if process is not None and process.poll() is None:
            left.append(f"supervisor {process.pid}")
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


def at_home(home: Path) -> list[psutil.Process]:
    """Return all processes that have this home folder."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                processes.append(process)
    return processes


class Tab:
    """A tab with a notebook: a session of the server, its kernel, and a websocket to the kernel."""

    def __init__(self, server: Server | HubServer, path: str) -> None:
        self.server = server
        self.client = uuid4().hex
        kernel = {"name": "python3"}
        request = {"path": path, "name": path, "type": "notebook", "kernel": kernel}
        self.session = server.ask("POST", "sessions", request)
        self.kernel = self.session["kernel"]["id"]
        self.is_restarting = False
        self.open()

    def open(self) -> None:
        """Connect to the kernel, as when the tab is opened or opened again; wait until the kernel answers."""
        address = self.server.url.replace("http", "ws", 1)
        self.socket = websocket.create_connection(
            f"{address}api/kernels/{self.kernel}/channels?session_id={self.client}",
            header=[f"Authorization: token {self.server.token}"],
            timeout=START_S,
        )
        self.socket.settimeout(RECEIVE_S)
        self._wait_for_kernel()

    def close(self) -> None:
        """Close the tab; the kernel goes on."""
        self.socket.close()

    def restart(self) -> None:
        """Restart the kernel."""
        self.is_restarting = True
        self.server.ask("POST", f"kernels/{self.kernel}/restart", {})
        self._wait_for_kernel()
        self.is_restarting = False

    def listen(self, seconds: float, is_over: threading.Event) -> None:
        """Wait while nothing runs, or until `is_over`; receive what comes, as a page does.

        Receiving also answers the server's pings; the server closes a websocket that does not answer.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_over.is_set():
            message = self._receive()
            if message is not None:
                self._heed(message)

    def shut_down(self) -> None:
        """Close the notebook and end its kernel."""
        self.close()
        with suppress(urllib.error.HTTPError):  # the kernel has ended
            self.server.ask("DELETE", f"sessions/{self.session['id']}")

    def run(self, code: str, limit_s: float, *, stop_on_error: bool = True) -> Reply:
        """Run a cell. Raise SessionLostError if the kernel ends or has not answered after limit_s."""
        return self.run_all([code], limit_s, [stop_on_error])[0]

    def run_all(self, codes: Sequence[str], limit_s: float, stops: Sequence[bool]) -> list[Reply]:
        """Run cells one after the other; all are sent at once, as by *Run All Cells*.

        `stops`: whether an error in the cell keeps the later ones from running.
        """
        began = time.monotonic()
        replies: dict[str, Reply] = {}
        for code, stop in zip(codes, stops, strict=True):
            content = {"code": code, "silent": False, "store_history": True, "stop_on_error": stop}
            content |= {"user_expressions": {}, "allow_stdin": False}
            replies[self._send("execute_request", content)] = Reply()
        waiting = set(replies)
        while waiting:
            if time.monotonic() - began > limit_s:
                raise SessionLostError(f"no answer to a cell after {limit_s:.0f} s")
            message = self._receive()
            if message is None:
                continue
            self._heed(message)
            asked_by = message["parent_header"].get("msg_id", "")
            if asked_by in waiting:
                reply = replies[asked_by]
                note(reply, message)
                if reply.status and (reply.is_idle or reply.status == "aborted"):
                    reply.seconds = time.monotonic() - began
                    waiting.remove(asked_by)
        return list(replies.values())

    def _wait_for_kernel(self) -> None:
        deadline = time.monotonic() + START_S
        ask_again = 0.0
        while time.monotonic() < deadline:
            if time.monotonic() > ask_again:  # a kernel that is just starting loses requests
                self._send("kernel_info_request", {})
                ask_again = time.monotonic() + ASK_AGAIN_S
            message = self._receive()
            if message is not None and message["msg_type"] == "kernel_info_reply":
                return
        raise SessionLostError(f"kernel {self.kernel} has not answered within {START_S:.0f} s")

    def _heed(self, message: dict[str, Any]) -> None:
        """Raise SessionLostError if the message says that the kernel has ended by itself."""
        if message["msg_type"] == "status" and not self.is_restarting:
            state = message["content"]["execution_state"]
            if state in ("dead", "restarting", "autorestarting"):
                raise SessionLostError(f"kernel {self.kernel} is {state}")

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        number = uuid4().hex
        header = {"msg_id": number, "username": "", "session": self.client, "msg_type": kind}
        header |= {"version": "5.4", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        try:
            self.socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        except (OSError, websocket.WebSocketException) as error:
            raise SessionLostError(f"the websocket is closed: {error}") from None
        return number

    def _receive(self) -> dict[str, Any] | None:
        """Return the next message; None if none comes within RECEIVE_S, or if it holds data of widgets."""
        try:
            text = self.socket.recv()
        except websocket.WebSocketTimeoutException:
            return None
        except (OSError, websocket.WebSocketException) as error:
            raise SessionLostError(f"the websocket was closed: {error}") from None
        if not isinstance(text, str) or not text:
            return None
        message: dict[str, Any] = json.loads(text)
        return message


def note(reply: Reply, message: dict[str, Any]) -> None:
    """Add what a message says to the reply of the cell that it belongs to."""
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        reply.text += content["text"]
    elif kind in ("display_data", "execute_result", "update_display_data"):
        reply.text += f"{content['data'].get('text/plain', '')}\n"
    elif kind == "error":
        reply.error = content["ename"]
        reply.text += "\n".join([content["evalue"], *content["traceback"], ""])
    elif kind == "execute_reply":
        reply.status = content["status"]
    elif kind == "status":
        reply.is_idle = content["execution_state"] == "idle"
