"""What a failed cell leaves behind does not reach the next one: messages, requests, communicators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import Kernel, World, by_rank

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=2{})"
NEXT = "right, left = (rank + 1) % size, (rank - 1) % size\n"


@pytest.fixture(scope="module", params=["", ", strict=True"], ids=["watched", "strict"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel with four ranks that all tests share: no test may find anything left of the others."""
    world = World(tmp_path_factory.mktemp("failed") / "ipython")
    kernel = Kernel(world)
    assert "4 ranks" in kernel.run(CONNECT.format(request.param))
    kernel.run(f"%%px\nfrom mpi4py import MPI\n{NEXT}")
    yield kernel
    kernel.end()
    world.wait_until_empty()


def printed(kernel: Kernel, cell: str) -> list[str]:
    """Return the first line that each rank has printed in a cell."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", kernel.run(f"%%px\n{cell}"))
    found = dict(re.findall(r"^\[stdout:(\d)\]\s+(.*)$", by_rank(said), re.MULTILINE))
    assert sorted(found) == list("0123"), said
    return [found[rank] for rank in "0123"]


def test_a_message_of_a_hang_does_not_reach_the_corrected_cell(shared: Kernel) -> None:
    cell = "print(comm.sendrecv(({!r}, rank), dest=right, source={}))"
    said = shared.run("%%px\n" + cell.format("old", "right"))
    assert "HangError" in said and "in flight" not in said, said
    assert printed(shared, cell.format("new", "left")) == [f"('new', {(rank - 1) % 4})" for rank in range(4)]


def test_a_rank_that_polls_for_ever_is_reported_and_does_not_receive_later(shared: Kernel) -> None:
    said = shared.run(
        "%%px\nx = np.zeros(1)\nold = comm.isend('old', right, 4)\nrequest = comm.Irecv(x, left, 3)\n"
        "while not (request.Test() or comm.Iprobe(left, 5) or comm.improbe(left, 5)):\n    pass"
    )
    assert re.search(r"rank \d has called (Test|Iprobe|improbe) [\d,]{5,} times without success", said), said
    assert printed(shared, "r = comm.isend(rank, right)\nprint(comm.recv(source=left))\nr.wait()") == [
        *"3012"
    ]


@pytest.mark.parametrize("fault", ["1 / 0", "raise SystemExit", "import os, signal\nos.kill(os.getpid(), 2)"])
@pytest.mark.parametrize("failing", ["True", "rank == 2"])
def test_messages_of_a_failed_cell_are_of_no_consequence(shared: Kernel, fault: str, failing: str) -> None:
    send = "comm.send(b'garbage', right, 3)\ncomm.Isend(np.arange(300_000.0), right, 3)\n"
    shared.run(f"%%px\nimport time\n{send}if {failing}:\n    " + fault.replace("\n", "\n    "))
    cell = "request = comm.isend(rank * 11, right, 3)\nprint(comm.recv(source=left, tag=3))\nrequest.wait()"
    if failing != "True":  # the other ranks may have ended the cell well
        assert printed(shared, cell) == [f"{(rank - 1) % 4 * 11}" for rank in range(4)]
    assert printed(shared, cell) == [f"{(rank - 1) % 4 * 11}" for rank in range(4)]


def test_the_world_goes_on_and_what_was_made_from_it_names_the_cell_to_run_again(shared: Kernel) -> None:
    made = shared.run(
        "%%px\nworld, alias = MPI.COMM_WORLD, comm\nhalf = comm.Split(rank // 2)\n"
        "ring = comm.Create_cart([size], [True])\nraw = MPI.Intracomm(comm)\n"
        "window = MPI.Win.Allocate(8, comm=comm)\nside = comm.Split(rank % 2)\n"
        "across = side.Create_intercomm(0, comm, 1 - rank % 2, 4)\n"
        "request = half.Irecv(np.zeros(1), 0, 99)"
    )
    assert "Error" not in made, made
    cell = last_number(shared)
    send = "for one in (world, alias):\n    one.Isend(np.full(3, -1.0), right, 1)\n"
    assert "ZeroDivisionError" in shared.run(f"%%px\n{send}1 / 0")
    failed = last_number(shared)
    exchange = (
        "got = []\nfor one in (world, alias, comm):\n    y = np.empty(3)\n"
        "    one.Sendrecv(np.full(3, float(rank)), right, 1, y, left, 1)\n    got.append(int(y[0]))\n"
        "print(got, MPI.COMM_WORLD is comm)"
    )
    assert printed(shared, exchange) == [f"{[(rank - 1) % 4] * 3} True" for rank in range(4)]
    uses = {
        "half.allreduce(1)": "communicator",
        "half.Isend(np.ones(1), 0)": "communicator",
        "ring.Sub([True])": "communicator",
        "raw.Barrier()": "communicator",
        "across.barrier()": "communicator",
        "window.Fence()": "window",
        "request.Wait()": "request of Irecv",
        "MPI.Request.Waitall([request])": "request of Irecv",
    }
    for use, what in uses.items():
        said = shared.run(f"%%px\n{use}")
        again = rf"this {what}, made at cell \[{cell}\] line \d+: `.*`, ended when\s+cell \[{failed}\]"
        assert re.search(again, said), said
        assert re.search(rf"run\s+cell\s+\[{cell}\]\s+again", said), said
    shared.run("%%px\nhalf.Free()\nring.Free()\nwindow.Free()")
    assert printed(shared, "print(half.rank, ring.size)") == [f"{rank % 2} 4" for rank in range(4)]


def last_number(kernel: Kernel) -> str:
    """Return the number of the last cell."""
    return kernel.run("print(len(In) - 2)").strip()


def test_a_communicator_that_not_all_ranks_got_does_no_harm(shared: Kernel) -> None:
    said = shared.run("%%px\nif rank:\n    part = comm.Split(0)\nelse:\n    1 / 0")
    assert "ZeroDivisionError" in said
    assert printed(shared, "part = comm.Split(0)\nprint(part.allreduce(rank))") == ["6"] * 4


def test_a_copy_of_a_communicator_that_was_freed_does_no_harm(shared: Kernel) -> None:
    made = "from mpi4py import MPI\npart = comm.Dup()\ncopy = MPI.Intracomm(part)\npart.Free()\n1 / 0"
    assert "ZeroDivisionError" in shared.run(f"%%px\n{made}")
    assert printed(shared, "print(comm.allreduce(rank))") == ["6"] * 4


def test_a_receive_left_over_does_not_take_the_next_message(shared: Kernel) -> None:
    shared.run(
        "%%px\ny = np.zeros(4)\nlost = comm.Irecv(y, left, 7)\nhidden = [comm.irecv(source=left)]\n1 / 0"
    )
    cell = (
        "x, z = np.full(4, 1.0 + rank), np.empty(4)\nr = comm.Isend(x, right, 7)\ncomm.Recv(z, left, 7)\n"
        "r.Wait()\nprint(z[0], y[0])"
    )
    assert printed(shared, cell) == [f"{1.0 + (rank - 1) % 4} 0.0" for rank in range(4)]
    shared.run("%%px\ndel lost, hidden, y\n1 / 0")
    assert printed(shared, "print(comm.allreduce(1))") == ["4"] * 4


def test_collectives_and_persistent_requests_left_over_do_no_harm(shared: Kernel) -> None:
    shared.run(
        "%%px\nout = np.zeros(1000)\nif rank:\n    pending = comm.Iallreduce(np.ones(1000), out)\n"
        "again = comm.Recv_init(np.zeros(3), left, 9)\nagain.Start()\n1 / 0"
    )
    cell = (
        "pending = again = None\nx, out = np.full(1000, 2.0), np.zeros(1000)\n"
        "comm.Iallreduce(x, out).Wait()\n"
        "print(out[0], comm.allreduce(rank))"
    )
    assert printed(shared, cell) == ["8.0 6"] * 4


def test_functions_that_a_client_applies_count_as_cells(shared: Kernel) -> None:
    function = (
        "def exchange(value, fail):\n    from mpi4py import MPI\n    comm = MPI.COMM_WORLD\n"
        "    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size\n"
        "    request = comm.isend((value, comm.rank), right, 4)\n    if fail:\n        1 / 0\n"
        "    received = comm.recv(source=left, tag=4)\n    request.wait()\n    return received\n"
    )
    assert "ZeroDivisionError" in shared.run(f"{function}rc[:].apply_sync(exchange, 'old', True)")
    said = shared.run("print(rc[:].apply_sync(exchange, 'new', False))")
    assert said.strip() == str([("new", (rank - 1) % 4) for rank in range(4)])


def test_connect_does_not_let_messages_of_a_failed_cell_through(shared: Kernel) -> None:
    shared.run("%%px\ncomm.isend('old', right, 6)\n1 / 0")
    assert "4 ranks" in shared.run("rc = connect(4, deadline_s=2)")
    cell = "r = comm.isend(rank, right, 6)\nprint(comm.recv(source=left, tag=6))\nr.wait()"
    assert printed(shared, cell) == [f"{(rank - 1) % 4}" for rank in range(4)]


def test_a_message_of_a_cell_that_ended_well_can_be_received_in_the_next(shared: Kernel) -> None:
    shared.run("%%px\nrequest = comm.isend(('kept', rank), right, 8)")
    cell = "print(comm.recv(source=left, tag=8))\nrequest.wait()"
    assert printed(shared, cell) == [f"('kept', {(rank - 1) % 4})" for rank in range(4)]


@pytest.mark.parametrize(
    "fault", ["sys.stdout.close()", "sys.stdout = None", "sys.stderr = open(os.devnull)"]
)
def test_a_rank_that_closes_its_output_can_print_in_the_next_cell(shared: Kernel, fault: str) -> None:
    close = "\n    sys.stderr.close()" if "stderr" in fault else ""
    shared.run(f"%%px\nimport os, sys\nif rank == 1:\n    {fault}{close}")
    assert printed(shared, "print(comm.allreduce(1), file=sys.stdout)") == ["4"] * 4
    assert "4 ranks" in shared.run("rc = connect(4, deadline_s=2)")
    assert printed(shared, "print(comm.allreduce(rank))") == ["6"] * 4


def test_what_a_cell_leaves_is_named(shared: Kernel) -> None:
    if "strict" in shared.run("%%px --targets 0\nprint(type(comm).__mro__)").lower():
        kept = shared.run("%%px\nrequest = comm.Isend(np.zeros(4), right, 3)\ncomm.Barrier()")
        assert "never waited for" not in kept, kept  # a later cell may wait for it
        lost = shared.run("%%px\ncomm.Recv(np.zeros(4), left, 3)\nrequest = None")
        assert lost.count("the request of Isend to rank") == 4 and "Strict mode found an error:" in lost, lost
        return
    said = shared.run("%%px\nif rank == 2:\n    comm.send('lost', dest=1, tag=9)")
    assert "rank 1 has not received a message from rank 2, tag 9, sent at cell" in said
    assert re.search(r"line 3: `comm\.send\('lost', dest=1, tag=9\)`; a later cell can receive it\.", said), (
        said
    )
    assert "not received" not in shared.run("%%px\nif rank == 1:\n    print(comm.recv(source=2, tag=9))")
    said = shared.run("%%px\nx = np.ones(3)\nsending = [comm.Isend(x, right, 4), comm.isend(1, left, 5)]")
    # Which of them are found depends on which have arrived.
    assert re.search(r"rank \d has not received a message from rank \d, tag [45], sent at cell", said), said
    cell = "y = np.zeros(3)\ncomm.Recv(y, left, 4)\nprint(comm.recv(source=right, tag=5))"
    assert printed(shared, cell) == ["1"] * 4
    assert "not received" not in shared.run("%%px\nMPI.Request.waitall(sending[1:])\nsending[0].Wait()")


def test_a_request_that_a_cell_leaves_open_is_named_below_that_cell_only(shared: Kernel) -> None:
    said = shared.run("%%px\nfirst = comm.Irecv(np.zeros(1), left, 12)")
    is_strict = "strict" in shared.run("%%px --targets 0\nprint(type(comm).__mro__)").lower()
    named = 0 if is_strict else 1  # in strict mode, a later cell may wait for it
    assert said.count("the request of Irecv at cell") == named, said
    assert "Irecv" not in shared.run("%%px\nx = np.ones(1)")
    said = shared.run("%%px\nif rank == 1:\n    second = comm.Irecv(np.zeros(1), left, 13)")
    assert "first" not in said and said.count("the request of Irecv at cell") == named, said
    cell = (
        "%%px\ncomm.Send(x, right, 12)\nfirst.Wait()\n"
        "if right == 1:\n    comm.Send(x, right, 13)\nif rank == 1:\n    second.Wait()"
    )
    assert "Irecv" not in shared.run(cell)
