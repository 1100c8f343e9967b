"""mpiwatch.processes: which processes live, what a supervisor imports, and what a launcher has read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from mpiwatch import processes
from mpiwatch.processes import alive, wait_until_read
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
