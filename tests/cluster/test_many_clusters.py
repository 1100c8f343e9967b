"""Many clusters at once on one machine, as students of a course have them: none affects another.

Each student has a profile folder and two notebooks with engines of their own.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from labkit.cluster import clusters
from labkit.text import ranks_phrase
from tests.cluster_fixtures import a_kernel, a_world, wait_until

pytestmark = pytest.mark.clusters

RANKS = 2
CONNECT = f"from labkit.cluster import connect\nrc = connect({RANKS})"
MISSING_RANK = "if rank > 0:\n    comm.Barrier()"
KILLED_RANK = "import os, signal\nif rank > 0:\n    os.kill(os.getpid(), signal.SIGKILL)\ncomm.Barrier()"
# Add numbers until the file is there, at least ten times.
ADD = """\
import os
rounds = wrong = 0
open(f"{mark}-{{rank}}", "w").close()
while comm.bcast(rounds < 10 or not os.path.exists("{end}")):
    total = comm.allreduce({own} + rank)
    wrong += total != {own} * size + size * (size - 1) // 2
    rounds += 1
print("wrong:", wrong)"""


def test_a_cluster_that_fails_affects_no_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        worlds = [stack.enter_context(contextmanager(a_world)(tmp_path / str(number))) for number in range(2)]
        kernels = [stack.enter_context(contextmanager(a_kernel)(worlds[number // 2])) for number in range(4)]
        for kernel, cell in [(kernel, kernel.start(CONNECT)) for kernel in kernels]:
            said = kernel.finish(cell)
            assert f"{RANKS} ranks, one MPI world" in said, said
        # One hangs, one loses its kernel and one a rank, while the others compute.
        stuck, killed, rank_killed, *others = kernels
        end = tmp_path / "end"
        adding = [
            kernel.start("%%px\n" + ADD.format(own=k, mark=tmp_path / f"began-{k}", end=end))
            for k, kernel in enumerate(others)
        ]
        began = RANKS * len(others)
        wait_until(lambda: len(list(tmp_path.glob("began-*"))) == began, "the others compute")
        report = stuck.run(f"%%px\n{MISSING_RANK}")
        assert "rank 0 never joined collective #" in report, report
        killed.manager.signal_kernel(signal.SIGKILL)
        report = rank_killed.run(f"%%px\n{KILLED_RANK}")
        assert re.search(r"rank 1 sent itself SIGKILL at cell line 4", report), report
        end.touch()
        for kernel, cell in zip(others, adding, strict=True):
            assert (said := kernel.finish(cell)) == f"[{ranks_phrase(range(RANKS))}] wrong: 0\n", said
        said = stuck.run("%%px\nprint('sum', comm.allreduce(rank))")
        assert said == f"[{ranks_phrase(range(RANKS))}] sum {sum(range(RANKS))}\n"
        for kernel in (stuck, rank_killed, *others):
            kernel.manager.shutdown_kernel()
        for world in worlds:
            world.wait_until_empty()


def test_clusters_of_two_machines_with_one_home_folder_have_two_names() -> None:
    assert f"notebook-{socket.gethostname()}-{os.getpid()}" == clusters.OWN
