"""connect(): start, find, check, tell of a death, bring back — in real kernels, with real engines."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster_fixtures import Kernel, Start, World, wait_until

CONNECT = "from labkit.cluster import connect\nrc = connect({n})"
WITNESS = ["-m", "labkit.cluster.engine.exit_recorder"]
NEW_WORLD = "%px print(rank, size, comm.rank, np.__name__)"


def lines_of_ranks(said: str) -> list[str]:
    return re.findall(r"^(?:\[stdout:\d+\] )?(\d.*)$", said, re.MULTILINE)


def expected(n: int) -> list[str]:
    return [f"{rank} {n} {rank} numpy" for rank in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_it_starts_a_world_of_n_ranks(kernel: Kernel, n: int) -> None:
    said = kernel.run(CONNECT.format(n=n))
    assert f"{n} rank{'s' * (n > 1)}, one MPI world, engine id = rank" in said
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(n)
    kernel.run("%px import os; threads = os.environ['OMP_NUM_THREADS']")
    assert kernel.run("print(rc[:]['threads'])") == f"{['1'] * n}\n"
    kernel.run("%px total = comm.allreduce(rank)")
    assert kernel.run("print(rc[:]['total'])") == f"{[n * (n - 1) // 2] * n}\n"


def test_a_second_call_finds_the_same_engines(kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=2))
    kernel.run("%px mark = rank + 10")
    assert "this notebook's cluster" in kernel.run(CONNECT.format(n=2))
    assert kernel.run("print(rc[:]['mark'])") == "[10, 11]\n"


def test_another_size_makes_room(kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=2))
    kernel.run(CONNECT.format(n=3))
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(3)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed by signal 9 \(SIGKILL\)"),
        ("os._exit(3)", "ended with exit code 3"),
        ("os._exit(0)", "ended with exit code 0"),
    ],
)
def test_a_death_names_its_rank_and_one_call_brings_all_back(kernel: Kernel, end: str, how: str) -> None:
    kernel.run(CONNECT.format(n=4))
    said = kernel.run(f"%%px\nimport os, signal\nif rank == 2:\n    {end}\ncomm.Barrier()")
    assert re.search(rf"RankDied: rank 2 {how}, and MPI ended the other ranks", said), said
    assert "RankDied: rank 2" in kernel.run("%px print(rank)")
    assert "4 ranks, one MPI world" in kernel.run("rc = connect(4)")
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(4)


def test_a_restart_needs_no_engines_to_end(kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=2))
    kernel.run("%px import os; os._exit(1)")
    kernel.run("while rc.ids:\n    pass")
    assert "2 ranks, one MPI world" in kernel.run("rc = connect(2, restart=True)")


def test_ranks_that_mpi_leaves_behind_a_death_are_replaced(world: World, kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=3))
    witnesses = [process for process in world.processes() if process.cmdline()[1:3] == WITNESS]
    starters = {process.parent() for process in witnesses} - {*witnesses}
    for starter in starters:  # neither learns of a death nor does anything about it
        starter.suspend()
    assert "RankDied: rank 1" in kernel.run("%%px\nimport os\nif rank == 1:\n    os._exit(0)")
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3)")
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(3)


def test_an_error_of_the_students_own_stays_as_it_is(kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=2))
    said = kernel.run("%px 1 / (rank + 1 - size)")
    assert "ZeroDivisionError" in said
    assert "RankDied" not in said


def test_an_interrupt_is_an_error_and_the_engines_go_on(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(CONNECT.format(n=2))
    message = kernel.start(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\nwhile True: pass")
    wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "both engines in their loop")
    kernel.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in kernel.finish(message)
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(2)


def test_stuck_engines_are_told_of_and_replaced(kernel: Kernel, ipcluster: Start) -> None:
    ipcluster("--engines=MPI", "-n", "3")
    kernel.run(CONNECT.format(n=3))
    kernel.run("%%px --noblock\nfrom mpi4py import MPI\nif rank > 0:\n    MPI.COMM_WORLD.Barrier()")
    assert "ClusterError: 3 engines are there, but not all have answered" in kernel.run("rc = connect(3)")
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3, restart=True)")
    assert sorted(lines_of_ranks(kernel.run(NEW_WORLD))) == expected(3)


def test_engines_of_ipcluster_outlive_the_kernel(world: World, kernel: Kernel, ipcluster: Start) -> None:
    ipcluster("--engines=MPI", "-n", "4")
    assert "found running" in kernel.run(CONNECT.format(n=4))
    # Engines that are started anew register within a heartbeat.
    assert any("--HeartMonitor.period=100" in command for command in world.commands())
    kernel.run("%px mark = rank + 10")
    kernel.restart()
    assert "found running" in kernel.run(CONNECT.format(n=4))
    assert kernel.run("print(rc[:]['mark'])") == "[10, 11, 12, 13]\n"


def test_revived_engines_belong_to_the_clusters_owner(world: World, kernel: Kernel, ipcluster: Start) -> None:
    started = ipcluster("--engines=MPI", "-n", "2")
    kernel.run(CONNECT.format(n=2))
    # Engines that end before that have failed to start, to ipcluster.
    assert started.stdout and any("started successfully" in line for line in started.stdout)
    kernel.run("%px import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    kernel.run(CONNECT.format(n=2))
    kernel.run("%px mark = rank + 10")
    kernel.restart()
    assert "found running" in kernel.run(CONNECT.format(n=2))
    assert kernel.run("print(rc[:]['mark'])") == "[10, 11]\n"


def test_a_world_of_one_is_an_error_that_names_its_cause(kernel: Kernel, ipcluster: Start) -> None:
    ipcluster("--engines=local", "-n", "2")
    said = kernel.run(CONNECT.format(n=2))
    assert "ClusterError: the 2 engines are 2 MPI worlds of one rank each" in said
    assert "LocalEngineSetLauncher" in said


def test_engines_that_register_while_the_client_connects_are_not_missed(
    kernel: Kernel, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    kernel.run(
        """import time, zmq, ipyparallel as ipp
from ipyparallel.client import client as module
connect_socket, held_up = module.util.connect, []

def hold_up(socket, *where, **security):
    if socket.type == zmq.SUB and not held_up:  # the client has the list of engines, and no news as yet
        held_up.append(True)
        while len(ipp.Client().ids) < 2:
            time.sleep(0.1)
    return connect_socket(socket, *where, **security)

module.util.connect = hold_up"""
    )
    assert "2 ranks, one MPI world" in kernel.run(CONNECT.format(n=2))
    assert "[True]" in kernel.run("held_up")


def test_an_engine_that_gets_no_question_is_asked_again(kernel: Kernel) -> None:
    kernel.run(
        """import ipyparallel as ipp
send, lost = ipp.Client.send_apply_request, []

def lose_one(client, socket, function, *arguments, ident=None, **more):
    if not lost:  # a queue drops what is for engines that it does not know, as those on their way to it
        lost.append(ident)
        ident = b"nobody"
    return send(client, socket, function, *arguments, ident=ident, **more)

ipp.Client.send_apply_request = lose_one"""
    )
    assert "2 ranks, one MPI world" in kernel.run(CONNECT.format(n=2))
    assert kernel.run("print(len(lost))") == "1\n"


def test_a_cluster_without_engines_is_replaced(kernel: Kernel) -> None:
    said = kernel.run("from labkit.cluster import connect\nrc = connect(2, timeout=0.01)")
    assert "ClusterError: 0 of 2 engines came up" in said, said
    said = kernel.run(CONNECT.format(n=2))
    assert "cluster started" in said, said
    assert lines_of_ranks(kernel.run(NEW_WORLD)) == expected(2)


def test_a_cluster_of_another_notebook_is_left_alone(new_kernel: Callable[[], Kernel]) -> None:
    first, second = new_kernel(), new_kernel()
    first.run(CONNECT.format(n=2))
    first.run("%px mark = 'first'")
    assert "cluster started" in second.run(CONNECT.format(n=2))
    assert "NameError" in second.run("%px mark")


def test_stale_files_are_no_cluster_though_others_listen_at_its_ports(
    world: World, kernel: Kernel, ipcluster: Start
) -> None:
    process = ipcluster("--engines=MPI", "-n", "2")
    wait_until(lambda: len(world.cluster_files()) == 3, "the connection files")
    stale = {path: Path(path).read_text() for path in world.cluster_files()}
    ports = {json.loads(said).get("registration") for said in stale.values()} - {None}
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: len(world.processes()) == 1, "only the kernel left")
    for path, said in stale.items():
        Path(path).write_text(said)
    with ExitStack() as others:
        for port in ports:
            others.enter_context(socket.create_server(("127.0.0.1", port)))
        assert ports and "cluster started" in kernel.run(CONNECT.format(n=2))
    for path in stale:
        Path(path).unlink()


def test_a_port_that_is_taken_is_told(world: World, kernel: Kernel) -> None:
    """Of a listener in a child process, too: the sixth port is the heartbeat's."""
    settings = world.folder / "profile_default" / "ipcontroller_config.py"
    settings.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as others:
        held = [others.enter_context(socket.socket()) for _ in range(5)]
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("", 0))
        taken = others.enter_context(socket.create_server(("127.0.0.1", 0)))
        ports = [each.getsockname()[1] for each in (*held, taken)]
        settings.write_text(f"get_config().IPController.ports = {ports}\n")
        said = kernel.run(CONNECT.format(n=2))
        assert "ClusterError: the cluster's controller has ended: " in said, said
        assert re.search(rf"Address already in use .*{ports[-1]}.*Call connect\(\) again", said, re.DOTALL), (
            said
        )
        wait_until(lambda: len(world.processes()) == 1, "only the kernel left")
    assert "cluster started" in kernel.run("rc = connect(2)")
