"""Strict mode: a whole program, from its command line to its exit code, and correct calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiwatch.launch import STRICT_EXIT_CODE, mpiexec
from mpiwatch.processes import is_mpich

Run = Callable[..., subprocess.CompletedProcess[str]]
WATCHED = "-m", "mpiwatch"
STRICT = *WATCHED, "--strict"
HEAD = """import os, sys, threading
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
"""
# Correct programs, and what each rank prints.
CORRECT = {
    "futures": (
        "from mpi4py.futures import MPICommExecutor\n"
        "with MPICommExecutor(comm, root=0) as executor:\n"
        "    if executor is not None:\n"
        "        assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))\n"
        "print('all is well')\n",
        "all is well",
    ),
    "finalize": ("comm.Barrier()\nMPI.Finalize()\nprint('all is well')\n", "all is well"),
    "keywords": (
        "request = comm.issend(obj=rank, dest=1 - rank, tag=2)\n"
        "assert comm.recv(source=1 - rank, tag=2) == 1 - rank\n"
        "request.wait()\n"
        "if rank == 0:\n    comm.ssend(obj=1, dest=1)\nelse:\n    comm.recv(buf=None, source=0)\n"
        "print('all is well')\n",
        "all is well",
    ),
    "idup": (
        "other, made = comm.Idup()\nmade.Wait()\n"
        "taken = np.zeros(4)\n"
        "request = other.Isend(np.full(4, float(rank)), dest=1 - rank)\n"
        "other.Recv(taken, source=1 - rank)\n"
        "request.Wait()\n"
        "assert other.sendrecv(rank, 1 - rank, source=1 - rank) == 1 - rank == taken[3]\n"
        "other.Free()\n"
        "print('all is well')\n",
        "all is well",
    ),
    "threads": (
        "sent, taken = np.arange(100_000), np.zeros(100_000, np.int64)\n"
        "receiving = threading.Thread(target=comm.Recv, args=(taken, rank, 3))\n"
        "receiving.start()\n"
        "threading.Event().wait(0.05)\n"  # the receive waits before there is a thread that will send
        "sending = threading.Timer(1.0, comm.Send, args=(sent, rank, 3))\n"
        "sending.start()\n"
        "sending.join()\n"
        "receiving.join()\n"
        "print((sent == taken).all())\n",
        "True",
    ),
    "server": (
        "def serve():\n"
        "    for _ in range(4 * size):\n"
        "        status = MPI.Status()\n"
        "        number = comm.recv(source=MPI.ANY_SOURCE, tag=1, status=status)\n"
        "        comm.ssend(number + 1, dest=status.source, tag=2)\n"
        "if rank == 0:\n"
        "    server = threading.Thread(target=serve)\n"
        "    server.start()\n"
        "for number in range(4):\n"
        "    comm.ssend(number, dest=0, tag=1)\n"
        "    assert comm.recv(source=0, tag=2) == number + 1\n"
        "comm.Barrier()\n"
        "if rank == 0:\n"
        "    server.join()\n"
        "print('all is well')\n",
        "all is well",
    ),
    "long-lived": (
        "class Case:\n    comm = comm.Dup()\nrequest = comm.Send_init(np.zeros(4), dest=0)\n"
        "assert request != MPI.REQUEST_NULL\nprint('all is well')\n",
        "all is well",
    ),
    # While a rank probes in a loop, or tests a collective, its posted receives must go on.
    "probes in a loop": (
        "if rank == 0:\n"
        "    comm.Send(np.zeros(1), 1, 0)\n"
        "    comm.Send(np.ones(1), 1, 9)\n"
        "else:\n"
        "    first, second = np.empty(1), np.empty(1)\n"
        "    request = comm.Irecv(first, 0, 0)\n"
        "    while not comm.Iprobe(0, 9):\n        pass\n"
        "    comm.Recv(second, 0, 9)\n"
        "    request.Wait()\n"
        "    assert second[0] == 1\n"
        "print('all is well')\n",
        "all is well",
    ),
    "tests of a barrier in a loop": (
        "taken = np.empty(1)\n"
        "request = comm.Irecv(taken, 0) if rank else MPI.REQUEST_NULL\n"
        "if rank == 0:\n    comm.Send(np.ones(1), 1)\n"
        "barrier = comm.Ibarrier()\n"
        "while not barrier.Test():\n    pass\n"
        "request.Wait()\n"
        "print('all is well')\n",
        "all is well",
    ),
    "persistent requests one after the other": (
        "other, taken = 1 - rank, np.empty((2, 1))\n"
        "requests = [comm.Recv_init(taken[k], other, k) for k in range(2)]\n"
        "MPI.Prequest.Startall(requests)\n"
        "sends = [comm.Isend(np.full(1, float(k)), other, k) for k in range(2)]\n"
        "done = [MPI.Request.Waitany(requests) for _ in range(2)]\n"
        "assert sorted(done) == [0, 1], done\n"
        "assert MPI.Request.Waitany(requests) == MPI.UNDEFINED\n"
        "assert MPI.Request.Waitsome(requests) is None\n"
        "MPI.Request.Waitall(sends)\n"
        "for request in requests:\n    request.Free()\n"
        "mine = MPI.COMM_SELF.Send_init(np.ones(1), 0)\n"
        "other = MPI.COMM_SELF.Irecv(np.empty(1), 0)\n"
        "mine.Start()\nassert MPI.Request.Waitany([mine]) == 0\nother.Wait()\n"
        "assert MPI.Request.Waitany([mine]) == MPI.UNDEFINED\nmine.Free()\n"
        "print('all is well')\n",
        "all is well",
    ),
    "unusual arguments": (
        "comm.Isend(np.ones(1), MPI.PROC_NULL).Free()\n"
        "request = comm.irecv(100_000, 1 - rank)\n"
        "comm.send('text', 1 - rank)\n"
        "assert request.wait() == 'text'\n"
        "window = MPI.Win.Allocate(8, comm=comm)\n"
        "window.Fence()\n"
        "window.Put(bytearray(8), 1 - rank, [0, 8])\n"
        "window.Fence()\n"
        "window.Free()\n"
        "print('all is well')\n",
        "all is well",
    ),
}


@pytest.fixture
def run_text(run: Run, tmp_path: Path) -> Run:
    """Run a program that is given as text on two ranks."""

    def run_text(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(HEAD + text)
        return run(2, *options, program)

    return run_text


def test_a_program_lists_what_it_leaves_behind(run: Run, programs: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run(2, *STRICT, "--json", str(record), programs / "leaves_things_behind.py")
    assert "Strict mode found 3 errors:" in done.stdout and "Strict mode has a remark:" in done.stdout
    for line in (
        "call matching: rank 1: the message was never received: isend of a pickled object of ",
        "request lifecycle: rank 0: the request of Irecv from rank 1, tag 3 was never waited for (leaves_",
        "request lifecycle: rank 0: the request of isend to rank 1, tag 4 was never waited for (leaves_",
        "resource leak: ranks 0, 1: the communicator was never freed (leaves_things_behind.py line 7: `half",
    ):
        assert f"  {line}" in done.stdout
    assert done.returncode == STRICT_EXIT_CODE
    written = json.loads(record.read_text())
    assert written["exit_code"] == STRICT_EXIT_CODE and len(written["findings"]) == 5
    kinds = sorted(finding["kind"] for finding in written["findings"])
    leaks, sends = ["communicator not freed"] * 2, ["send not completed"]
    assert kinds == [*leaks, "other", "receive not completed", *sends]


@pytest.mark.skipif(not is_mpich(mpiexec()), reason="Open MPI's ends all ranks if one ends with a code")
def test_mpichs_mpiexec_lets_a_rank_that_ends_last_end_itself(run: Run, programs: Path) -> None:
    """It kills all ranks as soon as one has ended without telling it so. Rank 0 ends after that."""
    ends_last = (
        "import os, psutil, subprocess, sys, time\n"
        "from mpiwatch.processes import alive\n"
        "code = subprocess.call([sys.executable, *sys.argv[1:]], close_fds=False)\n"
        "if os.environ['PMI_RANK'] == '0':\n"
        "    proxy = psutil.Process().parent()\n"
        "    while sum(alive(rank.pid) for rank in proxy.children()) > 1: time.sleep(0.02)\n"
        "    while proxy.status() != psutil.STATUS_SLEEPING: time.sleep(0.02)\n"
        "print('ended with', code)\n"
        "sys.exit(code)\n"
    )
    done = run(2, "-c", ends_last, *STRICT, programs / "leaves_things_behind.py")
    assert done.stdout.count("ended with 87") == 2 and done.returncode == STRICT_EXIT_CODE, done.stdout


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_program_ends_with_its_own_exit_code(run_text: Run, name: str) -> None:
    text, line = CORRECT[name]
    done = run_text(text, *STRICT, "--deadline", "20")
    assert done.stdout.count(line) == 2 and "Strict mode found" not in done.stdout, done.stdout
    assert done.returncode == 0, done.stdout
    assert ("Strict mode has 2 remarks:" in done.stdout) == (name == "long-lived")


def test_communicators_that_are_never_freed_are_counted_in_a_remark(run_text: Run) -> None:
    done = run_text("for _ in range(3):\n    other = comm.Dup()\nsys.exit(3)\n", *STRICT)
    assert "resource leak: ranks 0, 1: 3 communicators were never freed (program.py line 7" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("options", "call"),
    [(STRICT, "comm.send(1, dest=1 - rank)"), (WATCHED, "comm.recv()"), (WATCHED, "comm.allreduce(1)")],
)
def test_a_forked_child_that_calls_mpi_gets_an_error(
    run_text: Run, options: tuple[str, ...], call: str
) -> None:
    forks = (
        "import time\n"
        "time.sleep(0.5 * rank)\n"  # so that a message of rank 0 has arrived, which is not the child's
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        f"        {call}\n"
        "    except RuntimeError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print('sum', comm.allreduce(1), flush=True)\n"
    )
    done = run_text(forks, *options)
    assert done.returncode == 0 and done.stdout.count("sum 2") == 2, done.stdout
    for rank in range(2):
        assert f"a forked child of rank {rank} called MPI, which only" in done.stdout


@pytest.mark.parametrize("options", [WATCHED, STRICT])
def test_two_threads_in_collectives_on_one_communicator_are_named(
    run_text: Run, options: tuple[str, ...]
) -> None:
    both = (
        "def add(value):\n"
        "    for _ in range(2000):\n"
        "        comm.allreduce(value)\n"
        "threads = [threading.Thread(target=add, args=(value,)) for value in range(2)]\n"
        "for each in threads:\n    each.start()\n"
        "for each in threads:\n    each.join()\n"
    )
    done = run_text(both, *options)
    assert done.returncode != 0, done.stdout  # MPICH's mpiexec may return a code of its own
    assert "called collectives on one communicator at once." in done.stdout
    assert "program.py line " in done.stdout and "`comm.Dup()`" in done.stdout
    own = both.replace("comm.allreduce", "comms[value].allreduce")
    done = run_text("comms = [comm.Dup(), comm.Dup()]\n" + own, *options)
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path) -> None:
    done = run(3, "-m", "mpiwatch", "--strict", programs / "watched_calls.py")
    assert "all calls compared" in done.stdout


DTYPES_AND_WINDOWS = """x, y = np.zeros(4, "i"), np.zeros(4, "i")
def attempt(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        print(error, flush=True)
comm.Bcast([np.zeros(4, "c16"), 8, MPI.DOUBLE])
comm.Bcast([x, 16, MPI.BYTE])
comm.Bcast([x, 4, MPI.UNSIGNED])
comm.Bcast([bytearray(32), 4, MPI.DOUBLE])
window = MPI.Win.Create(x, 4, comm=comm)
window.Fence()
window.Put([y, 2, MPI.INT], comm.rank, [2, 2, MPI.INT])
if comm.rank == 1:
    attempt(window.Put, [y, 4, MPI.INT], 0, [1, 4, MPI.INT])
    attempt(window.Rget, [y, 4, MPI.INT], 0, -1)
window.Fence()
window.Free()
memory = MPI.Alloc_mem(16)
window = MPI.Win.Create(memory, 4, comm=comm)
if comm.rank == 1:
    attempt(MPI.Free_mem, memory)
window.Free()
MPI.Free_mem(memory)
comm.Allreduce([x, 4, MPI.FLOAT], [y, 4, MPI.FLOAT])
"""


def test_datatypes_are_compared_with_arrays_and_accesses_with_windows(run_text: Run) -> None:
    done = run_text(DTYPES_AND_WINDOWS, *STRICT)
    assert "rank 1: Put uses bytes 4 to 20 of rank 0's window, which holds 16 bytes (" in done.stdout
    assert "rank 1: Rget uses bytes -4 to 12 of rank 0's window, which holds 16 bytes (" in done.stdout
    found = "rank 1: Free_mem was given the memory of a window that has not been freed (program.py"
    assert found in done.stdout
    found = "parameter matching: ranks 0, 1: Allreduce was given MPI_FLOAT for an array of int32 (program.py"
    assert "Strict mode found an error:" in done.stdout and found in done.stdout
    assert done.returncode != 0  # MPICH's mpiexec may return a code of its own


@pytest.mark.parametrize("room", ["", "bytearray(60_000), "])
def test_an_object_that_a_plain_irecv_has_no_room_for_is_an_error(run_text: Run, room: str) -> None:
    text = (
        "if rank == 0:\n    comm.send(bytes(50_000), dest=1)\n"
        f"else:\n    print(len(comm.irecv({room}source=0).wait()))\n"
    )
    if not room and not is_mpich(mpiexec()):
        pytest.skip("Open MPI does not end: rank 0's message is never received")
    done = run_text(text, *STRICT)
    if room:
        assert done.returncode == 0 and "50000" in done.stdout, done.stdout
    else:
        assert done.returncode != 0 and "irecv has room for 32768 bytes of a pickled object" in done.stdout
        assert "never waited for" not in done.stdout


def test_a_datatype_of_addresses_may_lead_into_another_array(run_text: Run) -> None:
    text = (
        "a, b = np.arange(4.0), np.arange(4.0) + 10\n"
        "away = MPI.Get_address(b) - MPI.Get_address(a)\n"
        "both = MPI.DOUBLE.Create_hindexed([4, 4], [0, away]).Commit()\n"
        "block = MPI.DOUBLE.Create_indexed_block(8, [0]).Commit()\n"
        "window = MPI.Win.Allocate(64, 8, comm=comm)\nwindow.Fence()\n"
        "if rank == 0:\n    window.Put([a, 1, both], 1, (0, 1, block))\nwindow.Fence()\n"
        "if rank == 1:\n    print(np.frombuffer(window.tomemory()).tolist())\nwindow.Fence()\n"
        "both.Free()\nblock.Free()\nwindow.Free()\n"
    )
    for options in (STRICT, ["-m", "mpiwatch"]):
        done = run_text(text, *options)
        assert done.returncode == 0 and "[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]" in done.stdout, (
            done.stdout
        )
