"""Hangs in unwatched calls, for each way to run code on engines: one error names the ranks.

`pytest -s` prints the seconds from the start to the message, and to four working engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from time import monotonic

import pytest
from mpi4py import MPI

from tests.cluster_fixtures import Kernel, World
from tests.conftest import thorough

pytestmark = pytest.mark.clusters

DEADLINE_S = 1
CONNECT = f"from labkit.cluster import connect\nrc = connect(4, deadline_s={DEADLINE_S})"
FUNCTION = """def f(*_):
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    if comm.rank != 2:
"""
IMPORTS = "from mpi4py import MPI\nimport ctypes\nx = np.ones(4)\n"
WINDOW = "MPI.Win.Allocate(8, comm=comm)"
BARRIER_IN_C = """lib = ctypes.CDLL(MPI.__file__)
handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
if rank != 2:
    lib.MPI_Barrier(handle.from_address(MPI._addressof(comm)))"""

# Cells, and patterns of the message. The ranks stay usable only where nothing is stuck inside MPI.
STUCK_IN_C = {
    "a window": (
        f"%%px\n{IMPORTS}if rank != 2:\n    w = {WINDOW}",
        r"ranks 0, 1, 3 are in Allocate at cell line 6: `w = MPI.Win.Allocate",
    ),
    "a fence": (
        f"%%px\n{IMPORTS}w = {WINDOW}\nif rank != 2:\n    w.Fence()",
        r"ranks 0, 1, 3 are in Fence at cell line 7: `w.Fence\(\)`",
    ),
    "a file": (
        f"%%px\n{IMPORTS}if rank != 2:\n    MPI.File.Open(comm, 'never', MPI.MODE_CREATE | MPI.MODE_RDWR)",
        r"ranks 0, 1, 3 are in Open at cell line 6",
    ),
    "a C call": (f"%%px\n{IMPORTS}{BARRIER_IN_C}", r"ranks 0, 1, 3 are in MPI_Barrier at cell line 8"),
    "a communicator that is not watched": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    raw.Barrier()",
        r"ranks 0, 1, 3 are in Barrier at cell line 7",
    ),
    "one rank in MPI, the others in a watched call": (
        f"%%px\n{IMPORTS}if rank == 2:\n    w = {WINDOW}\ncomm.Barrier()",
        r"rank 2 never joined collective #1 \(Barrier\)[\s\S]*it is in Allocate at cell line 6",
    ),
    "%px": (
        f"%px from mpi4py import MPI; w = {WINDOW} if rank != 2 else 0",
        r"ranks 0, 1, 3 are in Allocate",
    ),
    "--noblock": (
        f"code = '''{IMPORTS}if rank != 2:\n    w = {WINDOW}'''\n"
        "get_ipython().run_cell_magic('px', '--noblock', code).get()",
        r"ranks 0, 1, 3 are in Allocate at cell line \d",
    ),
    "apply_sync": (
        f"{FUNCTION}        {WINDOW}\nrc[:].apply_sync(f)",
        r"ranks 0, 1, 3 are in Allocate at cell",
    ),
    "map": (
        f"{FUNCTION}        {WINDOW}\nrc[:].map_sync(f, range(4))",
        r"ranks 0, 1, 3 are in Allocate at cell",
    ),
    "execute": (
        f"rc[:].execute('''{IMPORTS}if rank != 2:\n    w = {WINDOW}''', block=False).get()",
        r"ranks 0, 1, 3 are in Allocate at cell line 5",
    ),
}
WATCHED = {
    "COMM_WORLD": (
        f"%%px\n{IMPORTS}comm = MPI.COMM_WORLD\nif rank != 2:\n    comm.Allreduce(x, x.copy())",
        r"rank 2 never joined collective #1 \(Allreduce, 4 float64, SUM\)[\s\S]*at cell line 7",
    ),
    "COMM_WORLD, one rank raises": (
        f"%%px\n{IMPORTS}comm = MPI.COMM_WORLD\nif rank == 2:\n    1 / 0\ncomm.Allreduce(x, x.copy())",
        r"rank 2 never joined #1: it raised ZeroDivisionError: division by zero at cell line 7",
    ),
    "Iallreduce(…).Wait()": (
        f"%%px\n{IMPORTS}if rank != 2:\n    comm.Iallreduce(x, x.copy()).Wait()",
        r"ranks 0, 1, 3 .* at cell line 6: `comm.Iallreduce",
    ),
    "Waitall": (
        f"%%px\n{IMPORTS}if rank != 2:\n    MPI.Request.Waitall([comm.Irecv(x, (rank + 1) % size)])",
        r"rank 1 is .* at cell line 6: `MPI.Request.Waitall",
    ),
    "Probe": (
        "%%px\nif rank == 1:\n    comm.Probe(source=2)",
        r"rank 1 is waiting in Probe \(from rank 2\) at cell line 3",
    ),
    "apply_sync": (
        f"{FUNCTION}        comm.allreduce(1)\nrc[:].apply_sync(f)",
        r"rank 2 never joined collective",
    ),
    "--noblock": (
        "get_ipython().run_cell_magic('px', '--noblock', 'if rank != 2:\\n    comm.Barrier()').get()",
        r"rank 2 never joined collective #1 \(Barrier\)",
    ),
}


@pytest.fixture(scope="module")
def kernel_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    world = World(tmp_path_factory.mktemp("deadlocks") / "ipython")
    kernel = Kernel(world)
    yield kernel
    kernel.end()
    world.wait_until_empty()


@pytest.fixture
def shared(kernel_of_all: Kernel) -> Kernel:
    assert "4 ranks" in kernel_of_all.run(CONNECT)
    return kernel_of_all


def works(kernel: Kernel) -> bool:
    """Return whether the ranks have kept their variables and work together."""
    kernel.run(CONNECT)
    return len(re.findall(r"\b4 7$", kernel.run("%px print(comm.allreduce(1), kept)"), re.MULTILINE)) == 4


def show(what: str, to_message_s: float, began: float) -> None:
    print(
        f"\n{MPI.get_vendor()[0]:9} {what:46} message {to_message_s - DEADLINE_S:+5.2f} s from deadline   "
        f"four ranks {monotonic() - began:5.2f} s",
        end="",
    )


def mostly_thorough(rows: Iterable[str], *others: str) -> list[object]:
    """Return the rows of a table as test cases; all but `others` are `thorough`."""
    return [row if row in others else thorough(row) for row in rows]


@pytest.mark.parametrize("what", mostly_thorough(STUCK_IN_C, "apply_sync"))
def test_ranks_stuck_in_c_end_with_a_report_and_new_ones_work(shared: Kernel, what: str) -> None:
    cell, expected = STUCK_IN_C[what]
    began = monotonic()
    said = shared.run(cell)
    took = monotonic() - began
    assert said.count("HangError") == 1 and re.search(expected, said), said
    assert "could not leave MPI: the engines were ended" in said, said
    assert "could not leave MPI" in shared.run("rc[:].apply_sync(int)")  # until `connect()`
    began = monotonic()
    assert "4 ranks, one MPI world" in shared.run(CONNECT)
    assert shared.run("%px print(comm.allreduce(1))").count("4") >= 4
    show(what, took, began)


@pytest.mark.parametrize("what", mostly_thorough(WATCHED, "COMM_WORLD", "Waitall"))
def test_ranks_that_raise_keep_their_variables(shared: Kernel, what: str) -> None:
    cell, expected = WATCHED[what]
    shared.run("%px kept = 7")
    began = monotonic()
    said = shared.run(cell)
    took = monotonic() - began
    assert said.count("HangError") == 1 and re.search(expected, said), said
    began = monotonic()
    assert works(shared)
    show(what, took, began)


@pytest.mark.parametrize("call", [thorough("comm.Barrier()"), f"w = {WINDOW}"])
@pytest.mark.parametrize(
    "work", ["pass", thorough("np.linalg.svd(np.ones((99, 99)))"), thorough("time.sleep(99)")]
)
def test_a_rank_that_computes_for_three_deadlines_is_waited_for(shared: Kernel, work: str, call: str) -> None:
    seconds = 3.2 * DEADLINE_S
    line = work.replace("99)", f"{seconds})") if "sleep" in work else f"while time.monotonic() < end: {work}"
    said = shared.run(
        f"%%px\nimport time\nfrom mpi4py import MPI\nend = time.monotonic() + {seconds}\n"
        f"if rank == 2:\n    {line}\n{call}\nprint('went on')"
    )
    assert said.count("went on") == 4 and "HangError" not in said, said


def test_autopx(shared: Kernel) -> None:
    shared.run("%autopx")
    said = shared.run("if rank != 2:\n    comm.Barrier()")
    shared.run("%autopx")
    assert said.count("HangError") == 1 and "rank 2 never joined collective #1 (Barrier)" in said, said
