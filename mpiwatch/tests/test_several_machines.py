"""Ranks on several machines: faults are reported as on one machine, with ranks and hosts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(("p", "ranks"), [(4, 2), pytest.param(5, 2, marks=pytest.mark.thorough)])
def test_waits_that_end_by_themselves(run: Run, programs: Path, p: int, ranks: int) -> None:
    done = run(p, programs / "on_machines.py", ranks, programs / "hangs_between_machines.py")
    assert done.returncode == 0, done.stdout
    lines = [
        line for line in done.stdout.splitlines() if line.startswith("[")
    ]  # MPICH may print more when it ends
    said = {name: (title, who) for name, title, who in map(json.loads, lines)}
    way = " → ".join(map(str, [0, *range(p - 1, -1, -1)]))
    assert said["circle"] == (
        f"ranks {way} wait for each other in a circle: each waits in recv for a message from the next.",
        [True] * p,
    )
    assert (
        said["missing_send"][0] == f"rank 0 is waiting in recv: no matching send from rank {p - 1} (tag 7)."
    )
    assert re.match(
        r"rank 0 \(host .*\) never joined collective #\d+ \(Barrier\)", said["missing_on_one_machine"][0]
    )
    assert said["missing_on_one_machine"][1] == [rank == 1 for rank in range(p)]
    assert said["mismatch_on_one_machine"] == (
        said["mismatch_on_one_machine"][0],
        [rank < 2 for rank in range(p)],
    )
    assert "with different counts" in said["mismatch_on_one_machine"][0]
    assert said["nothing"] == ("", [False] * p)


@pytest.mark.parametrize(("p", "ranks"), [pytest.param(3, 2, marks=pytest.mark.thorough), (2, 1)])
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path, p: int, ranks: int) -> None:
    done = run(p, programs / "on_machines.py", ranks, programs / "watched_calls.py")
    assert done.stdout.strip() == "all calls compared"


def test_a_machine_that_cannot_reach_rank_0_is_named_and_nothing_hangs(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "unreachable.py"
    program.write_text(
        "from mpiwatch import communicators, machines\n"
        "from mpi4py import MPI\n"
        "from mpiwatch.communicators import watch\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "communicators.machine = lambda: (str(rank),)\n"
        "communicators.addresses = lambda: ['127.0.0.1']\n"
        "machines.Listener._admit = lambda self, sock: sock.close()  # as if behind a firewall\n"
        "comm = watch()\n"
        "assert comm.watch is None and comm.allreduce(1) == 2\n"
    )
    done = run(2, program)
    assert done.returncode == 0, done.stdout
    assert "The ranks are not watched: rank 1 cannot reach rank 0 (127.0.0.1: " in done.stdout


# How a program or a session begins and ends its recording.
BEGIN = {
    "program": "trace_recorder.begin_in_program(sys.argv[1], comm)\n",
    "session": "sessions.begin_recording(comm)\nsessions.begin_cell(comm.watch)\n",
}
END = {
    "program": "content = trace_recorder.end()\n",
    "session": "sessions.end_cell(comm.watch, None)\ncontent = sessions.end_recording()\n",
}


@pytest.mark.parametrize("how", BEGIN)
def test_ranks_of_several_machines_are_recorded_on_one_clock(run: Run, tmp_path: Path, how: str) -> None:
    """Each rank has a clock of its own, hours apart from the others; a token shows the true order."""
    program = tmp_path / "clocks.py"
    program.write_text(
        "import json, sys, time\n"
        "from mpi4py import MPI\n"
        "from mpiwatch import communicators, sessions, trace, trace_clock, trace_recorder, trace_rows\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "communicators.machine = lambda: (str(rank),)\n"
        "for module in trace_clock, trace_recorder, trace_rows:\n"
        "    module.monotonic = lambda: time.monotonic() + 5000 * rank\n"
        "comm = communicators.watch_world(deadline_s=30, in_program=True)\n"
        f"{BEGIN[how]}"
        "for step in range(20):\n"
        "    if rank == 0:\n"
        "        comm.send(step, 1)\n"
        "    comm.recv(source=rank - 1 if rank else comm.size - 1)\n"
        "    if rank:\n"
        "        comm.send(step, (rank + 1) % comm.size)\n"
        f"{END[how]}"
        "logs = MPI.Intracomm.gather(comm, trace.read(content))\n"
        "if rank == 0:\n"
        "    merged = trace.merge(logs)\n"
        "    messages = sorted(merged.messages, key=lambda message: message.send.begin_s)\n"
        "    print(json.dumps([merged.clock_error_s, merged.end_s - merged.begin_s,\n"
        "        [[m.source, m.left_s, m.arrived_s, m.completion.end_s] for m in messages]]))\n"
    )
    done = run(3, program, tmp_path / "trace.json")
    assert done.returncode == 0, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("["))
    error_s, duration_s, messages = json.loads(line)
    assert 0 < error_s < 1 and duration_s < 100, line  # and not hours
    by_rank = [[left_s for source, left_s, *_ in messages if source == rank] for rank in range(3)]
    in_order = [left_s for step in zip(*by_rank, strict=True) for left_s in step]  # as the token went
    assert all(before - after < error_s for before, after in pairwise(in_order)), (error_s, in_order)
    for _, left_s, arrived_s, seen_s in messages:
        assert left_s <= arrived_s and left_s - seen_s < error_s
