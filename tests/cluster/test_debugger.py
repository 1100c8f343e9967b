"""One click on JupyterLab's debugger: connect(), checks and the student's own programs work as before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.cluster.shared import world
from tests.cluster_fixtures import DEADLINE_S, Kernel, World

pytestmark = pytest.mark.clusters

__all__ = ["world"]
# What JupyterLab says of itself when its debugger is switched on.
CLIENT = {
    "clientID": "jupyterlab",
    "clientName": "JupyterLab",
    "adapterID": "",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsVariablePaging": True,
    "supportsRunInTerminalRequest": True,
    "locale": "en",
}
numbers = count(1)


def ask(kernel: Kernel, command: str, **arguments: object) -> dict[str, Any]:
    """Send a request of the debugger on the control channel, as JupyterLab does; return the answer."""
    content = {"type": "request", "seq": next(numbers), "command": command, "arguments": arguments}
    message = kernel.client.session.msg("debug_request", content)
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=DEADLINE_S)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            assert reply["content"]["success"], reply["content"]
            return dict(reply["content"])


@pytest.fixture(scope="module")
def kernel(world: World) -> Iterator[Kernel]:
    """Return a kernel whose debugger has been switched on."""
    kernel = Kernel(world)
    ask(kernel, "debugInfo")
    ask(kernel, "initialize", **CLIENT)
    ask(kernel, "attach")
    assert ask(kernel, "debugInfo")["body"]["isStarted"]
    yield kernel
    kernel.end()


def test_connect_and_checks_work(kernel: Kernel) -> None:
    kernel.run("from labkit.exercises import check")
    kernel.run("def my_items(n, rank, size):\n    return list(range(rank, n, size))")
    assert "my_items: correct" in kernel.run("my_items = check(my_items)")
    assert "2 ranks, one MPI world" in kernel.run("from labkit.cluster import connect\nrc = connect(2)")


def test_connect_works_after_a_death(kernel: Kernel) -> None:
    kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    said = kernel.run("%%px\nimport os\nif rank == 1:\n    os._exit(3)\ncomm.Barrier()")
    assert "RankDied: rank 1 called os._exit(3) at cell line 4" in said, said
    assert "2 ranks, one MPI world" in kernel.run("rc = connect(2)")
    assert kernel.run("%px print(comm.allreduce(1))") == "[ranks 0, 1] 2\n"


def test_programs_that_a_cell_starts_do_not_wait_for_a_debugger(kernel: Kernel) -> None:
    run = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(6 * 7)'], timeout=60)"
    kernel.run(run)
    fork = "import os\npid = os.fork()\nif pid == 0:\n    os._exit(7)\nprint(os.waitpid(pid, 0)[1] >> 8)"
    assert kernel.run(fork) == "7\n"
    ask(kernel, "disconnect", restart=False, terminateDebuggee=False)
    assert "TimeoutExpired" not in kernel.run(run)
