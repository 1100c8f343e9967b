"""`%%replay` on real engines: it shows what the ranks did, also if the cell hangs, fails or ends a rank."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiwatch.processes import FLIGHT_RECORDER
from tests.cluster_fixtures import Kernel, World, wait_until
from tests.replay.test_replay import picture_in

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=2)"
RING = """
# each rank sends once
got = np.empty(3)
request = comm.Irecv(got, (rank - 1) % size)
comm.Send(np.full(3, float(rank)), (rank + 1) % size)
request.Wait()
print(got[0])
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    world = World(tmp_path_factory.mktemp("replay") / "ipython")
    kernel = Kernel(world)
    assert "4 ranks" in kernel.run(CONNECT)
    yield kernel
    kernel.end()
    world.wait_until_empty()


def html(kernel: Kernel) -> str:
    """Return the replay that the last cell has shown."""
    (shown,) = (output for output in kernel.saved_outputs() if "text/html" in output.get("data", {}))
    return shown["data"]["text/html"] + picture_in(shown["data"]["text/html"])


def recordings() -> list[str]:
    return glob.glob(f"/dev/shm/{FLIGHT_RECORDER}*-recording-*")


def test_a_cell_prints_what_it_prints_and_shows_its_messages(shared: Kernel) -> None:
    said = shared.run(f"# a comment above\n%%replay{RING}")
    assert [f"[stdout:{rank}] {(rank - 1) % 4}.0" in said for rank in range(4)] == [True] * 4, said
    page = html(shared)
    assert page.count('class="message"') == 4 and "cell line 6: `comm.Send(" in page
    assert "The 4 messages fall into 1 round." in said
    said_of_schedule = shared.run(
        "from labkit.cluster import last_replay\nprint(last_replay().schedule()[1])"
    )
    assert said_of_schedule == "24\n", said_of_schedule
    assert "rank 3  " in said and "Send to rank 0, 24 B" in said
    assert recordings() == []
    said = shared.run("%px print(comm.allreduce(1))")  # and the ranks record no more
    assert "4" in said and "text/html" not in str(shared.saved_outputs()), said


def test_a_deadlock_is_drawn_to_its_end_with_the_words_of_its_report(shared: Kernel) -> None:
    said = shared.run("%%replay\ncomm.Ssend(np.ones(1), (rank + 1) % size)")
    assert "CellHung" in said or "HangError" in said
    page = html(shared)
    assert page.count('class="lost"') == 4 and page.count("still waiting for rank") == 4
    assert "wait for each other in a circle" in page
    assert "0.0" in shared.run(f"%%replay{RING}")  # the ranks go on


def test_a_rank_that_never_comes_is_drawn(shared: Kernel) -> None:
    shared.run("%%replay\nif rank != 2:\n    comm.Barrier()")
    assert "rank 2 never came" in html(shared)


def test_a_cell_that_raises_an_error_is_drawn_and_raises_it(shared: Kernel) -> None:
    said = shared.run("%%replay\ncomm.Barrier()\nif rank == 1:\n    1 / 0")
    assert "ZeroDivisionError on rank 1" in said
    assert "ZeroDivisionError on rank 1" in html(shared) and "Barrier" in html(shared)


def test_a_schedule_of_the_lab_is_drawn_with_the_cells_line(shared: Kernel) -> None:
    shared.run(
        "%%replay\nfrom labkit.comm import ALGORITHMS, average\n"
        "gradient = np.full(1000, float(rank), np.float32)\n"
        "average(comm, gradient, 1, ALGORITHMS['ring'])"
    )
    page = html(shared)
    assert page.count('class="message"') >= 24 and "line 4 Isend" in page, page[:3000]


@pytest.mark.parametrize("name", ["tree", "halving-doubling"])
def test_the_labs_algorithms_are_verified(shared: Kernel, name: str) -> None:
    said = shared.run(
        "%%replay\nfrom labkit.comm import ALGORITHMS, average\n"
        "gradient = np.full(1000, float(rank), np.float32)\n"
        f"average(comm, gradient, 1, ALGORITHMS['{name}'])"
    )
    assert "beside its array, they are an all-reduce." in said, said


def test_a_rank_that_cannot_begin_leaves_no_recording(shared: Kernel) -> None:
    shared.run(
        "%%px\nimport resource\nlimits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "if rank == 2:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))"
    )
    said = shared.run("%%replay\nprint(comm.allreduce(1))")
    assert "the ranks cannot be recorded: OSError" in said, said
    assert recordings() == []
    shared.run("%px resource.setrlimit(resource.RLIMIT_FSIZE, limits)")
    assert shared.run("%px print(comm.allreduce(1))").strip().endswith("4")
    assert "text/html" in str(shared.run("%%replay\ncomm.Barrier()") and shared.saved_outputs())


def test_the_ranks_are_looked_at_once_for_a_cell(shared: Kernel) -> None:
    shared.run(
        "from labkit.cluster import ranks as of_ranks\nlooks = []\nbefore = of_ranks.Ranks.renew_if_due\n"
        "def renew_if_due(self):\n    looks.append(1)\n    return before(self)\n"
        "of_ranks.Ranks.renew_if_due = renew_if_due"
    )
    shared.run("%%replay\ncomm.Barrier()")
    looks = shared.run("print(len(looks))\nof_ranks.Ranks.renew_if_due = before").strip()
    assert looks == "1", looks


# A supervisor removes the files of dead ranks, and may do so before the notebook reads them.
SWEPT = """
import os
from labkit.cluster.replay import Recording

finish = Recording.finish

def finish_after_the_sweep(recording):
    for path in recording.paths:
        if os.path.exists(path):
            os.unlink(path)
    return finish(recording)

Recording.finish = finish_after_the_sweep
"""


def test_ranks_that_die_leave_a_replay_and_no_file(shared: Kernel) -> None:
    shared.run(SWEPT)
    said = shared.run("%%replay\nimport os\ncomm.Barrier()\nif rank == 1:\n    os._exit(3)\ncomm.Barrier()")
    assert "rank 1 called os._exit(3)" in said
    assert "Barrier" in html(shared) and recordings() == []
    shared.run("Recording.finish = finish")
    assert "4 ranks" in shared.run(CONNECT)
    assert "0.0" in shared.run(f"%%replay{RING}")


def test_the_smallest_failing_case_of_a_check_can_be_watched(shared: Kernel) -> None:
    wrong = """
def shift_right(comm, array):
    received = np.empty_like(array)
    request = comm.Irecv(received, (comm.rank + 1) % comm.size)
    comm.Send(array, (comm.rank - 1) % comm.size)
    request.Wait()
    return received
check(shift_right)
"""
    shared.run("%px from labkit.exercises import check, run_case")
    said = shared.run(f"%%px{wrong}")
    assert "%%replay" in said and "run_case(shift_right)" in said, said
    said = shared.run("%%replay\nrun_case(shift_right)")
    assert "shift_right with " in said, said
    page = html(shared)
    assert "Send to rank" in said and 'class="message"' in page
    assert "The messages go the other way round" in page and "one right way</th>" in page, page[:3000]
    assert "cell line" in page and "nb00.py" not in page  # the reference's traffic, and not its code
    assert "Rank 0 ends with the result = " in said and "; right is " in said, said
    assert "def shift_right(comm, array):" in page and "messages sent" in page
    assert "where rank r contributes values of 10^r" in said and " of rank 1" in page


OVERLAPPED = """
def average_overlapped(comm, backward, grads, plan):
    requests = []
    todo = iter(plan)
    bucket = next(todo, None)

    def finished(start):
        nonlocal bucket
        if bucket is not None and bucket[0] >= start:
            part = grads[slice(*bucket)]
            part /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, part))
            bucket = next(todo, None)
        for request in requests:
            request.Test()

    backward(finished)
    for request in requests:
        request.Wait()
check(average_overlapped)
"""


def test_requests_that_a_check_notes_can_be_recorded(shared: Kernel) -> None:
    shared.run("%px from mpi4py import MPI; from labkit.exercises import check, run_case")
    said = shared.run(f"%%px{OVERLAPPED}")
    assert "run_case(average_overlapped)" in said, said
    said = shared.run("%%replay\nrun_case(average_overlapped)")
    assert "AttributeError" not in said and "completes the request" in said, said
    page = html(shared)
    assert "Iallreduce" in page and "rank 2" not in page  # the case needs two ranks
    assert "Rank 0 ends with `grads` = " in said and "`grads`" in page, said


def test_communicators_of_cases_are_freed(shared: Kernel) -> None:
    text = "def shift_right(comm, array):\n    return np.zeros(comm.size)\ncheck(shift_right)"
    shared.run("%px from labkit.exercises import check, run_case, watching")
    said = shared.run(f"%%px\n{text}")
    assert "run_case(shift_right)" in said, said
    said = shared.run(
        "%%px\nfor _ in range(80):\n    run_case(shift_right)\nprint(len(watching._communicators))"
    )
    assert "too many are open" not in said, said[-1000:]


PRESS = """
import os, signal
from labkit.cluster.replay import Recording

finish = Recording.finish

def finish_when_pressed(recording):
    os.kill(os.getpid(), signal.SIGINT)
    return finish(recording)

Recording.finish = finish_when_pressed
"""


def test_a_press_of_the_stop_button_while_a_replay_is_made_keeps_the_error(shared: Kernel) -> None:
    shared.run(PRESS)
    said = shared.run("%%replay\ncomm.Barrier()\n1 / 0")
    assert "ZeroDivisionError" in said and "KeyboardInterrupt" not in said, said
    assert "comm.Barrier()" in html(shared)
    shared.run("Recording.finish = finish")


def test_an_error_while_a_replay_is_made_keeps_that_of_the_cell(shared: Kernel) -> None:
    shared.run(
        "from labkit.cluster.replay import Recording\nfinish, Recording.finish = Recording.finish, None"
    )
    said = shared.run("%%replay\n1 / 0")
    shared.run("Recording.finish = finish")
    assert "ZeroDivisionError" in said and "There is no replay: TypeError" in said, said


BEGINS_SLOWLY = """
import labkit.cluster.replay as replay

begin = replay.begin_recording

def begin_slowly():
    import os, time

    path = begin()
    open(f"{folder}/{os.getpid()}", "w").close()
    time.sleep(0.5)
    return path

replay.begin_recording = begin_slowly
"""


def test_a_press_of_the_stop_button_before_the_cell_ends_the_recording(
    shared: Kernel, tmp_path: Path
) -> None:
    shared.run(BEGINS_SLOWLY)
    shared.run(f"rc[:].push({{'folder': {str(tmp_path)!r}, 'begin': begin}}).get()")
    message = shared.start("%%replay\ncomm.Barrier()")
    wait_until(lambda: len(os.listdir(tmp_path)) == 4, "all ranks record")
    shared.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in shared.finish(message)
    shared.run("replay.begin_recording = begin")
    said = shared.run("%px from mpiwatch import sessions; print(sessions.is_recording())")
    assert said == "[ranks 0–3] False\n", said


def test_messages_and_waits_on_emulated_links_are_drawn(shared: Kernel) -> None:
    shared.run("%px import time; from labkit.comm import EmulatedComm, Link; from mpi4py import MPI")
    shared.run("%px net = EmulatedComm(comm, Link(1e6, 1e-3))")
    said = shared.run("""%%replay
chunk, received = np.zeros((2, 1000))
time.sleep(0.5 * (rank == 2))
net.Sendrecv(chunk, (rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
total = np.ones(1000)
net.Iallreduce(MPI.IN_PLACE, total).Wait()
""")
    assert "rank 2 computed" in said and "waited for it in Wait" in said, said
    page = html(shared)
    assert page.count('class="message"') == 4 and page.count('class="lost"') == 0
