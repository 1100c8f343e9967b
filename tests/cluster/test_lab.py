"""`labkit lab` and JupyterLab's cluster panel, with a real server."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import click
import pexpect
import pytest

from labkit.checks.exercise import ORIGINALS
from labkit.cli import lab as lab_command
from labkit.cli.lab import FIRST, JupyterLab, command, transport
from labkit.cluster import PROFILE, RANKS
from tests.cluster.lab_session import Server, ServerKernel
from tests.cluster_fixtures import DEADLINE_S, World, wait_until

pytestmark = pytest.mark.clusters

COMMAND = [sys.executable, "-m", "labkit", "lab", "-n", "2"]
TERMINAL = """\
my-notebooks: your own copies of the notebooks
Starting JupyterLab …
(JupyterLab is still loading [^\n]*
)*JupyterLab: (?P<server>http://\\S+/)lab/tree/my-notebooks/START.md\\?token=(?P<token>\\w+)
Its log: (?P<log>\\S+)
Each notebook starts its ranks in its cell with connect\\(\\) \\(LABKIT_RANKS=2\\).
Ctrl-C ends JupyterLab and the ranks.
"""
CONNECT = "from labkit.cluster import connect\nrc = connect(n=4)"  # LABKIT_RANKS says 2
STARTED = "2 ranks, one MPI world"
HANG = (
    "%%px\nfrom mpi4py import MPI\nif rank == 0:\n    open({mark!r}, 'w')\n    MPI.Intracomm(comm).Barrier()"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder, as it is before the first start."""
    (tmp_path / "lab").mkdir()
    return tmp_path / "lab"


@pytest.fixture
def terminal(world: World, folder: Path) -> Iterator[pexpect.spawn]:
    """Start `labkit lab` in a terminal."""
    terminal = pexpect.spawn(
        COMMAND[0],
        COMMAND[1:],
        cwd=folder,
        env=world.env,
        timeout=DEADLINE_S,
        encoding="utf-8",
        dimensions=(40, 300),
    )
    yield terminal
    terminal.close(force=True)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_terminal_says_what_one_needs_and_nothing_else(
    world: World, folder: Path, tmp_path: Path, terminal: pexpect.spawn
) -> None:
    """A hang, restarts and Ctrl-C add nothing; the originals stay as they are."""
    terminal.expect("Ctrl-C ends.*\n")
    said = terminal.before + terminal.after
    match = re.fullmatch(TERMINAL, said.replace("\r\n", "\n"))
    assert match, said
    before = digest(ORIGINALS / FIRST)
    server = Server(match["server"], match["token"])
    notebook = server.call("GET", f"api/contents/my-notebooks/{FIRST}")
    copied = digest(folder / "my-notebooks" / FIRST)
    page = urllib.request.urlopen(f"{server.url}lab?token={server.token}", timeout=DEADLINE_S).read().decode()
    config = json.loads(page.partition('id="jupyter-config-data"')[2].partition(">")[2].partition("</")[0])
    assert "@jupyterlab/debugger-extension" in config["disabledExtensions"]

    runtime = Path(match["log"]).parent
    kernel = ServerKernel(world, server, f"my-notebooks/{FIRST}", runtime)
    assert world.cluster_files() == []  # no engines before connect()
    assert STARTED in kernel.run(CONNECT)
    assert '"transport": "ipc"' in kernel.file.read_text()
    sleeping = kernel.start("import time\nprint('asleep', flush=True)\ntime.sleep(1000)")
    kernel.finish(sleeping, until="asleep")
    kernel.interrupt()
    assert "KeyboardInterrupt" in kernel.finish(sleeping)
    mark = tmp_path / "rank 0 waits"
    kernel.start(HANG.format(mark=str(mark)))
    wait_until(mark.exists, "rank 0 waits in a barrier")
    kernel.restart()
    assert STARTED in kernel.run(CONNECT)
    kernels = server.call("GET", "api/kernels")
    assert [each["id"] for each in kernels] == [kernel.id]

    notebook["content"]["cells"][0]["source"] += " (mine)"
    server.call("PUT", f"api/contents/my-notebooks/{FIRST}", notebook)
    assert digest(ORIGINALS / FIRST) == before
    assert digest(folder / "my-notebooks" / FIRST) != copied

    terminal.sendintr()
    terminal.expect("Stopping")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    assert terminal.before.replace("\r\n", "\n") in (" …\n^C", "^C …\n", " …^C\n")
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) == (0, None)
    world.wait_until_empty()
    assert not runtime.exists()


def test_the_profile_and_the_number_of_ranks_reach_the_notebooks(world: World, folder: Path) -> None:
    env = {**world.env, PROFILE: "slurm", RANKS: "2"}
    terminal = pexpect.spawn(
        *(COMMAND[0], COMMAND[1:4]), cwd=folder, env=env, timeout=DEADLINE_S, encoding="utf-8"
    )
    try:
        terminal.expect(r"(http://\S+/)lab/tree/\S+\?token=(\w+)\r\nIts log: (\S+)\r\n")
        url, token, log = terminal.match.groups()
        kernel = ServerKernel(world, Server(url, token), f"my-notebooks/{FIRST}", Path(log).parent)
        names = f"os.environ[{PROFILE!r}], os.environ[{RANKS!r}]"
        assert "slurm 2" in kernel.run(f"import os\nprint({names})")
        terminal.expect(r"connect\(\) \(LABKIT_RANKS=2, LABKIT_PROFILE=slurm\)")
        assert world.cluster_files() == []
    finally:
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close(force=True)
    world.wait_until_empty()


def test_the_number_of_ranks_comes_from_the_command_line_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RANKS, raising=False)
    assert command.make_context("lab", []).params["ranks"] is None
    monkeypatch.setenv(RANKS, "3")
    assert command.make_context("lab", []).params["ranks"] == 3
    assert command.make_context("lab", ["-n", "2"]).params["ranks"] == 2


def test_stop_in_the_panel_ends_what_it_shows_and_connect_puts_it_right(
    world: World, terminal: pexpect.spawn, tmp_path: Path
) -> None:
    """It ends engines of a notebook as well as those of a cluster that the panel has started."""
    terminal.expect("Ctrl-C ends.*\n")
    match = re.search(TERMINAL, (terminal.before + terminal.after).replace("\r\n", "\n"))
    assert match
    server = Server(match["server"], match["token"])
    kernel = ServerKernel(world, server, f"my-notebooks/{FIRST}", Path(match["log"]).parent)
    assert "cluster started" in kernel.run(CONNECT)
    (shown,) = (each["id"] for each in server.call("GET", "ipyparallel/clusters") if each.get("controller"))
    server.call("DELETE", f"ipyparallel/clusters/{quote(shown, safe='')}")
    said = kernel.run("%px rank")
    assert "as after STOP in JupyterLab's cluster panel" in said and "`connect()` again" in said, said

    started = server.call("POST", "ipyparallel/clusters", {"cluster_id": "mine", "n": 2})["id"]
    address = f"ipyparallel/clusters/{quote(started, safe='')}"
    server.call("POST", address, {})
    assert "connected to the running cluster mine, up since" in kernel.run(CONNECT)
    message = kernel.start(f"%%px\nimport time\nopen(f'{tmp_path}/rank{{rank}}', 'w')\ntime.sleep(1000)")
    wait_until(lambda: len(list(tmp_path.glob("rank*"))) == 2, "both ranks sleep")
    server.call("DELETE", address)
    assert "as after STOP in JupyterLab's cluster panel" in kernel.finish(message)
    assert "cluster started" in kernel.run(CONNECT)
    assert kernel.run("%px print(comm.allreduce(1))") == "[ranks 0, 1] 2\n"


@pytest.mark.thorough  # the first test ends it with Ctrl-C
def test_a_killed_labkit_lab_leaves_nothing(world: World, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        lab = subprocess.Popen(
            COMMAND, cwd=folder, env=world.env, stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait_until(
            lambda: "Ctrl-C ends" in output.read_text() or lab.poll() is not None, "the lab has started"
        )
        match = re.fullmatch(TERMINAL, output.read_text())
        assert match, output.read_text()
        runtime, server = Path(match["log"]).parent, Server(match["server"], match["token"])
        ServerKernel(world, server, f"my-notebooks/{FIRST}", runtime).run("1")
    finally:
        lab.kill()
        lab.wait(DEADLINE_S)
    world.wait_until_empty()
    assert not Path(match["log"]).parent.exists()


def test_a_jupyterlab_that_fails_shows_its_last_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jupyter_server_config.json").write_text('{"ServerApp": {"port_retries": "eight"}}')
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    with pytest.raises(click.ClickException) as failed, JupyterLab(Path(FIRST)) as lab:
        lab.wait_until_it_serves()
    said = failed.value.format_message()
    assert said.startswith("JupyterLab ended with exit status 1.\n")
    assert "'port_retries' trait of a ServerApp instance expected" in said
    assert said.endswith(f"All of its messages: {lab.log}")
    assert "'port_retries' trait" in lab.log.read_text()
    shutil.rmtree(lab.log.parent)


def test_whoever_takes_the_port_while_jupyterlab_starts_learns_no_token_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open tab sends its token to that program: JupyterLab starts again, with another token."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / FIRST).write_text("{}")
    with JupyterLab(Path(FIRST)) as lab:
        first = lab.wait_until_it_serves()
    start = JupyterLab._start
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        starts = []

        def start_later(lab: JupyterLab) -> subprocess.Popen[bytes]:
            if not starts:  # its port was free when the secrets were read
                other.bind(("127.0.0.1", urlsplit(first).port))
                other.listen()
            starts.append(lab)
            return start(lab)

        monkeypatch.setattr(JupyterLab, "_start", start_later)
        with JupyterLab(Path(FIRST)) as lab:
            second = lab.wait_until_it_serves()
    assert len(starts) == 2
    assert urlsplit(first).query != urlsplit(second).query
    assert urlsplit(first).port != urlsplit(second).port
    with JupyterLab(Path(FIRST)) as lab:
        assert lab.wait_until_it_serves() == second


COMPUTE = "import sys, time\nwhile time.process_time() < {}:\n    pass\nsys.exit(3)"


@pytest.fixture
def instead_of_jupyterlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], JupyterLab]]:
    """Return a function that runs a program in place of JupyterLab; the command is impatient."""
    for name, value in (("STANDSTILL_S", 1.0), ("FIRST_LINE_S", 0.3), ("LOOK_S", 0.05)):
        monkeypatch.setattr(lab_command, name, value)
    logs: list[Path] = []

    def start(program: str) -> JupyterLab:
        monkeypatch.setattr(lab_command, "JUPYTERLAB", [sys.executable, "-P", "-c", program])
        lab = JupyterLab(Path(FIRST))
        logs.append(lab.log)
        return lab

    yield start
    for log in logs:
        shutil.rmtree(log.parent, ignore_errors=True)


def test_labkit_lab_waits_as_long_as_jupyterlab_computes_and_says_for_what(
    instead_of_jupyterlab: Callable[[str], JupyterLab], capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(click.ClickException, match="ended with exit status 3"),
        instead_of_jupyterlab(COMPUTE.format(2.5)) as lab,
    ):
        lab.wait_until_it_serves()
    line = r"JupyterLab is still loading its modules: it has computed for \d+ s in \d+ s\. .*\n"
    assert re.fullmatch(f"({line})+", capsys.readouterr().out)


def test_labkit_lab_gives_a_jupyterlab_up_that_stands_still(
    instead_of_jupyterlab: Callable[[str], JupyterLab],
) -> None:
    with (
        pytest.raises(click.ClickException, match="neither computed nor written"),
        instead_of_jupyterlab("import time; time.sleep(1000)") as lab,
    ):
        lab.wait_until_it_serves()


def test_the_option_timeout_of_labkit_lab_is_a_limit(
    instead_of_jupyterlab: Callable[[str], JupyterLab],
) -> None:
    said = r"did not start within 1 s, in which it computed .*`labkit lab --timeout 2` waits longer"
    with (
        pytest.raises(click.ClickException, match=said),
        instead_of_jupyterlab(COMPUTE.format(1000)) as lab,
    ):
        lab.wait_until_it_serves(1.0)


def test_kernels_listen_on_tcp_where_no_socket_can_be_made(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assert transport(deep) == []
