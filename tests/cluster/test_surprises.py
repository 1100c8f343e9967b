"""Errors that surprise in a notebook with ranks get one sentence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.shared import world
from tests.cluster_fixtures import Kernel, World

pytestmark = pytest.mark.clusters

__all__ = ["world"]
READ_ONLY = (
    "An array that the notebook has pushed or scattered is read-only on the ranks: `x = x.copy()` in a"
)


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[Kernel]:
    """A kernel with two ranks, an array that it has pushed, and one that only itself has."""
    kernel = Kernel(world)
    kernel.run("import numpy as np\nfrom labkit.cluster import connect\nrc = connect(2, deadline_s=1)")
    kernel.run("only_here = np.zeros(4)\nrc[:].push({'pushed': only_here}, block=True)")
    yield kernel
    kernel.end()


@pytest.mark.parametrize("code", ["pushed[0] = 1", "pushed += 1", "comm.Bcast(pushed)"])
def test_a_pushed_array_that_is_read_only(shared: Kernel, code: str) -> None:
    said = " ".join(shared.run(f"%%px\n{code}").split())
    assert said.count(READ_ONLY) == 1, said


def test_a_copy_can_be_changed(shared: Kernel) -> None:
    said = shared.run("%%px\nmine = pushed.copy()\ncomm.Allreduce(pushed, mine)\nprint(mine[0])")
    assert said == "[ranks 0, 1] 0.0\n"


def test_a_name_of_the_kernel(shared: Kernel) -> None:
    said = " ".join(shared.run("%px print(only_here)").split())
    assert "NameError on ranks 0, 1: name 'only_here' is not defined" in said
    assert (
        "`only_here` exists in the notebook's own process, not on the ranks: define it in a %%px cell" in said
    )


def test_a_name_of_nobody(shared: Kernel) -> None:
    assert "own process" not in shared.run("%px print(nowhere)")


def test_an_answer_in_a_cell_without_px_does_not_reach_the_check(shared: Kernel) -> None:
    stub = "def my_items(n, rank, size):\n    # Your code here."
    shared.run(f"%%px\nfrom labkit.exercises import check\n{stub}\n    pass")
    check = "%%px\nmy_items = check(my_items)"
    assert "not written yet" in shared.run(check)
    shared.run(f"{stub}\n    return list(range(rank, n, size))")  # in the notebook's own process
    said = " ".join(shared.run(check).split())
    assert "this is the reference. Run the cell with your own code again, then this one." in said
    assert "Both must begin with %%px." in said
