"""An idle notebook has few processes: what each costs is paid by every student of a class."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from mpiwatch import launch
from mpiwatch.processes import LINUX, is_mpich
from tests.cluster_fixtures import Kernel, World, is_mpiexec, wait_until

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4)"


def kind(process: psutil.Process) -> str:
    """Return what a process of a notebook is."""
    words = process.cmdline()
    if any(word.endswith(("supervisor.py", "processes.py")) for word in words):
        return "supervisor"
    if is_mpiexec(process) or process.name() == "hydra_pmi_proxy":
        return "launcher"
    if any(word.endswith("forking.py") for word in words):
        return "stand-in"
    return next((word for word in words if word.startswith("labkit.")), " ".join(words))


def kinds(world: World, kernel: Kernel) -> Counter[str]:
    """Return how many processes of each kind a notebook has, without its kernel."""
    return Counter(kind(process) for process in world.processes() if process.pid != kernel.pid)


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_an_idle_notebook_with_four_ranks_has_eight_processes(world: World, kernel: Kernel) -> None:
    """With Open MPI, whose mpiexec starts the ranks, five more. There were 26."""
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run("%px pass")
    engines = {"labkit.cluster.adapter.engine": 5}  # the ranks, and the process that has forked them
    expected = engines | {"labkit.cluster.adapter.controller": 1, "supervisor": 2}
    if not is_mpich(launch.mpiexec()):
        expected |= {"launcher": 1, "stand-in": 4}
    assert kinds(world, kernel) == expected


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_the_controller_closes_what_has_kept_its_ports(world: World, kernel: Kernel) -> None:
    """By then, the listeners have them. They were fifteen files of each open notebook."""
    assert "4 ranks" in kernel.run(CONNECT)
    (controller,) = [each for each in world.processes() if kind(each).endswith("adapter.controller")]
    files = controller.num_fds()
    wait_until(lambda: controller.num_fds() <= files - 10, "the controller closes files", 60)
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run("%px pass")


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_the_controller_is_one_process(world: World, kernel: Kernel) -> None:
    """Its schedulers and the heart monitor were eight more."""
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run("%px pass")
    assert kinds(world, kernel)["labkit.cluster.adapter.controller"] == 1
    # Views of all kinds work.
    kernel.run("one_each = rc.load_balanced_view()\nall_at_once = rc.broadcast_view()")
    assert "[0, 1, 4]" in kernel.run("one_each.map_sync(lambda x: x * x, range(3))")
    assert "[7, 7, 7, 7]" in kernel.run("all_at_once.apply_sync(lambda: 7)")


@pytest.mark.skipif(not LINUX, reason="elsewhere, /proc does not tell")
def test_the_controller_does_without_numpy(world: World, kernel: Kernel) -> None:
    """NumPy and what starts clusters were half of what a controller's start computed."""
    assert "4 ranks" in kernel.run(CONNECT)
    (controller,) = [each for each in world.processes() if kind(each).endswith("adapter.controller")]
    maps = Path(f"/proc/{controller.pid}/maps").read_text()
    assert "zmq" in maps
    assert "numpy" not in maps


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_the_ranks_share_the_imports_of_a_notebook(kernel: Kernel) -> None:
    """Each rank took a tenth of a second for them in a notebook's first cells, and 4 MB."""
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run("%%px\nimport sys\nbefore = {*sys.modules}")
    kernel.run("%%px\nfrom labkit import comm, data, nn\nfrom labkit.exercises import check, hint")
    kernel.run("%%px\nfrom labkit.exercises import run_case\nfrom labkit.train import Batches, train")
    imported = "sorted(name for name in {*sys.modules} - before if name.startswith('labkit'))"
    assert kernel.run(f"%px print({imported})") == "[ranks 0–3] []\n"


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_engines_without_nannies_take_signals_and_their_end_is_noticed(world: World, kernel: Kernel) -> None:
    assert "4 ranks" in kernel.run(CONNECT)
    assert kinds(world, kernel)["labkit.cluster.adapter.engine"] == 5  # the ranks, and what forks them
    kernel.run("%%px\nfrom signal import *\nnoted = []\nsignal(SIGUSR1, lambda *_: noted.append(rank))")
    kernel.run("rc.send_signal('SIGUSR1', targets=[1, 3], block=True)")
    assert kernel.run("%px print(noted)") == "[ranks 0, 2] []\n[stdout:1] [1]\n[stdout:3] [3]\n"
    kernel.run("rc.send_signal('SIGKILL', targets=[2])")
    said = kernel.run("%%px\nwhile True:\n    comm.Barrier()")
    assert "RankDied: rank 2 was killed by signal 9" in said, said


CHECK = """
import sys
from labkit.checks.judging import judge_text
from labkit.exercises import catalogue
exercise = catalogue.find("shift_right")
text = exercise.text.replace("):\\n", "):\\n    open({!r}, 'a').close()\\n    while True: pass\\n", 1)
print(judge_text(exercise, text))
"""


@pytest.mark.skipif(not LINUX, reason="elsewhere, the processes of a check are not forked")
def test_three_kinds_of_process_are_between_a_notebook_and_the_code_of_its_check(tmp_path: Path) -> None:
    """The process that forks the others (below its supervisor), the judge, and what forks the ranks."""
    marker = tmp_path / "runs"
    with subprocess.Popen(
        [sys.executable, "-c", CHECK.format(str(marker))], stdout=subprocess.PIPE
    ) as notebook:
        wait_until(marker.exists, "the function runs")
        processes = psutil.Process(notebook.pid).children(recursive=True)
        found = Counter(kind(process) for process in processes)
        output = notebook.communicate()[0].decode()
    assert "has not ended" in output or "does not end" in output, output
    assert set(found) - {"launcher", "stand-in"} == {"supervisor", "labkit.checks.forked"}
    # Each rank of a check is two processes, because mpiwatch watches it.
    ranks = 4
    if is_mpich(launch.mpiexec()):
        assert found == {"supervisor": 1, "labkit.checks.forked": 3 + 2 * ranks}
    else:
        assert found["launcher"] == 1 and found["stand-in"] == ranks


# Compiled code that holds Python's lock: no other thread of the rank can run.
HOLDS = "%%px\nimport ctypes, signal\n{}open(f'{}/{{rank}}', 'w').close()\nctypes.PyDLL(None).sleep(600)"


def test_ranks_that_let_no_other_thread_run_are_interrupted_or_ended(kernel: Kernel, tmp_path: Path) -> None:
    assert "4 ranks" in kernel.run(CONNECT)
    for ignored, expected in (
        ("", "the cell was stopped"),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)\n", "the engines were ended"),
    ):
        message = kernel.start(HOLDS.format(ignored, tmp_path))
        wait_until(lambda: len(list(tmp_path.glob("[0-3]"))) == 4, "all ranks in the cell")
        kernel.manager.interrupt_kernel()
        said = kernel.finish(message)
        assert re.search(expected, said), said
        for file in tmp_path.glob("[0-3]"):
            file.unlink()
    assert "4 ranks" in kernel.run(CONNECT)


COUNT = """
from labkit.cluster.ranks import Ranks
plain, looks = Ranks.renew_if_due, []
Ranks.renew_if_due = lambda ranks: looks.append(1) or plain(ranks)
"""


def test_a_cell_looks_at_the_ranks_once_before_it_is_sent(kernel: Kernel) -> None:
    """A view's methods look, too; for the cell's own message they used to do it a second time."""
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run(COUNT)
    kernel.run("%px pass")
    assert kernel.run("print(len(looks))") == "1\n"
    # The message by which ranks get fresh communicators after a failed cell leads to no other look.
    kernel.run("%px 1 / 0")
    kernel.run("looks.clear()")
    kernel.run("%px print(comm.allreduce(1))")
    assert kernel.run("print(len(looks))") == "1\n"
