"""What ends a rank says why, output is bounded, and what a cell forks ends as it should."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import Kernel, World

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(3, deadline_s=2)"
# A call that ends rank 1 → how the error names it.
ENDS = {
    "comm.Abort(7)": r"rank 1 called comm\.Abort\(7\) at cell line 5: `comm\.Abort\(7\)`",
    "os._exit(3)": r"rank 1 called os\._exit\(3\) at cell line 5",
    "os.kill(os.getpid(), signal.SIGTERM)": r"rank 1 sent itself SIGTERM at cell line 5",
    "signal.raise_signal(signal.SIGTERM)": r"rank 1 sent itself SIGTERM at cell line 5",
    "os.abort()": r"rank 1 called os\.abort\(\) at cell line 5",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    world = World(tmp_path_factory.mktemp("guards") / "ipython")
    kernel = Kernel(world)
    assert "3 ranks" in kernel.run(CONNECT)
    yield kernel
    kernel.end()
    world.wait_until_empty()


@pytest.mark.parametrize("call", ENDS)
def test_a_call_that_ends_a_rank_is_named_and_no_output_is_lost(
    shared: Kernel, tmp_path: Path, call: str
) -> None:
    """MPICH's Abort once returned, and the cell ended well on all ranks before the launcher ended them."""
    assert "3 ranks" in shared.run("rc = connect(3, deadline_s=2)")
    after = tmp_path / "after"
    said = shared.run(
        f"%%px\nimport os, signal\nprint('printed by', rank)\nif rank == 1:\n    {call}\n"
        f"    open('{after}', 'w').close()\ncomm.Barrier()"
    )
    assert not after.exists()
    assert re.search(ENDS[call], said) and "run the cell with `connect()` again" in said.lower(), said
    assert [f"printed by {rank}" in said for rank in range(3)] == [True] * 3, said


def test_a_pasted_program_may_initialise_and_finalise_mpi(shared: Kernel) -> None:
    shared.run("rc = connect(3, deadline_s=2)")
    program = "MPI.Init()\nprint(comm.allreduce(1))\nMPI.Finalize()\nprint(comm.allreduce(2))"
    said = shared.run(f"%%px\nfrom mpi4py import MPI\n{program}")
    assert "MPI.Finalize() has no effect here" in said and "\n6\n" in said, said
    assert shared.run("%%px\nprint(comm.allreduce(1))") == "[ranks 0–2] 3\n"


def test_output_is_bounded_and_what_is_left_out_is_counted(shared: Kernel) -> None:
    shared.run("rc = connect(3, deadline_s=2)")
    said = shared.run("%%px\nfor _ in range(20):\n    if rank == 0:\n        print('y' * 2**20)")
    assert said.count("… and 19.8 MiB more: a cell shows at most 200 KiB of each rank.") == 1, said[-300:]
    assert len(said) < 250_000
    assert shared.run("%%px\nprint('short')") == "[ranks 0–2] short\n"


def test_a_pool_of_processes_ends_and_leaves_nothing(shared: Kernel) -> None:
    shared.run("rc = connect(3, deadline_s=2)")
    said = shared.run(
        "%%px\nimport multiprocessing\ndef double(x):\n    return 2 * x\n"
        "with multiprocessing.Pool(2) as pool:\n    print(pool.map(double, range(3)))\n"
        "print(multiprocessing.active_children())"
    )
    assert said == "[ranks 0–2]\n[0, 2, 4]\n[]\n", said


EARLY_SIGNAL = """
import os, signal, time
from labkit.cluster import engine_guards

signal.signal(signal.SIGTERM, lambda number, frame: None)  # as an engine has one
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before the child runs on
engine_guards.restore_signals_in_children()
child = os.fork()
if child == 0:
    time.sleep(3)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, status
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_signal_that_reaches_a_forked_child_at_once_ends_it() -> None:
    """Of a pool, a worker that has not run yet when the pool ends would never end."""
    subprocess.run([sys.executable, "-c", EARLY_SIGNAL], check=True, timeout=60)
