"""Watched communicators on real ranks: they give the results of mpi4py's own and report what is wrong."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from corpus.program import Program
from corpus.run_corpus import run as run_corpus
from jobs import thorough
from programs import random_programs
from programs.random_programs import FAULTS

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("n", [14, thorough(98)])
def test_each_fault_in_random_cells_is_reported_with_its_rank_and_nothing_else(n: int) -> None:
    """On a busy machine, a rank of a correct program may be late for more than a short deadline."""
    made = [random_programs.programs(seed, 4, 1.0) for seed in range(n)]
    for outcome in run_corpus([right for right, _, _ in made], deadline_s=20.0, mode="cells"):
        assert not outcome.how, outcome
    outcomes = run_corpus([wrong for _, wrong, _ in made], deadline_s=2.0, mode="cells")
    for (_, wrong, culprit), outcome in zip(made, outcomes, strict=True):
        said = "\n".join(outcome.said)
        # Ranks that are stuck inside MPI end with their job, of which only an exit code is known here.
        is_named = random_programs.is_named(culprit, said) or "exit code " in said
        assert outcome.how and is_named, f"{wrong}, rank {culprit}: {said}"


def test_each_circle_of_messages_in_random_cells_is_reported_at_once() -> None:
    """A report at the deadline does not look for circles."""
    seeds = range(FAULTS.index("circle"), 8 * len(FAULTS), len(FAULTS))
    circles = [random_programs.programs(seed, 4, 60.0)[1] for seed in seeds]
    for outcome in run_corpus(circles, deadline_s=60.0, mode="cells"):
        assert random_programs.CIRCLE.search("\n".join(outcome.said)), outcome


@pytest.mark.parametrize("p", [1, 3, thorough(4)])
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path, p: int) -> None:
    assert run(p, programs / "watched_calls.py").stdout.strip() == "all calls compared"


@pytest.mark.parametrize("p", [thorough(2), 3])
def test_ranks_exit_after_a_hang_that_left_a_message(run: Run, programs: Path, p: int) -> None:
    """MPICH aborts in MPI_Finalize if a large message was never received."""
    done = run(p, programs / "message_left_at_exit.py")
    assert done.stdout.strip() == str([True] + [False] * (p - 1))
    assert done.returncode == 0


REPEATED = """
import numpy as np
from mpi4py import MPI
from mpiwatch.communicators import watch

comm, x, said = watch(), np.ones(3), []
comm.deadline_s = 5.0
for _ in range(4):
    try:
        if comm.rank == 0:
            comm.Barrier()
        else:
            comm.Allreduce(MPI.IN_PLACE, x)
    except Exception as error:
        said.append(str(error).splitlines()[0].split()[-1])
print(said, flush=True)
"""


@pytest.mark.parametrize("p", [2, 3, thorough(5)])
def test_each_rank_is_told_once_of_each_report_although_all_catch_it(
    run: Run, tmp_path: Path, p: int
) -> None:
    program = tmp_path / "repeated.py"
    program.write_text(REPEATED)
    done = run(p, program)
    assert done.stdout.count("['#1.', '#2.', '#3.', '#4.']") == p, done.stdout


FREED = """
import time

from mpi4py import MPI
from mpiwatch.communicators import watch

comm, parts = watch(), []
comm.deadline_s = 1.0
for calls in 3, 0, 0:
    part = comm.Dup()
    for _ in range(calls):
        part.Barrier()
    parts.append(str(part._channel.row))
    part.Free()
part = comm.Dup()
print("row", *parts, part._channel.row, flush=True)
try:
    until_s = time.monotonic() + 60
    while comm.rank == 0 and time.monotonic() < until_s and not comm.watch.recorder.head.report_bytes:
        time.sleep(0.01)
    part.Barrier()
except Exception as error:
    print("report", error, flush=True)
"""


def test_a_report_shows_no_call_of_a_freed_communicator(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "freed.py"
    program.write_text(FREED)
    said = run(3, program).stdout
    assert len(set(re.findall(r"row (\S+) (\S+) (\S+) (\S+)", said)[0])) == 1, said  # they had the same row
    assert "never joined collective #1 (Barrier)" in said and "Free" not in said, said


LEFT_AND_RIGHT = "left, right, ones = (rank - 1) % size, (rank + 1) % size, np.ones(4)\n"
EVERY_WAIT = """sent = comm.isend({"from": rank}, right, 2)
assert comm.irecv(source=left, tag=2).wait() == {"from": left}
sent.wait()
pair = [comm.irecv(source=left, tag=2), comm.isend([rank], right, 2)]
assert MPI.Request.waitall(pair)[0] == [left]
pair = [comm.irecv(source=left, tag=2), comm.isend([rank], right, 2)]
assert sorted(MPI.Request.waitany(pair)[0] for _ in pair) == [0, 1]
pair, done = [comm.Irecv(y, left, 2), comm.Isend(ones * rank, right, 2)], []
while (some := MPI.Request.Waitsome(pair)) is not None:
    done += some
assert sorted(done) == [0, 1] and (y == left).all()
pair = [comm.Recv_init(y, left, 5), comm.Send_init(ones, right, 5)]
for _ in range(2):
    MPI.Prequest.Startall(pair)
    MPI.Request.Waitall(pair)
for request in pair:
    request.Free()
assert (y == 1).all() and isinstance(pair[0], MPI.Prequest)
# A collective that a hang has left cannot be cancelled; Open MPI's Dup makes such collectives itself.
own = comm.Create_group(comm.Get_group())
own.Iallreduce(ones, y).Wait()
assert (y == size).all()
assert type(sent) is MPI.Request and isinstance(MPI.REQUEST_NULL, MPI.Request) and not sent
"""
# Waits for requests -> the program, and what the report says; empty if it ends well.
WAITS = {
    "every way to wait": (EVERY_WAIT, ""),
    "a collective that rank 1 never calls": (
        "if rank != 1:\n    request = comm.Iallreduce(ones, y)\n    request.Wait()",
        r"^ranks 0, 2 are waiting for Iallreduce to complete, rank 1 is not.*line 9",
    ),
    "a message that has another tag": (
        "receiving = comm.Irecv(y, left, 7)\n"
        "MPI.Request.Waitall([receiving, comm.Isend(ones, right, 8 if rank == 1 else 7)])",
        r"^rank 2 is waiting for its Irecv: no matching send from rank 1 \(tag 7\).*line 8",
    ),
    "a circle": ("comm.Irecv(y, left, 3).Wait()", "in a circle: each waits in Irecv"),
    "a persistent request": (
        "if rank == 0:\n    request = comm.Recv_init(y, 2, 5)\n    request.Start()\n    request.Wait()",
        r"rank 0 is waiting for its Recv_init \(from rank 2, tag 5\).*line 9.*line 11",
    ),
    "any of two": (
        "if rank == 0:\n    MPI.Request.Waitany([comm.irecv(source=1, tag=1), comm.irecv(source=2, tag=1)])",
        "rank 0 is waiting for its irecv",
    ),
    "every way to wait, after hangs": (EVERY_WAIT, ""),
}


def test_a_wait_for_a_request_that_cannot_complete_is_reported() -> None:
    programs = [Program(what, "", not said, LEFT_AND_RIGHT + text, 3) for what, (text, said) in WAITS.items()]
    for outcome in run_corpus(programs, mode="cells"):
        pattern, said = WAITS[outcome.program.name][1], "\n".join(outcome.said)
        assert bool(said) == bool(pattern) and re.search(pattern, said, re.DOTALL), (
            f"{outcome.program.name}: {said}"
        )
