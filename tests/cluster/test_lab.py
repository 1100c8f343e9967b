"""`labkit lab` and JupyterLab's cluster panel, with a real server."""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cluster_fixtures import DEADLINE_S, Kernel, World, wait_until

ROOT = Path(__file__).parents[2]


def get(url: str, token: str, data: dict | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    if data is not None:
        request.data = json.dumps(data).encode()
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_labkit_lab_serves_the_first_notebook_and_leaves_nothing(
    world: World, tmp_path: Path, new_kernel: Callable[[], Kernel], signum: signal.Signals
) -> None:
    """A notebook uses the engines in the first case only: that takes a kernel."""
    world.env["JUPYTER_RUNTIME_DIR"] = str(tmp_path / "runtime")
    output = tmp_path / "output"
    with output.open("w") as file:
        lab = subprocess.Popen(
            [sys.executable, "-m", "labkit", "lab", "-n", "2"],
            cwd=ROOT,
            env=world.env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: "Ctrl-C ends" in output.read_text() or lab.poll() is not None, "the lab has started"
        )
        printed = output.read_text()
        assert "2 ranks, one MPI world" in printed
        url, token = re.search(r"JupyterLab: (\S+)\?token=(\w+)", printed).groups()
        assert url.endswith("/lab/tree/notebooks/00_meet_the_cluster.ipynb")
        assert get(url, token)[0] == 200
        assert get(url.replace("/lab/tree/", "/api/contents/"), token)[0] == 200
        if signum == signal.SIGINT:
            kernel = new_kernel()
            assert "found running" in kernel.run("from labkit.cluster import connect\nrc = connect(2)")
            kernel.end()
    finally:
        os.kill(lab.pid, signum)
        code = lab.wait(DEADLINE_S)
    assert code == {signal.SIGINT: 0, signal.SIGTERM: 128 + signum, signal.SIGKILL: -signum}[signum]
    world.wait_until_empty()
    left = [name for kind in ("kernel", "jpserver") for name in glob.glob(f"{tmp_path}/runtime/{kind}-*")]
    assert left == []


def test_the_cluster_panel_starts_ranks_that_connect_finds(
    world: World, new_kernel: Callable[[], Kernel]
) -> None:
    """JupyterLab's panel uses the interface of ipyparallel's server extension; so does this test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    world.env["JUPYTER_TOKEN"] = token
    server = world.start("jupyter_server", f"--port={port}", "--no-browser", "--allow-root")
    url = f"http://127.0.0.1:{port}/ipyparallel/clusters"

    def is_answering() -> bool:
        try:
            return get(url, token)[0] == 200
        except OSError:
            return False

    try:
        wait_until(is_answering, "the server answers")
        created = json.loads(get(url, token, {"cluster_id": "panel", "n": 2})[1])
        get(f"{url}/{quote(created['id'], safe='')}", token, {})
        kernel = new_kernel()
        assert "found running: cluster-panel" in kernel.run(
            "from labkit.cluster import connect\nrc = connect(2)"
        )
        kernel.run("%px mark = rank")
        kernel.restart()
        assert "found running: cluster-panel" in kernel.run(
            "from labkit.cluster import connect\nrc = connect(2)"
        )
        assert kernel.run("print(rc[:]['mark'])") == "[0, 1]\n"
        kernel.end()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    world.wait_until_empty()
