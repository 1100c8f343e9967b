"""What holds hosts ends them with their owner, and not before, although its steps have faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.hosts import holder
from labkit.hosts.state import load, processes_on
from tests.cluster_fixtures import wait_until
from tests.conftest import PROGRAMS, thorough
from tests.programs.faulty import CALLS, FAULT

pytestmark = pytest.mark.clusters

# The owner: it makes hosts, starts a program on one, and says so; then it waits to be killed.
OWNER = """
import os, subprocess
from labkit import hosts
from labkit.hosts import control
from labkit.hosts.namespaces import FOLDER

control.HOLDER = "tests.programs.faulty_holder"
hosts.up(2, owner=os.getpid())
agent = os.environ[FOLDER] + "/agent"
subprocess.Popen([agent, "lab0", "exec sleep 1000"], start_new_session=True, stdout=subprocess.DEVNULL)
print("up", flush=True)
input()
"""


@pytest.mark.parametrize("kind", ["often", thorough("delay")])  # with errors each time, hosts cannot end
@pytest.mark.parametrize("step", holder.STEPS)
def test_hosts_end_with_their_owner_while_a_step_of_their_holder_fails(
    folder: Path, tmp_path: Path, step: str, kind: str
) -> None:
    calls = tmp_path / "calls"
    fault = {"where": "holder", "module": "labkit.hosts.holder", "owner": "", "step": step, "kind": kind}
    variables = {
        "PYTHONPATH": str(PROGRAMS.parent.parent),
        FAULT: json.dumps(fault),
        CALLS: str(calls),
    }
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"up\n"
        state = load()
        assert state is not None
        wait_until(lambda: processes_on(state), "the program on the host")
        if step == "has_ended":
            wait_until(calls.exists, "a fault")
        assert state.alive()
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists() and not processes_on(state), "no hosts and no program on them")
    wait_until(lambda: not state.alive(), "the holder has ended")  # it removes the folder last of all
    assert calls.exists(), "the step was not called"
