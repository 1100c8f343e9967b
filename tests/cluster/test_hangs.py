"""Hangs, stops and deaths on real engines: a message names the rank, and all ranks work in the next cell."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep

import psutil
import pytest
from mpi4py import MPI

from tests.cluster.hang_cases import (
    CANNOT_LEAVE,
    HANGS,
    POLLS_BETWEEN,
    SCHEDULE,
    STUCK,
    STUCK_IN_MPI,
    WATCHED,
    WINDOW,
    WORKING,
)
from tests.cluster_fixtures import Kernel, Start, World, by_rank, wait_until
from tests.conftest import thorough

pytestmark = pytest.mark.clusters

DEADLINE_S = 2
CONNECT = f"from labkit.cluster import connect\nrc = connect(4, deadline_s={DEADLINE_S})"
RAW = "from mpi4py import MPI\nraw = MPI.Intracomm(MPI.COMM_WORLD)\n"  # the MPI library's own communicator


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that all tests share: no test may find anything left of the hangs of others."""
    world = World(tmp_path_factory.mktemp("hangs") / "ipython")
    kernel = Kernel(world)
    assert "4 ranks" in kernel.run(CONNECT)
    yield kernel
    kernel.end()
    world.wait_until_empty()


def recover(kernel: Kernel) -> None:
    """Check that four engines work, if need be connected anew."""
    if "4\n" * 4 not in (said := numbers(kernel.run("%px print(comm.allreduce(1))"))):
        assert "4 ranks, one MPI world" in kernel.run(CONNECT)
        said = numbers(kernel.run("%px print(comm.allreduce(1))"))
    assert said == "4\n" * 4, said
    kernel.run(f"%px comm.deadline_s = {DEADLINE_S}")  # a cell may have changed it


def numbers(said: str) -> str:
    return "".join(
        f"{number}\n" for number in re.findall(r"^(?:\[stdout:\d+\] )?(\d+)$", by_rank(said), re.MULTILINE)
    )


@pytest.mark.parametrize("what", HANGS)
def test_a_hang_ends_the_cell_with_a_report_that_names_the_rank(shared: Kernel, what: str) -> None:
    cell, expected = HANGS[what]
    said = shared.run(f"%%px\n{cell}")
    for pattern in expected:
        assert re.search(pattern, said), said
    assert said.count("HangError") == 1, said  # shown once, however many ranks raised it
    recover(shared)


@pytest.mark.parametrize("what", [each if each == "apply_sync" else thorough(each) for each in STUCK_IN_MPI])
def test_ranks_stuck_in_mpi_end_with_a_report_and_new_ones_work(shared: Kernel, what: str) -> None:
    cell, expected = STUCK_IN_MPI[what]
    shared.run(CANNOT_LEAVE)
    said = shared.run(cell)
    assert said.count("HangError") == 1 and re.search(expected, said), said
    assert "could not leave MPI: the engines were ended" in said, said
    assert "could not leave MPI" in shared.run("rc[:].apply_sync(int)")  # until `connect()`
    recover(shared)


BY_DEFAULT = "COMM_WORLD", "a part of a communicator that is not watched"


@pytest.mark.parametrize("what", [each if each in BY_DEFAULT else thorough(each) for each in WATCHED])
def test_ranks_that_raise_keep_their_variables(shared: Kernel, what: str) -> None:
    cell, expected = WATCHED[what]
    shared.run("%px kept = 4")
    said = shared.run(cell)
    assert said.count("HangError") == 1 and re.search(expected, said), said
    shared.run(CONNECT)
    assert numbers(shared.run("%px print(comm.bcast(kept))")) == "4\n" * 4


def test_several_hangs_of_calls_that_only_some_ranks_make_leave_the_session_intact(shared: Kernel) -> None:
    """With Open MPI, messages of the first meeting once reached what renews the communicators."""
    shared.run("%px kept = 4")
    for _ in range(3):
        said = shared.run("%%px\nif rank != 2:\n    comm.Create_group(comm.Get_group())")
        assert "is waiting in Create_group: rank 2 has not called it" in said, said
        assert numbers(shared.run("%px print(comm.bcast(kept))")) == "4\n" * 4


# A call that waits for another program; MPICH waits there with a lock that every other call needs.
FOR_OTHERS = {
    "Accept": "MPI.COMM_SELF.Accept(MPI.Open_port())",
    "Spawn": "MPI.COMM_SELF.Spawn('true')",
}


@pytest.mark.parametrize("call", ["Accept", thorough("Spawn")])
def test_a_rank_that_waits_for_another_program(shared: Kernel, call: str) -> None:
    shared.run("%px kept = 4")
    if call == "Spawn" and MPI.get_vendor()[0] == "MPICH":
        said = shared.run(f"%%px\nfrom mpi4py import MPI\n{FOR_OTHERS[call]}")
        assert "MPI_Comm_spawn" in said and "4" in shared.run("%px print(kept)"), said
        return  # without mpiexec, MPI refuses at once
    said = shared.run(f"%%px\nfrom mpi4py import MPI\nif rank == 3:\n    {FOR_OTHERS[call]}\ncomm.Barrier()")
    assert re.search(rf"it is in {call} at cell line 4[\s\S]*{call} on rank 3 ends when", said), said
    if MPI.get_vendor()[0] == "Open MPI":
        assert "connect(restart=True)" in said and "engines were ended" not in said, said
        assert numbers(shared.run("%px print(comm.bcast(kept))")) == "4\n" * 4
    else:
        assert "rank 3 could not leave MPI: the engines were ended" in said, said
    recover(shared)


def test_autopx(shared: Kernel) -> None:
    shared.run("%autopx")
    said = shared.run("if rank != 2:\n    comm.Barrier()")
    shared.run("%autopx")
    assert said.count("HangError") == 1 and "rank 2 never joined collective #1 (Barrier)" in said, said


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
    assert by_rank(said).count("went on") == 4 and "HangError" not in said, said


@pytest.mark.parametrize("work", WORKING)
def test_a_rank_that_works_between_its_polls_is_not_reported(shared: Kernel, work: str) -> None:
    said = shared.run(f"%%px\n{POLLS_BETWEEN.format(WORKING[work])}")
    assert numbers(said) == "4\n" * 4, said


@pytest.mark.parametrize("which", ["comm", thorough("MPI.Intracomm(comm)")])
def test_a_schedule_works_again_after_one_rank_missed_it(shared: Kernel, which: str) -> None:
    """The values sent before the hang must not be received after it."""
    if MPI.get_vendor()[0] == "Open MPI" and which != "comm":
        pytest.skip("a barrier that a rank never joins leaves Open MPI's next collective out of step")
    for call in (
        f"run({which}, ring_allreduce(size), x)",
        f"RingComm({which}).Allreduce(MPI.IN_PLACE, x)",
        "ring.Allreduce(MPI.IN_PLACE, x)",
    ):
        shared.run(f"%%px\n{SCHEDULE}ring = RingComm({which})\nring.Allreduce(MPI.IN_PLACE, x)")
        said = shared.run(f"%%px\n{SCHEDULE}x *= 1000\nif rank != 2:\n    {call}")
        assert said.count("HangError") == 1 and "rank 2" in said, said
        said = shared.run(f"%%px\n{SCHEDULE}ring = RingComm({which})\n{call}\nprint(int(x.sum()))")
        assert numbers(said) == "40\n" * 4, said


def test_a_rank_that_starts_the_cell_after_the_others_disagree(shared: Kernel) -> None:
    shared.run("import time\nbusy = rc[2].apply_async(time.sleep, 2)")
    said = shared.run("%%px\nx = np.ones(10 + rank)\ncomm.Allreduce(x, x.copy())")
    assert re.search(r"rank 2 .*never joined #1: it is at ", said), said
    recover(shared)


SLEEPS = "import time\nopen(mark, 'w').close()\ntime.sleep(100)"


def stopped(kernel: Kernel, folder: Path, cell: str, ranks: int = 4) -> str:
    """Press the stop button when so many ranks have made the file `mark` in a cell; return its output."""
    message = kernel.start(f"%%px\nmark = f'{folder}/{{rank}}'\n{cell}")
    wait_until(lambda: len(os.listdir(folder)) == ranks, "ranks in the cell")
    kernel.manager.interrupt_kernel()
    said = kernel.finish(message)
    assert "KeyboardInterrupt: the cell was stopped" in said, said
    return said


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            "open(mark, 'w').close()\nif rank != 2:\n    comm.Barrier()",
            "ranks 0, 1, 3 are waiting in Barrier",
        ),
        (
            f"{RAW}open(mark, 'w').close()\nif rank != 2:\n    raw.Barrier()",
            # The watchdogs know after a while only that these ranks are inside of MPI.
            r"were stopped:\s+((ranks? [013, ]+ (is|are) (in Barrier )?at cell line 7: `raw\.Barrier\(\)`|"
            r"rank 2 has returned from the cell)\s+){2,4}",
        ),
        (
            f"from mpi4py import MPI\nopen(mark, 'w').close()\nif rank != 2:\n    {STUCK}",
            r"were stopped:\s+((ranks? [013, ]+ (is|are) (in Barrier )?at cell line 6: `MPI.*`|"
            r"rank 2 has returned from the cell)\s+){2,4}ranks 0, 1, 3 did not respond",
        ),
        (
            "import time\nx = 1 | 2; open(mark, 'w').close(); time.sleep(100)",
            re.escape("ranks 0–3 are at cell line 4: `x = 1 | 2; open(mark, 'w').close(); time.sleep(100)`"),
        ),
    ],
)
def test_the_stop_button_ends_the_cell_and_shows_where_the_ranks_were(
    shared: Kernel, tmp_path: Path, cell: str, expected: str
) -> None:
    shared.run("%px comm.deadline_s = 60")
    if STUCK in cell:
        shared.run(CANNOT_LEAVE)
    said = stopped(shared, tmp_path, cell)
    assert re.search(expected, said), said
    assert ("engines were ended" in said) == (STUCK in cell)
    recover(shared)


def test_an_interrupt_while_a_rank_shows_its_error_does_not_lose_its_answer(shared: Kernel) -> None:
    """On a busy machine, the notebook interrupts ranks that have just raised."""
    said = shared.run(
        "%%px\n"
        "import functools, subprocess\n"
        "error = ValueError('shown')\n"
        "interrupt_parent = ['sh', '-c', 'kill -INT $PPID']\n"
        "error._render_traceback_ = functools.partial(subprocess.check_output, interrupt_parent, text=True)\n"
        "raise error"
    )
    assert "ValueError" in said and "KeyboardInterrupt" not in said and "RankDied" not in said, said
    assert "[0, 1, 2, 3]" in shared.run("print(rc[:]['rank'])")


# As on a busy machine, one rank begins the cell only after the first interrupt.
BEGINS_LATE = """
import os, signal
from labkit.cluster.ranks import Ranks

late = max(rc[:].apply_sync(os.getpid))
interrupt, interrupts = Ranks.interrupt, []

def interrupt_before_the_cell(ranks, result):
    interrupts.append(result)
    interrupt(ranks, result)
    os.kill(late, signal.SIGCONT)

Ranks.interrupt = interrupt_before_the_cell
os.kill(late, signal.SIGSTOP)
"""


def test_a_rank_that_begins_a_cell_after_the_stop_button_is_stopped_too(
    shared: Kernel, tmp_path: Path
) -> None:
    shared.run(BEGINS_LATE)
    said = stopped(shared, tmp_path, SLEEPS, ranks=3)
    shared.run("Ranks.interrupt = interrupt")
    assert "engines were ended" not in said, said
    assert "True" in shared.run("print(len(interrupts) > 1)")
    assert numbers(shared.run("%px print(comm.allreduce(1))")) == "4\n" * 4


GOES_ON = """
import time
try:
    open(mark, "w").close()
    time.sleep(100)
except KeyboardInterrupt:
    time.sleep(100)
"""


def test_a_cell_that_goes_on_after_an_interrupt_gets_another_one(shared: Kernel, tmp_path: Path) -> None:
    said = stopped(shared, tmp_path, GOES_ON)
    assert "engines were ended" not in said, said


def test_a_cell_can_be_stopped_even_if_the_report_fails(shared: Kernel, tmp_path: Path) -> None:
    shared.run("import labkit.cluster.ranks as cell\nworking, cell.take_snapshot = cell.take_snapshot, None")
    said = stopped(shared, tmp_path, SLEEPS)
    shared.run("cell.take_snapshot = working")
    assert "There is no report of what the ranks were doing: TypeError" in said, said
    assert numbers(shared.run("%px print(comm.allreduce(1))")) == "4\n" * 4


@pytest.mark.parametrize("victim", ["an engine", "the controller", thorough("the whole cluster")])
def test_a_killed_process_ends_the_cell_and_is_named(shared: Kernel, tmp_path: Path, victim: str) -> None:
    message = shared.start(
        f"%%px\nimport os, time\nopen(f'{tmp_path}/{{os.getpid()}}-{{rank}}', 'w').close()\ntime.sleep(100)"
    )
    wait_until(lambda: len(os.listdir(tmp_path)) == 4, "all ranks in the cell")
    for process in shared.world.processes():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.pid != shared.pid and (
                victim == "the whole cluster"
                or (victim == "the controller" and "-m labkit.cluster.adapter.controller" in command)
            ):
                process.kill()
    if victim == "an engine":
        (name,) = (name for name in os.listdir(tmp_path) if name.endswith("-2"))
        os.kill(int(name.split("-")[0]), signal.SIGKILL)
    said = shared.finish(message)
    expected = (
        "rank 2 was killed by signal 9" if victim == "an engine" else "the cluster's controller has ended"
    )
    assert f"RankDied: {expected}" in said, said
    recover(shared)


def test_a_laptop_that_sleeps_is_no_hang(shared: Kernel) -> None:
    """Time in which no process runs does not count as waiting."""
    message = shared.start("%%px\nimport time\ntime.sleep(rank / 2)\ncomm.Barrier()\nprint(rank)")
    processes = [process for process in shared.world.processes() if process.pid != shared.pid]
    for process in processes:
        process.suspend()
    sleep(DEADLINE_S + 1)  # the time that passes is what is tested
    for process in processes:
        process.resume()
    assert numbers(shared.finish(message)) == "0\n1\n2\n3\n"
    recover(shared)


def test_a_restarted_kernel_replaces_engines_in_the_cell_of_the_old_one(
    kernel: Kernel, tmp_path: Path, ipcluster: Start
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    ipcluster("--engines=MPI", "-n", "4")
    kernel.run(f"{CONNECT[:-1]}0)")  # ten times as long: the kernel restarts before the watchdog acts
    kernel.start(
        f"%%px\nmark = rank\nopen(f'{here}/{{rank}}', 'w').close()\n{RAW}if rank:\n    raw.Barrier()"
    )
    wait_until(lambda: len(os.listdir(here)) == 4, "all ranks in the cell")
    kernel.restart()
    said = kernel.run(CONNECT)
    assert "not all answered" in said and "`rc = connect(n=4, restart=True)`" in said, said
    assert "4 ranks, one MPI world" in kernel.run(f"{CONNECT[:-1]}, restart=True)")
    recover(kernel)
    assert "NameError" in kernel.run("%px print(mark)")


def test_the_last_hang_is_known_after_a_connect_to_new_ranks(kernel: Kernel) -> None:
    kernel.run("from labkit.cluster import connect, last_hang\nrc = connect(2, restart=True)")
    assert kernel.run("print(last_hang())").strip() == "None"
    assert "HangError" in kernel.run("%%px\nif rank == 0:\n    comm.Barrier()")
    kernel.run("rc = connect(2, restart=True)")
    assert "Report(reason=" in kernel.run("print(last_hang())")


def test_new_ranks_name_the_cells_to_run_again(kernel: Kernel) -> None:
    connect_ = "from labkit.cluster import connect\nrc = connect(2, restart=True)"
    assert "%%px cell" not in kernel.run(connect_)
    for cell in ("import math", "def f():\n    pass", "print(rank)", "x = 1"):
        kernel.run(f"%%px\n{cell}")
    assert "run the %%px cells [2] to [3], [5] again" in kernel.run(connect_)
    assert "%%px cell" not in kernel.run(connect_)
