"""What a browser does with a running `labkit lab`, without a browser."""

from __future__ import annotations

import json
import urllib.request
import uuid
from typing import Any

import websocket

from tests.cluster_fixtures import DEADLINE_S, unwrapped


class Server:
    """The HTTP interface of a Jupyter server."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.header = url, f"Authorization: token {token}"

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """Return the answer's JSON, None if it has no content."""
        name, _, value = self.header.partition(": ")
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.url + path, body, {name: value}, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            content = answer.read()
        return json.loads(content) if content else None


class ServerKernel:
    """A kernel of a Jupyter server with a notebook."""

    def __init__(self, server: Server, notebook: str) -> None:
        self.server = server
        model = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        self.id = server.call("POST", "api/sessions", model)["kernel"]["id"]
        self.open()

    def open(self) -> None:
        address = f"{self.server.url.replace('http', 'ws', 1)}api/kernels/{self.id}/channels"
        self.socket = websocket.create_connection(
            f"{address}?session_id={uuid.uuid4().hex}", header=[self.server.header], timeout=DEADLINE_S
        )

    def start(self, code: str) -> str:
        """Start a cell; return the message id for `finish`."""
        id_ = uuid.uuid4().hex
        header = {"msg_id": id_, "msg_type": "execute_request"}
        header |= {"username": "", "session": "", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        return id_

    def receive(self, id_: str, *kinds: str) -> dict[str, Any]:
        """Return the next message of these kinds that belongs to a cell."""
        while True:
            message = json.loads(self.socket.recv())
            if message["parent_header"].get("msg_id") == id_ and message["msg_type"] in kinds:
                return message

    def finish(self, id_: str) -> str:
        """Return what a cell printed and its errors, once it has ended."""
        output = []
        while True:
            message = self.receive(id_, "stream", "error", "status")
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    output.append(content["text"])
                case "error":
                    output.append("\n".join(unwrapped(content["traceback"], content["evalue"])))
                case _ if content["execution_state"] == "idle":
                    return "".join(output)

    def run(self, code: str) -> str:
        return self.finish(self.start(code))

    def interrupt(self) -> None:
        self.server.call("POST", f"api/kernels/{self.id}/interrupt")

    def restart(self) -> None:
        self.socket.close()
        self.server.call("POST", f"api/kernels/{self.id}/restart")
        self.open()
