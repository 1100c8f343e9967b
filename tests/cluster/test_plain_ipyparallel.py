"""Notebooks that were written for ipyparallel alone work in the lab's environment as they do without the lab.

They are written after the examples in ipyparallel's documentation and in tutorials of MPI; none of them calls
`connect()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import ipyparallel as ipp
import pytest

from mpiwatch import launch
from mpiwatch.processes import is_mpich
from tests.cluster_fixtures import Kernel, Start, World, clusters, wait_until

pytestmark = pytest.mark.clusters

MAGICS = [
    (
        "import ipyparallel as ipp\nrc = ipp.Cluster(engines='mpi', n=2).start_and_connect_sync()\nrc.ids",
        "[0, 1]",
    ),
    ("%px a = 5", ""),
    ("%px print(a)", "[stdout:1]"),
    ("dv = rc[:]\ndv.scatter('id', rc.ids, flatten=True).get()\ndv['stride'] = len(dv)\ndv['id']", "[0, 1]"),
    ("%%px --noblock\nfor n in range(id, 4, stride):\n    print('n', n)", "AsyncResult"),
    ("%pxresult", "n 3"),
    ("%pxconfig --noblock", ""),
    ("ar = %px 2 * a\nar.wait_for_output()\nar.get()", "10"),  # `get` alone does not wait for it
    ("%pxconfig --block", ""),
    ("%%px --targets 1\nprint('only', id)", "only 1"),
    ("%px 1 / 0", "ZeroDivisionError"),
    ("even = rc[::2]\neven.block = True\neven.activate('_even')", ""),
    ("%px_even print('even', id)", "even 0"),
    ("%autopx", "enabled"),
    ("b = a + 1", ""),
    ("%autopx", "disabled"),
    ("dv['b']", "[6, 6]"),
    ("with dv.sync_imports():\n    import math", "importing math"),
    ("%%px --local\nwhere = 'everywhere'\nprint(where)", "everywhere"),
    ("where", "everywhere"),
]
CLIENT = [
    ("import ipyparallel as ipp\nrc = ipp.Client()\nrc.wait_for_engines(2, timeout=120)\nview = rc[:]", ""),
    (
        "@view.remote(block=True)\ndef mpi_rank():\n    from mpi4py import MPI\n"
        "    return MPI.COMM_WORLD.rank\nmpi_rank()",
        "[0, 1]",
    ),
    ("mpi_rank.block = False\nmpi_rank().get_dict()", "{0: 0, 1: 1}"),
    (
        "%%px\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "rank, size = comm.Get_rank(), comm.Get_size()\n"
        "data = [(i + 1) ** 2 for i in range(size)] if rank == 0 else None\n"
        "data = comm.scatter(data, root=0)\nassert data == (rank + 1) ** 2\n{'rank': rank, 'data': data}",
        "{'rank': 1, 'data': 4}",
    ),
    ("view['data']", "[1, 4]"),
    ("view.push({'c': 3}, block=True)\nview.pull('c', block=True)", "[3, 3]"),
    ("lview = rc.load_balanced_view()\nlview.map_sync(lambda x: x ** 10, range(3))", "[0, 1, 1024]"),
    ("rc[1].apply_sync(lambda: 1 / 0)", "ZeroDivisionError"),
    ("ar = view.apply_async(lambda: 'done')\nar.wait_interactive(timeout=60)\nar.get()", "['done', 'done']"),
]
TUTORIAL = [
    (
        "import logging\nimport ipyparallel as ipp\n"
        "cluster = ipp.Cluster(engines='mpi', n=2, log_level=logging.WARNING)\n"
        "await cluster.start_cluster()\nrc = await cluster.connect_client()\n"
        "rc.wait_for_engines(interactive=False)\nrc.activate();",
        "",
    ),
    (
        "%%px\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank, size = comm.rank, comm.size\n"
        "print(f'I am rank {rank} / {size}')",
        "I am rank 1 / 2",
    ),
    (
        "%%px\nimport numpy as np\ndef ping_pong(array):\n    if rank == 0:\n"
        "        comm.Send(array, dest=1)\n        comm.Recv(array, source=1)\n"
        "    elif rank == 1:\n        comm.Recv(array, source=0)\n"
        "        comm.Send(array, dest=0)",
        "",
    ),
    ("%%px\narray = np.random.random(10_000)\n%timeit -n 10 ping_pong(array)", "10 loops each"),
    ("%%px\n%%timeit -n 10 -r 2\ncomm.scatter([1, 2] if rank == 0 else None, root=0)", "10 loops each"),
    ("%%px\nnumbers = comm.gather(rank ** 2, root=0)\nprint(f'Process {rank} got {numbers}')", "got [0, 1]"),
    ("await cluster.stop_cluster()", ""),
    ("with ipp.Cluster(n=2) as rc:\n    print(sorted(rc[:].apply_sync(lambda: 7)))", "[7, 7]"),
    ("async with ipp.Cluster(engines='local', n=1) as rc:\n    print(rc[:].apply_sync(lambda: 8))", "[8]"),
]


def run(kernel: Kernel, notebook: list[tuple[str, str]]) -> None:
    """Run a notebook's cells; check that each shows a text, and raises an error only if that names one."""
    for code, expected in notebook:
        said = kernel.run(code)
        has_raised = any(message["msg_type"] == "error" for message in kernel.messages)
        assert expected in said and has_raised == ("Error" in expected), f"{code}\n{said}"


def test_a_notebook_on_the_parallel_magics(kernel: Kernel) -> None:
    run(kernel, MAGICS)


def wait_for_registered(world: World, n: int) -> None:
    """Wait until n engines are registered: a client that connects while one registers never learns of it."""

    def are_registered() -> bool:
        files = list(world.folder.glob("profile_*/security/ipcontroller-client.json"))
        if not files:
            return False
        client = ipp.Client(str(files[0]))
        try:
            return len(client.ids) == n
        finally:
            client.close()

    wait_until(are_registered, f"{n} engines are registered", 120)


def test_a_notebook_on_a_client_of_engines_that_a_person_has_started(
    world: World, kernel: Kernel, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    wait_for_registered(world, 2)
    run(kernel, CLIENT)


def test_a_tutorial_of_mpi(kernel: Kernel) -> None:
    run(kernel, TUTORIAL)


@pytest.mark.skipif(not is_mpich(launch.mpiexec()), reason="Open MPI's mpiexec ends its ranks")
def test_an_interrupt_of_the_engines_does_not_end_them(kernel: Kernel) -> None:
    kernel.run("import ipyparallel as ipp\ncluster = ipp.Cluster(engines='mpi', n=2)")
    kernel.run("rc = cluster.start_and_connect_sync()\nimport os\nbefore = rc[:].apply_sync(os.getpid)")
    kernel.run("import signal\nawait cluster.signal_engines(signal.SIGINT)")
    assert "True" in kernel.run("print(rc[:].apply_sync(os.getpid) == before)")


@pytest.fixture
def person(world: World) -> Iterator[Start]:
    yield from clusters(world)


def test_connect_and_clients_of_ipyparallel_live_side_by_side(
    world: World, kernel: Kernel, person: Start
) -> None:
    person("--engines=MPI", "-n", "1")
    wait_for_registered(world, 1)
    kernel.run("import ipyparallel as ipp\nmine = ipp.Client()\nmine.wait_for_engines(1)")
    assert "hi 1" in kernel.run("%px print('hi', 1)")
    # connect() of another number leaves that cluster to the client, and brings its own %%px.
    said = kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    assert "cluster started" in said, said
    assert kernel.run("%px print(comm.allreduce(1))") == "[ranks 0, 1] 2\n"
    assert "[9]" in kernel.run("mine[:].apply_sync(lambda: 9)")
    # A further client does not take it away, as with ipyparallel alone.
    kernel.run("other = ipp.Client()")
    assert re.search("HangError", kernel.run("%%px\nif rank == 0:\n    comm.Barrier()"))
