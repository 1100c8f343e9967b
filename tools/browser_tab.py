"""A JupyterLab server of one student, and what a browser's tab with a notebook does there.

JupyterLab's page talks to the server by its REST interface and to a kernel by a websocket; so does this.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import websocket

from mpiwatch.processes import supervised

START_S = 300.0  # for a server, a kernel or a restart on a busy machine
ASK_AGAIN_S = 5.0
POLL_S = 0.1
RECEIVE_S = 1.0  # between two looks at the clock while no message comes
END_S = 120.0  # for all processes of a student to end
JUPYTERLAB = [sys.executable, "-P", "-m", "jupyterlab", "--no-browser", "--allow-root"]


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


class Server:
    """A JupyterLab server in a home folder of its own. It ends with this process, however that ends."""

    def __init__(self, home: Path) -> None:
        self.home, self.runtime = home, home / "r"
        self.token = secrets.token_hex(24)
        self.environment = {**os.environ, "HOME": str(home), "JUPYTER_TOKEN": self.token}
        self.environment["JUPYTER_RUNTIME_DIR"] = str(self.runtime)
        self.environment["IPYTHONDIR"] = str(home / "ipython")
        self.url = ""
        options = ["--ServerApp.port=0", f"--ServerApp.root_dir={home}", "--ServerApp.log_level=ERROR"]
        options.append("--KernelManager.transport=ipc")
        with (home / "jupyterlab.log").open("w") as log:
            self.process = subprocess.Popen(
                [*supervised(remove=str(home)), *JUPYTERLAB, *options],
                env=self.environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this program, which ends the server in its turn
            )

    def wait_until_it_answers(self) -> None:
        """Wait for the server. Raise SessionLostError if it ends, or does not answer within START_S."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with suppress(OSError, ValueError, StopIteration):
                file = next(self.runtime.glob("jpserver-*.json"))
                self.url = str(json.loads(file.read_text())["url"])
                self.ask("GET", "status")
                return
            time.sleep(POLL_S)
        log = (self.home / "jupyterlab.log").read_text()[-2000:]
        raise SessionLostError(f"no server of {self.home.name}\n{log}")

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request of the REST interface; return the answer."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def processes(self) -> list[psutil.Process]:
        """Return all processes that have this server's folder in their environment."""
        of_server = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("JUPYTER_RUNTIME_DIR") == str(self.runtime):
                    of_server.append(process)
        return of_server

    def end(self) -> None:
        """End the server with all that it has started; do not wait."""
        self.process.terminate()

    def wait_for_the_end(self) -> list[str]:
        """Return what is left END_S after `end`: processes and files; empty as soon as nothing is."""
        deadline = time.monotonic() + END_S
        while True:
            left = [f"process {process.pid}" for process in self.processes()]
            if self.process.poll() is None:
                left.append(f"supervisor {self.process.pid}")
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(POLL_S)


class Tab:
    """A tab with a notebook: a session of the server, its kernel, and a websocket to the kernel."""

    def __init__(self, server: Server, path: str) -> None:
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

        Receiving answers the server's pings: it closes a websocket whose other end does not answer.
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
