"""Two notebooks and one cluster: an idle notebook gives its engines to the next, a busy one keeps them.

The tests share one cluster of two ranks and two kernels. Each of them begins with a first notebook that holds
the engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.shared import world
from tests.cluster_fixtures import Kernel, Start, World, clusters, wait_until

pytestmark = pytest.mark.clusters

__all__ = ["world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(2{})"
FIRST, SECOND = "00_first.ipynb", "01_second.ipynb"


def notebook(world: World, name: str) -> Kernel:
    """Start a kernel as JupyterLab does for a notebook of this name."""
    world.env["JPY_SESSION_NAME"] = f"/home/student/lab/{name}"
    return Kernel(world)


def is_one_line(said: str, *parts: str) -> bool:
    """Return whether a cell showed one line, a ClusterError, that contains these parts."""
    return said.startswith("ClusterError: ") and said.count("\n") == 1 and all(part in said for part in parts)


@pytest.fixture(scope="module")
def cluster(world: World) -> Iterator[Start]:
    yield from clusters(world)


@pytest.fixture(scope="module")
def kernels(world: World, cluster: Start) -> Iterator[tuple[Kernel, Kernel]]:
    cluster("--engines=MPI", "-n", "2")
    both = notebook(world, FIRST), notebook(world, SECOND)
    yield both
    for kernel in both:
        kernel.end()


@pytest.fixture
def first(kernels: tuple[Kernel, Kernel]) -> Kernel:
    said = kernels[0].run(CONNECT.format(""))
    assert "2 ranks, one MPI world" in said, said
    return kernels[0]


@pytest.fixture
def second(kernels: tuple[Kernel, Kernel]) -> Kernel:
    return kernels[1]


def test_a_notebook_takes_the_engines_of_an_idle_one(first: Kernel, second: Kernel) -> None:
    first.run("%%px\nmark = rank\n_hidden = rank\nMPI = None\ndef f():\n    pass")
    said = second.run(CONNECT.format(""))
    taken, ranks = said.splitlines()
    who = f"{FIRST} (kernel process {first.pid})"
    assert f"has taken the engines over from {who}, which was idle. Its variables" in taken, said
    assert "Its variables on the ranks (MPI, mark, f) were deleted." in taken, said
    assert ranks.startswith("2 ranks, one MPI world"), said
    said = second.run(
        "%px print([name for name in ('mark', 'f', '_hidden') if name in globals()], size, np.e)"
    )
    assert re.findall(r"\[\] 2 2.718", said) == ["[] 2 2.718"] * 2, said
    assert "[1, 1]" in second.run("%px total = comm.allreduce(rank)\nprint(rc[:]['total'])")


def test_the_notebook_that_lost_its_engines_says_so_at_each_use(first: Kernel, second: Kernel) -> None:
    second.run(CONNECT.format(""))
    second.run("%px mark = 'of the second notebook'")
    for use in (
        "%%px\nprint(rank)",
        "rc[:]['rank']",
        "rc[0].apply_sync(lambda: 1)",
        "rc.load_balanced_view().apply_sync(lambda: 1)",
        "rc[:].push({'mark': 'of the first notebook'})",
        "rc.clear()",
    ):
        said = first.run(use)
        assert is_one_line(said, f"{SECOND} (kernel process {second.pid}) has the engines", "`connect()`"), (
            said
        )
    assert "['of the second notebook', 'of the second notebook']" in second.run("print(rc[:]['mark'])")


def test_connect_takes_the_engines_back_and_names_the_cells_to_run_again(
    first: Kernel, second: Kernel
) -> None:
    first.run("%px mark = 1")
    assert "of the second" not in second.run(CONNECT.format(""))
    said = first.run(CONNECT.format(""))
    assert f"{SECOND} (kernel process {second.pid}), which was idle." in said, said
    assert re.search(
        r"^The ranks are (new|cleared): run the %%px cells? \[\d.*\] again", said, re.MULTILINE
    ), said
    assert "NameError" in first.run("%px mark")
    assert "%%px cell" not in first.run("rc = connect(2)")


def test_a_notebook_that_runs_a_cell_keeps_its_engines(first: Kernel, second: Kernel, tmp_path: Path) -> None:
    first.run("%px mark = rank")
    cell = first.start(
        f"%%px\nimport os, time\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n"
        f"while not os.path.exists('{tmp_path}/end'):\n    time.sleep(0.01)"
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks in the cell")
    said = second.run(CONNECT.format(""))
    advice = ("run this cell again", "connect(n=2, take_over=True)", "connect(n=2, own=True)")
    assert is_one_line(said, f"{FIRST} (kernel process {first.pid}) is running a cell", *advice), said
    assert is_one_line(second.run("%%px\nprint(rank)"), "no engines", "`connect()`")
    (tmp_path / "end").touch()
    assert "Error" not in first.finish(cell)
    assert first.run("print(rc[:]['mark'])") == "[0, 1]\n"


@pytest.mark.parametrize("work", ["%%px --noblock\n{}", "work = rc[:].apply_async(exec, {!r})"])
def test_engines_at_work_behind_an_idle_kernel_are_not_taken(
    first: Kernel, second: Kernel, tmp_path: Path, work: str
) -> None:
    first.run("%px mark = rank")
    loop = f"import os, time\nwhile not os.path.exists('{tmp_path}/end'): time.sleep(0.01)"
    first.run(work.format(loop))
    assert is_one_line(
        second.run(CONNECT.format("")), f"{FIRST} (kernel process {first.pid}) is running a cell"
    )
    (tmp_path / "end").touch()
    assert first.run("print(rc[:]['mark'])") == "[0, 1]\n"


def test_a_cell_that_is_just_being_sent_keeps_the_engines(
    first: Kernel, second: Kernel, tmp_path: Path
) -> None:
    """No notebook can take the engines after another one has made sure that it holds them."""
    first.run(
        f"""import os, time, ipyparallel as ipp
send = ipp.Client._send

def hold_up(client, socket, kind, *more, **options):
    open('{tmp_path}/checked', 'w').close()
    while not os.path.exists('{tmp_path}/send'):
        time.sleep(0.01)
    return send(client, socket, kind, *more, **options)

ipp.Client._send = hold_up"""
    )
    cell = first.start("%%px\nprint('arrived')")
    wait_until((tmp_path / "checked").exists, "the cell is about to be sent")
    said = second.run(CONNECT.format(""))
    (tmp_path / "send").touch()
    assert first.finish(cell).count("arrived") == 2
    first.run("ipp.Client._send = send")
    assert is_one_line(said, "is running a cell"), said


@pytest.mark.parametrize("work", ["%%px\n{}", "rc[:].apply_sync(exec, {!r})"])
def test_take_over_ends_a_running_cell(first: Kernel, second: Kernel, tmp_path: Path, work: str) -> None:
    wait = f"import os, time\nopen(f'{tmp_path}/{{os.getpid()}}', 'w').close()\ntime.sleep(100)"
    cell = first.start(work.format(wait))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks in the cell")
    said = second.run(CONNECT.format(", take_over=True"))
    assert f"a cell of {FIRST} (kernel process {first.pid}): new engines replace them." in said, said
    said = first.finish(cell)
    assert f"ClusterError: {SECOND} (kernel process {second.pid}) has the engines now" in said, said
    assert "Unexpected" not in said, said
    assert is_one_line(first.run("%px rank"), f"{SECOND} (kernel process {second.pid}) has the engines now")
    assert "cluster started" in first.run("rc = connect(2, own=True)")
    assert "this notebook's cluster" in first.run("rc = connect(2)")
    first.run("from labkit.cluster import clusters\nclusters.stop_own_cluster()")


def test_engines_of_a_restarted_kernel_are_cleared(first: Kernel, second: Kernel) -> None:
    """JupyterLab says before a restart that all variables will be lost."""
    second.run(CONNECT.format(""))
    first.run(CONNECT.format(""))  # the ranks are cleared
    first.run("%px a = b = c = d = e = f = g = h = rank")
    first.restart()
    said = first.run(CONNECT.format(""))
    assert (
        "The variables of an earlier kernel (a, b, c, d, e, f and 2 more) were deleted from the ranks."
        in said
    ), said
    assert "NameError" in first.run("%px a")
    assert "deleted" not in first.run("%px a = 1\nrc = connect(2)")
    assert "[1, 1]" in first.run("print(rc[:]['a'])")


def test_engines_that_a_closed_notebook_took_are_not_read_silently(world: World, first: Kernel) -> None:
    first.run("%px mark = rank")
    closed = notebook(world, SECOND)
    try:
        closed.run(CONNECT.format(""))
        closed.run("%px mark = 'of the closed notebook'")
    finally:
        closed.end()
    assert is_one_line(first.run("rc[:]['mark']"), "another notebook has used the engines", "`connect()`")
    said = first.run(CONNECT.format(""))
    assert "run the %%px cell" in said, said
    assert "NameError" in first.run("%px mark")


@pytest.mark.thorough
def test_a_free_cluster_is_found_while_the_chosen_one_is_in_use(
    world: World, first: Kernel, cluster: Start
) -> None:
    cluster("--engines=MPI", "-n", "2", "--cluster-id=panel")
    world.env["LABKIT_CLUSTER"] = ""  # the id of the cluster that the first notebook holds
    third = notebook(world, "02_third.ipynb")
    try:
        assert "running cluster cluster-panel" in third.run(CONNECT.format(""))
        first.run("%px mark = rank")
        # It stays with its engines, and leaves those of the first notebook alone.
        assert "running cluster cluster-panel" in third.run(CONNECT.format(""))
        assert first.run("print(rc[:]['mark'])") == "[0, 1]\n"
    finally:
        third.end()
        del world.env["LABKIT_CLUSTER"]
