"""Files beside the notebook that have the names of Python's modules: the lab never imports them.

The student's code imports its own files as ever.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from labkit.exercises import catalogue
from tests.cluster.shared import world
from tests.cluster_fixtures import Kernel, World

pytestmark = pytest.mark.clusters

__all__ = ["world"]
# Packages that the lab needs. Those that Python and ipykernel themselves need to start a kernel are not the
# lab's, and are left out below.
PACKAGES = {"ipyparallel", "mpi4py", "platformdirs", "psutil", "tqdm"}


def needed_by_a_kernel() -> set[str]:
    """Return the modules that Python imports before ipykernel takes the notebook's folder off the path."""
    code = "import sys; before = set(sys.modules); import runpy, pathlib; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.fixture(scope="module")
def kernel(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("notebooks")
    names = (sys.stdlib_module_names | PACKAGES) - needed_by_a_kernel()
    assert {"random", "queue", "socket", "signal", "email", "calendar", "copy", "string"} <= names
    for name in names:
        (folder / f"{name}.py").write_text(f"raise ImportError('the file {name}.py of the student')\n")
    (folder / "helper.py").write_text("def double(number):\n    return 2 * number\n")
    kernel = Kernel(world, folder)
    yield kernel
    kernel.end()


def test_connect_works_and_cells_import_the_students_own_files(kernel: Kernel) -> None:
    said = kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    assert "2 ranks, one MPI world" in said, said
    assert kernel.run("import helper\nprint(helper.double(4))") == "8\n"
    said = kernel.run("%%px\nimport helper\nprint(helper.double(comm.allreduce(1)))")
    assert said == "[ranks 0, 1] 4\n", said


def test_hangs_errors_and_deaths_are_reported_as_ever(kernel: Kernel) -> None:
    said = kernel.run("%%px\nif rank == 0:\n    comm.Barrier()")
    assert "HangError: rank 1 never joined" in said, said
    assert "ZeroDivisionError on ranks 0, 1" in kernel.run("%px 1 / 0")
    said = kernel.run("%%px\nimport os\nif rank == 1:\n    os._exit(3)\ncomm.Barrier()")
    assert "RankDied: rank 1 called os._exit(3) at cell line 4" in said, said
    assert "2 ranks, one MPI world" in kernel.run("rc = connect(2)")
    said = kernel.run("%%px --progress-after 0\nimport time\ntime.sleep(1)\nprint('done')")
    assert said.endswith("[ranks 0, 1] done\n"), said


@pytest.mark.parametrize("name", ["my_items", "shift_right"])  # in the kernel, and on ranks
def test_a_check_works(kernel: Kernel, name: str) -> None:
    exercise = catalogue.find(name)
    on_ranks = "%%px\n" if exercise.on_ranks else ""
    kernel.run(f"{on_ranks}from labkit.exercises import check")
    kernel.run(f"{on_ranks}{exercise.text}")
    said = kernel.run(f"{on_ranks}{name} = check({name})")
    assert f"{name}: correct" in said, said
