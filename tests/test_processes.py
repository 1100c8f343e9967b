"""mpiwatch.processes: which processes live, who started them, and that children end with their parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from mpiwatch import processes
from mpiwatch.processes import LINUX, alive, descendants, wait_until_read
from tests.cluster_fixtures import wait_until


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert alive(os.getpid()) and alive(child.pid)
    assert child.stdin
    child.stdin.close()
    wait_until(lambda: not alive(child.pid), "the child has ended and is a zombie")
    os.kill(child.pid, 0)  # the system still knows it
    child.wait()
    assert not alive(child.pid)


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert alive(1)


def test_descendants_include_grandchildren() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=1); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline() == b"1\n"  # the grandchild runs
        (grandchild,) = descendants(child.pid)
        assert {child.pid, grandchild} <= descendants(os.getpid())
        child.communicate(b"\n")


@pytest.mark.skipif(not LINUX, reason="other kernels cannot tie a process to its parent")
def test_a_child_ends_with_its_killed_parent() -> None:
    program = (
        "import os, signal\n"
        "from mpiwatch.processes import die_with_parent\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    die_with_parent(signal.SIGKILL, parent)\n"
        "    print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not alive(child), "the child has ended")


def test_the_supervisor_imports_only_the_standard_library_and_mpiwatch() -> None:
    command = [*processes.supervised(), "true"]
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()[1:]]
    others = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"mpiwatch"}


def test_wait_until_read_waits_for_the_reader_of_a_pipe_until_the_deadline() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"an error")
    wait_until_read(writer, deadline_s=0.01)  # nobody reads
    waiting = threading.Thread(target=wait_until_read, args=(writer, 600.0))
    waiting.start()
    assert os.read(reader, 100) == b"an error"
    waiting.join(60)
    assert not waiting.is_alive()
    os.close(reader)
    os.close(writer)
    with open(os.devnull, "w") as no_pipe:
        wait_until_read(no_pipe.fileno(), deadline_s=600.0)
