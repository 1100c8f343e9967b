"""Real kernels, clusters and servers for the tests, each in a profile folder of its own."""

from __future__ import annotations

import glob
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbformat.v4 import output_from_msg

from jobs import wait_until
from labkit.cluster.output import tagged
from mpiwatch import processes

DEADLINE_S = 150.0  # longer than that of connect(), whose error then says what it waited for
SWEPT_S = 40.0  # for a supervisor to remove what its killed ranks have left
ENDED_S = 10.0  # for supervisors to end all processes of a test; the test may have killed the supervisors
Start = Callable[..., "subprocess.Popen[str]"]  # the fixture `ipcluster`
# Say something to each port as a client without a key, listen to all of them, and print what comes back.
STRANGER = """import sys, zmq
ends = []
for port in sys.argv[2:]:
    for kind in (zmq.DEALER, zmq.SUB):
        ends.append(zmq.Context.instance().socket(kind))
        ends[-1].connect(f"tcp://{sys.argv[1]}:{port}")
        if kind == zmq.SUB:
            ends[-1].subscribe(b"")
        else:
            ends[-1].send_multipart([b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"])
poller = zmq.Poller()
for end in ends:
    end.linger = 0
    poller.register(end, zmq.POLLIN)
for end, _ in poller.poll(3000):
    print(end.recv_multipart())
print("asked", len(sys.argv) - 2)
"""


def is_mpiexec(process: psutil.Process) -> bool:
    """Return whether a process is MPICH's or Open MPI's mpiexec."""
    try:
        return process.name() in ("mpiexec", "mpirun", "prterun", "prte")
    except psutil.NoSuchProcess:
        return False


def unwrapped(traceback: list[str], message: str) -> list[str]:
    """Return what an error shows, with the message's own line breaks if labkit has broken its long lines."""
    shown, *rest = traceback or [""]
    for whole in (message, f"{shown.partition(':')[0]}: {message}"):
        if shown.split() == whole.split():
            return [whole, *rest]
    return traceback


def by_rank(output: str) -> str:
    """Return the output of a `%%px` cell with what ranks have printed alike once for each of them."""
    parts: dict[int, list[str]] = {}
    ranks = [0]
    for line in output.splitlines():
        if tag := re.match(r"\[(?:stdout:|ranks )([\d–, ]+)\](?: |$)", line):
            ranks = []
            for numbers in tag[1].split(", "):
                first, _, last = numbers.partition("–")
                ranks += range(int(first), int(last or first) + 1)
        text = line[tag.end() :] if tag else line
        for rank in ranks if text or not tag else ():
            parts.setdefault(rank, []).append(text)
    texts = {rank: "\n".join(lines) for rank, lines in sorted(parts.items())}
    return "".join(tagged(f"[stdout:{rank}]", text) for rank, text in texts.items())


@dataclass
class World:
    """A profile folder, and every process that has it in its environment."""

    folder: Path
    env: dict[str, str] = field(init=False)
    others: set[str] = field(init=False)
    files: processes.JobFiles = field(init=False)

    def __post_init__(self) -> None:
        self.env = {**os.environ, "IPYTHONDIR": str(self.folder)}
        self.others = set(processes.forgotten_flight_recorders())  # by jobs before this world
        self.files = processes.JobFiles()

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                found += [process] * (process.environ().get("IPYTHONDIR") == str(self.folder))
        return found

    def commands(self) -> list[list[str]]:
        commands = []
        for process in self.processes():
            with suppress(psutil.Error):
                commands.append(process.cmdline())
        return commands

    def look(self) -> None:
        """Note which segments the processes use: afterwards, they do not tell which were theirs."""
        self.files.look(lambda: [process.pid for process in self.processes()])

    def kill(self) -> None:
        """Kill all processes with SIGKILL, and those that they start meanwhile."""

        def none_is_left() -> bool:
            found = self.processes()
            self.files.look(lambda: [process.pid for process in found])
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not found

        # The environment of a process inside exec() cannot be read: look twice.
        wait_until(lambda: none_is_left() and none_is_left(), "all processes gone", 40)

    def end(self) -> None:
        """Let supervisors end what the kernels have left; then kill what is there, and sweep."""
        starters = [process.pid for process in self.processes() if is_mpiexec(process)]
        deadline = time.monotonic() + ENDED_S
        while self.processes() and time.monotonic() < deadline:
            self.look()
            time.sleep(0.1)
        self.kill()
        for pid in starters or [0]:
            processes.sweep(self.files, pid)

    def cluster_files(self) -> list[str]:
        return glob.glob(f"{self.folder}/profile_*/security/*.json")

    def wait_until_empty(self) -> None:
        """Wait until all processes have ended; check that no file and no segment of theirs is left."""
        wait_until(lambda: not self.processes(), "all processes gone", 40)
        left = self.cluster_files() + glob.glob(f"{self.folder}/profile_*/log/*")
        assert left == [], f"left behind: {left}"
        # Another test's job, just killed, may leave something there until its supervisor has removed it.
        wait_until(
            lambda: {*self.files.left(), *processes.forgotten_flight_recorders()} <= self.others,
            "no segment left behind",
            SWEPT_S,
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Kernel:
    """A Jupyter kernel, as a notebook has one."""

    def __init__(self, world: World, notebooks: Path | None = None) -> None:
        """Start a kernel; `notebooks` is the folder of its notebook, by default the tests' own."""
        self.world = world
        self.error = ""  # the last cell's that raised one, as the notebook shows it
        # Unix sockets: a port that is free when it is chosen may be an engine's when the kernel listens.
        self.folder = tempfile.TemporaryDirectory()
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self.folder.name}/kernel")
        self.manager.start_kernel(env=world.env, cwd=notebooks)
        self.messages: list[dict[str, Any]] = []  # of the last cell, from the kernel to the notebook
        self.client = self.connect()

    def connect(self) -> BlockingKernelClient:
        client = self.manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=DEADLINE_S)
        return client

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def start(self, code: str, metadata: dict[str, object] | None = None) -> str:
        """Start a cell, with metadata as JupyterLab sends them; return the message id for `finish`."""
        self.messages = []
        content = {
            **{"code": code, "silent": False, "store_history": True, "user_expressions": {}},
            **{"allow_stdin": False, "stop_on_error": True},
        }
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, message: str, until: str | None = None) -> str:
        """Return the cell's output and error once it has ended, or once it has shown `until`."""
        output = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                reply = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if reply["parent_header"].get("msg_id") != message:
                continue
            self.messages.append(reply)
            content = reply["content"]
            match reply["msg_type"]:
                case "stream":
                    output.append(content["text"])
                case "execute_result" | "display_data" | "update_display_data":
                    output.append(content["data"].get("text/plain", "") + "\n")
                case "error":
                    self.error = "\n".join(unwrapped(content["traceback"], content["evalue"]))
                    output.append(f"{self.error}\n")
                case "status" if content["execution_state"] == "idle":
                    self.world.look()
                    return "".join(output)
            if until is not None and until in "".join(output):
                self.world.look()
                return "".join(output)
        pytest.fail(f"a cell did not end within {DEADLINE_S:.0f} s; its output: {''.join(output)}")

    def run(self, code: str, metadata: dict[str, object] | None = None) -> str:
        return self.finish(self.start(code, metadata))

    def saved_outputs(self) -> list[dict[str, Any]]:
        """Return the outputs of the last cell as JupyterLab saves them in the notebook."""
        outputs: list[dict[str, Any]] = []
        displays: dict[str, dict[str, Any]] = {}
        clear_first = False
        for message in self.messages:
            kind, content = message["msg_type"], message["content"]
            display = content.get("transient", {}).get("display_id", "")
            if kind == "clear_output":
                clear_first = content["wait"]
                if not clear_first:
                    outputs.clear()
            elif kind == "update_display_data" and display in displays:
                displays[display].update(data=content["data"], metadata=content["metadata"])
            elif kind in ("stream", "display_data", "execute_result", "error"):
                if clear_first:
                    outputs.clear()
                    clear_first = False
                last = outputs[-1] if outputs else {}
                if kind == "stream" and last.get("name") == content["name"]:
                    last["text"] += content["text"]
                else:
                    outputs.append(dict(output_from_msg(message)))
                displays[display] = outputs[-1]
        return outputs

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.client = self.connect()

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.folder.cleanup()


def a_world(folder: Path) -> Iterator[World]:
    """Yield a world; afterwards end all of its processes."""
    world = World(folder)
    yield world
    world.end()


def a_kernel(world: World) -> Iterator[Kernel]:
    """Yield a kernel; end it afterwards."""
    kernel = Kernel(world)
    yield kernel
    kernel.end()


def names_engines(path: str) -> bool:
    """Return whether a cluster file has an entry for a set of engines; the file may just be removed."""
    with suppress(FileNotFoundError):
        return '"sets": {"' in Path(path).read_text()
    return False


def clusters(world: World) -> Iterator[Start]:
    """Yield a function that starts a cluster as typed and returns when its engines start; kill all later."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        before = [path for path in world.cluster_files() if names_engines(path)]
        process = world.start("ipyparallel.cluster", "start", *arguments)
        started.append(process)
        wait_until(
            lambda: any(names_engines(path) for path in world.cluster_files() if path not in before),
            "a cluster file that names engines",
        )
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from a_world(tmp_path / "ipython")


@pytest.fixture
def kernel(world: World) -> Iterator[Kernel]:
    yield from a_kernel(world)


@pytest.fixture
def ipcluster(world: World) -> Iterator[Start]:
    yield from clusters(world)
