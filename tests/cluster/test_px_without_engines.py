"""`%%px` in a kernel without engines: one sentence that says what to do, at no cost to the kernel's start."""

from __future__ import annotations

import pytest

from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel

__all__ = ["kernel", "world"]
USES = [
    "%%px\nprint(rank)",
    "%%replay\nprint(rank)",
    "%px print(rank)",
    "x = 1\n%px x",
    "%autopx",
    "%pxconfig --block",
    "%pxresult",
]


@pytest.mark.parametrize("use", USES)
def test_before_connect_each_magic_says_to_run_the_cell_with_connect(kernel: Kernel, use: str) -> None:
    said = kernel.run(use)
    assert said == (
        "ClusterError: there are no engines yet: run the notebook's cell with `connect()` first.\n"
    ), said


def test_a_kernel_loads_no_ipyparallel_for_it(kernel: Kernel) -> None:
    said = kernel.run("import sys\nprint([name for name in ('ipyparallel', 'numpy') if name in sys.modules])")
    assert said == "[]\n"


def test_loading_the_extension_of_ipyparallel_changes_nothing(kernel: Kernel) -> None:
    kernel.run("%load_ext ipyparallel")
    assert "ClusterError: there are no engines yet" in kernel.run("%px rank")


def test_after_a_failed_connect_each_magic_says_so(kernel: Kernel) -> None:
    said = kernel.run("from labkit.cluster import connect\nrc = connect(1, timeout=0.01)")
    assert "ClusterError: 0 of 1 engines came up" in said, said
    expected = (
        "ClusterError: this notebook has no engines, because `connect()` failed. Do what its message says, "
        "then run its cell again.\n"
    )
    assert [kernel.run(use) for use in USES] == [expected] * len(USES)


def test_engines_do_not_have_it(kernel: Kernel) -> None:
    kernel.run("rc = connect(1)")
    said = kernel.run("%px print('px' in get_ipython().magics_manager.magics['cell'])")
    assert "False" in said, said


def test_a_name_of_the_ranks_is_explained_and_a_comment_may_stand_above_px(kernel: Kernel) -> None:
    kernel.run("rc = connect(1)")
    assert "[stdout:0] 1" in kernel.run("# The rank's own number\n\n%%px\nmine = 1\nprint(mine)")
    said = kernel.run("mine + 1")
    assert "name 'mine' is not defined" in said and "write %%px as the first line" in said, said
