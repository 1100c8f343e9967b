"""What a browser does with a running `labkit lab`, without a browser."""

from __future__ import annotations

import json
import queue
import urllib.request
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from tests.cluster_fixtures import DEADLINE_S, Kernel, World, wait_until


class Server:
    """The HTTP interface of a Jupyter server."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """Return the answer's JSON, None if it has no content."""
        body = None if data is None else json.dumps(data).encode()
        header = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, body, header, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            content = answer.read()
        return json.loads(content) if content else None


class ServerKernel(Kernel):
    """A kernel of a Jupyter server with a notebook; `runtime` is the folder with its connection file."""

    def __init__(self, world: World, server: Server, notebook: str, runtime: Path) -> None:
        self.world, self.server = world, server
        model = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        self.id = server.call("POST", "api/sessions", model)["kernel"]["id"]
        self.file = runtime / f"kernel-{self.id}.json"
        self.client = self.connect()

    def connect(self) -> BlockingKernelClient:
        client = BlockingKernelClient(connection_file=str(self.file))
        client.load_connection_file()
        client.start_channels()
        wait_until(lambda: self.is_heard(client), "the kernel answers")
        return client

    def is_heard(self, client: BlockingKernelClient) -> bool:
        client.kernel_info()
        try:
            return bool(client.get_iopub_msg(timeout=1))
        except queue.Empty:
            return False

    def interrupt(self) -> None:
        self.server.call("POST", f"api/kernels/{self.id}/interrupt")

    def restart(self) -> None:
        self.client.stop_channels()
        self.server.call("POST", f"api/kernels/{self.id}/restart")
        self.client = self.connect()
