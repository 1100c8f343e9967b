"""Another user of the machine connects to all ports of a cluster, and learns nothing of its cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest

from mpiwatch.processes import LINUX
from tests.cluster_fixtures import Kernel, Start, World, is_mpiexec

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not LINUX or os.getuid() != 0, reason="only root can start another user's program"),
]
SECRET = "".join(["xyzzy", "42"])  # the cells compute it, so that their text does not contain it

# It subscribes to each port, and sends a request to each. It drops root's rights after its imports, since
# another user may not be able to read this Python.
STRANGER = """
import contextlib, json, os, sys, threading, zmq
from zmq.utils.monitor import recv_monitor_message
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sockets, waiting, poller = [], set(), zmq.Poller()
SETTLED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED, *(
    getattr(zmq, name) for name in dir(zmq) if name.startswith("EVENT_HANDSHAKE_FAILED"))
context = zmq.Context()
for host, port in json.loads(sys.argv[1]):
    for kind in zmq.SUB, zmq.DEALER:
        socket = context.socket(kind)
        socket.linger = 0
        if kind == zmq.SUB:
            socket.subscribe(b"")
        monitor = socket.get_monitor_socket()
        socket.connect(f"tcp://{host}:{port}")
        if kind == zmq.DEALER:
            with contextlib.suppress(zmq.Again):  # the port may have refused the connection already
                socket.send_multipart([b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"], zmq.NOBLOCK)
        sockets.append(socket)
        waiting.add(monitor)
        poller.register(monitor, zmq.POLLIN)
# MPI's ports answer no one, so this wait has a deadline.
while waiting and (ready := poller.poll(3000)):
    for monitor, _ in ready:
        if recv_monitor_message(monitor)["event"] in SETTLED:
            waiting.discard(monitor)
            poller.unregister(monitor)
print("listening", flush=True)
sys.stdin.readline()
heard = []
for socket in sockets:
    while socket.poll(20):
        heard.append(b"|".join(socket.recv_multipart()))
print(json.dumps([len(sockets), b"".join(heard).decode(errors="replace")]), flush=True)
os._exit(0)
"""


def listening(world: World) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return the addresses on which a world's launcher listens, and those of its other processes."""
    launchers, others = set(), set()
    for process in world.processes():
        found = {
            (each.laddr.ip, each.laddr.port)
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        }
        (launchers if is_mpiexec(process) else others).update(found)
    return launchers, others - launchers  # ranks inherit a socket of MPICH's mpiexec


def test_another_user_reads_nothing_from_any_port(world: World, kernel: Kernel, ipcluster: Start) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    output = kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    assert "connected to the running cluster" in output
    launchers, others = listening(world)
    assert others and {host for host, _ in others} == {"127.0.0.1"}
    ports = [("127.0.0.1" if host in ("0.0.0.0", "::") else host, port) for host, port in launchers | others]
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, json.dumps(ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as stranger:
        assert stranger.stdout and stranger.stdout.readline() == "listening\n"
        for _ in range(3):
            assert SECRET in kernel.run('%%px\nprint("xyzzy" + str(6 * 7), comm.allreduce(rank))')
        said, _ = stranger.communicate("\n", timeout=120)
    count, heard = json.loads(said)
    assert count == 2 * len(ports) and "xyzzy" not in heard and heard == ""


def test_another_user_cannot_open_the_files_of_a_cluster(world: World, kernel: Kernel) -> None:
    assert "2 ranks" in kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    recorder = kernel.run(
        "from labkit.cluster import connection\nprint(connection.last_claim.owner().recorder)"
    )
    paths = [*world.cluster_files(), recorder.strip(), f"{recorder.strip()}-stack"]
    assert len(paths) >= 5
    assert {oct(os.stat(path).st_mode & 0o077) for path in paths if "cluster-" not in path} == {"0o0"}
