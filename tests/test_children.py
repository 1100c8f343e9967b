"""Children of the lab's commands: they end with their parent and by their deadline."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.children import ChildError, run_child
from mpiwatch.processes import alive
from tests.cluster_fixtures import wait_until

# A child that starts a process of its own, then says the pids of both and never ends.
ENDLESS = """
import os, subprocess, sys
below = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {below.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
below.wait()
"""
PARENT = """
import sys
from labkit.children import run_child
run_child([sys.executable, "-c", sys.argv[1], sys.argv[2]], deadline_s=600)
"""


def gone(pids: list[int]) -> bool:
    """Return whether none of the processes is running."""
    return not any(alive(pid) for pid in pids)


def read_pids(file: Path) -> list[int]:
    wait_until(file.exists, "the child to start")
    return [int(word) for word in file.read_text().split()]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_and_its_own_children_end_with_the_parent(signum: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    command = [sys.executable, "-c", PARENT, ENDLESS, str(file)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    pids = read_pids(file)
    assert not gone(pids)
    parent.send_signal(signum)
    parent.wait(60)
    wait_until(lambda: gone(pids), "the children to end with their parent")


def test_a_child_that_never_ends_is_ended_at_its_deadline(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    for deadline_s in (1, 5, 25):  # on a busy machine the child may need longer to start
        words = rf"did not end within {deadline_s} s and was ended: it hangs or is too slow"
        with pytest.raises(ChildError, match=words):
            run_child([sys.executable, "-c", ENDLESS, str(file)], deadline_s=deadline_s)
        if file.exists():
            break
    assert gone(read_pids(file))


def test_the_output_and_exit_status_of_a_child_are_returned() -> None:
    done = run_child([sys.executable, "-c", "print('here')"], deadline_s=60)
    assert (done.returncode, done.stdout) == (0, "here\n")
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    assert run_child(failing, deadline_s=60, check=False).returncode == 3
    with pytest.raises(ChildError, match=r"SystemExit\(3\).* failed with exit status 3"):
        run_child(failing, deadline_s=60)
