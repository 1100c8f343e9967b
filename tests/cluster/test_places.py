"""A place where ranks run is one module and one profile: a fifth one needs no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.cluster import clusters
from labkit.cluster.places.place import Place, place
from tests.cluster_fixtures import Kernel, World

FOLDER = Path(__file__).parent / "fifth_place"
ADD_PLACE = f"""
from pathlib import Path
from labkit.cluster import clusters, connect, places
places.__path__.append({str(FOLDER)!r})
clusters.INSTALLED = Path({str(FOLDER / "profiles")!r})
"""


@pytest.fixture
def queue(tmp_path: Path, world: World) -> Path:
    """Return the folder of the queue."""
    folder = tmp_path / "queue"
    folder.mkdir()
    world.env.update(QUEUE=str(folder), QUEUE_PROGRAM=str(FOLDER / "queue.py"), IPP_NONINTERACTIVE="0")
    return folder


@pytest.fixture
def notebook(queue: Path, kernel: Kernel) -> Kernel:
    """Return a kernel that knows the place."""
    assert kernel.run(ADD_PLACE) == ""
    return kernel


def test_each_profile_of_the_lab_has_its_place() -> None:
    assert set(clusters.profiles()) == {"mpi", "hosts", "slurm", "ssh"}
    assert len({type(place(profile)) for profile in clusters.profiles()}) == len(clusters.profiles())
    assert type(place("a_profile_of_mine")) is Place


@pytest.mark.clusters
def test_a_fifth_place_says_what_it_can(notebook: Kernel, queue: Path) -> None:
    assert "ClusterError: the queue has room for 3 ranks, not for 4" in notebook.run(
        "connect(4, profile='queue')"
    )
    message = notebook.start("rc = connect(3, profile='queue')")
    notebook.finish(message, until="the queued job is pending; ")
    (queue / "open").touch()
    assert "3 ranks, one MPI world" in notebook.finish(message)
    notebook.run("%px import os; n = os.environ['RANKS_IN_QUEUE']")
    assert notebook.run("print(rc[:]['n'])") == "['3', '3', '3']\n"
    (queue / "drained").touch()
    notebook.run("import os, signal\nos.kill(rc[1].apply_sync(os.getpid), signal.SIGKILL)")
    said = notebook.run("%px comm.Barrier()")
    assert "RankDied: the queue of 3 ranks was drained. Run the cell with `connect()` again" in said, said


@pytest.mark.clusters
def test_connect_does_not_wait_for_a_place_that_is_closed(notebook: Kernel, queue: Path) -> None:
    (queue / "closed").touch()
    said = notebook.run("rc = connect(2, profile='queue')")
    assert "ClusterError: the queued job is pending, for " in said and "The queue is closed." in said
    assert "the queued job has been cancelled." in said
