"""Ranks that are forked from one process: they are what their stand-ins are, and end together."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from labkit import forked_process, forking
from mpiwatch.processes import LINUX, alive
from tests.cluster_fixtures import wait_until

pytestmark = pytest.mark.skipif(not LINUX, reason="elsewhere, each rank imports everything itself")

# The rank runs the code that stands where a module's name would. The hook does what asyncio does since Python
# 3.12: it resets the file that tells of signals in a forked child.
SERVER = (
    "import os, signal\nfrom labkit import forking\nimport numpy.random\n"
    "os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))\n"
    "words = forking.serve()\nexec(words[0])"
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv(forking.ADDRESS, "")  # so that it is removed after the test
    with forking.listen() as listener:
        process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=listener.fileno())
    with process:
        yield process
        process.kill()


def start(code: str, ranks: int = 0, **options: object) -> subprocess.Popen[str]:
    command = [*forking.stand_in(ranks), code, "first", "second"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def pid_of(stand_in: subprocess.Popen[str]) -> int:
    assert stand_in.stdout is not None
    return int(stand_in.stdout.readline())


TOLD = (
    "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'told\\n')); "
    "print(os.getpid(), flush=True)\nwhile True: signal.pause()"
)


def tell(stand_in: subprocess.Popen[str]) -> None:
    """Send a rank that runs TOLD a signal, through its stand-in and the process that forks."""
    stand_in.send_signal(signal.SIGUSR1)
    assert stand_in.stdout is not None
    assert stand_in.stdout.readline() == "told\n"


@pytest.mark.usefixtures("server")
def test_a_rank_has_its_stand_in_s_files_environment_and_directory(tmp_path: Path) -> None:
    read, write = os.pipe()
    code = (
        f"import os, sys; print(words[1:], os.getcwd(), os.environ['OWN'], sys.stdin.read()); "
        f"os.write({write}, b'file'); os.closerange(3, 100); sys.exit(7)"
    )
    environment = {**os.environ, "OWN": "value"}
    rank = start(code, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, pass_fds=[write])
    assert rank.communicate("input") == (f"['first', 'second'] {tmp_path} value input\n", None)
    assert rank.returncode == 7
    os.close(write)
    assert os.read(read, 10) == b"file"
    os.close(read)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [3, 70, 260, 600])
def test_a_rank_gets_any_number_of_files(number: int) -> None:
    """As the last ones of many ranks do: those that mpiexec starts later inherit more of its files."""
    files = []
    with tempfile.TemporaryFile() as file:
        for _ in range(number):
            files.append(os.dup(file.fileno()))
        # A rank's files may have numbers that others of its files have on their way.
        code = f"for number in {files}: import os; os.write(number, b'x')"
        rank = start(code, pass_fds=files)
        for copy in files:
            os.close(copy)
        assert rank.communicate() == ("", None) and rank.returncode == 0
        assert os.fstat(file.fileno()).st_size == number


def limited_server(limit: int) -> subprocess.Popen[bytes]:
    with forking.listen() as listener:
        code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); {SERVER}"
        return subprocess.Popen([sys.executable, "-c", code], stdin=listener.fileno())


def test_the_files_of_a_rank_fit_below_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 256 on macOS, and in some batch systems."""
    monkeypatch.setenv(forking.ADDRESS, "")
    with limited_server(256) as server, tempfile.TemporaryFile() as file:
        high = fcntl.fcntl(file, fcntl.F_DUPFD, 255)
        rank = start(f"import os; os.write({high}, b'x')", pass_fds=[high])
        os.close(high)
        assert rank.communicate() == ("", None) and rank.returncode == 0
        assert os.fstat(file.fileno()).st_size == 1
        server.kill()


@pytest.mark.parametrize("lack", ["files", "processes"])
def test_a_stand_in_becomes_the_rank_if_the_process_that_forks_lacks_something(
    monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    monkeypatch.setenv(forking.ADDRESS, "")
    if lack == "files":
        server = limited_server(16)
    else:
        no_more = "def fork():\n    raise BlockingIOError\nimport os\nos.fork = fork"
        with forking.listen() as listener:
            command = [sys.executable, "-c", f"{no_more}\n{SERVER}"]
            server = subprocess.Popen(command, stdin=listener.fileno())
    with server, ExitStack() as files:
        opened = [files.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(20)]
        # Python looks for a module of this name.
        rank = start("no_module_of_this_name", pass_fds=opened, stderr=subprocess.PIPE)
        assert "No module named no_module_of_this_name" in rank.communicate()[1]
        server.kill()


@pytest.mark.usefixtures("server")
def test_ranks_draw_different_numbers() -> None:
    code = "import numpy, random; print(numpy.random.rand(), random.random())"
    drawn = {start(code).communicate()[0] for _ in range(3)}
    assert len(drawn) == 3


@pytest.mark.usefixtures("server")
def test_a_stand_in_passes_signals_on_and_ends_by_the_one_that_ends_its_rank() -> None:
    rank = start(TOLD)
    pid_of(rank)
    tell(rank)
    rank.terminate()
    assert rank.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("killed", ["stand-in", "server"])
def test_a_rank_ends_with_its_stand_in_and_with_the_process_that_forks(
    killed: str, server: subprocess.Popen[bytes]
) -> None:
    rank = start(TOLD)
    pid = pid_of(rank)
    tell(rank)  # so the stand-in knows that its rank has been forked
    assert psutil.Process(pid).ppid() == server.pid
    assert os.getsid(pid) == pid  # Linux gives each session its part of a busy machine
    (server if killed == "server" else rank).kill()
    wait_until(lambda: not alive(pid), "the rank's end")
    assert rank.wait(60) == -signal.SIGKILL


def test_a_listener_takes_as_many_stand_ins_as_there_are_ranks(server: subprocess.Popen[bytes]) -> None:
    code = "import os; print(os.getppid())"
    assert [int(start(code, 2).communicate()[0]) for _ in range(2)] == [server.pid] * 2
    # Without a listener, the stand-in becomes the rank: Python looks for a module of this name.
    third = start("no_module_of_this_name", 2, stderr=subprocess.PIPE)
    assert "No module named no_module_of_this_name" in third.communicate()[1]


def test_only_the_starter_and_the_processes_that_it_gets_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forking.ADDRESS, "")
    with forking.listen() as listener:
        code = SERVER.replace("serve()", f"serve({os.getpid()})")
        server = subprocess.Popen([sys.executable, "-c", code], stdin=listener.fileno())
    address = os.environ[forking.ADDRESS]
    ask = """
import sys
from labkit.forked_process import start
process = start(ADDRESS, [CODE], env={})
sys.stdout.write(process.stdout.read().decode())
""".replace("ADDRESS", repr(address))
    inner = ask.replace("CODE", repr("print('second')"))
    # A process that is refused starts a new program, which finds no module of that name.
    refused = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    for code, printed in (("print('first')", b"first\n"), (inner, b"second\n"), (refused, b"")):
        with forked_process.start(address, [code], env={**os.environ}) as process:
            assert process.stdout is not None
            assert process.stdout.read() == printed
    with server:
        server.kill()


def test_a_process_that_is_forked_for_another_has_its_pipes_and_is_ended(
    server: subprocess.Popen[bytes],
) -> None:
    address = os.environ[forking.ADDRESS]
    with forked_process.start(
        address, ["import sys; print(sys.stdin.read(), file=sys.stderr); sys.exit(3)"],
        env={**os.environ}, stdin=subprocess.PIPE, joins_stderr=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"input")
        process.stdin.close()
        assert process.stdout.read() == b"input\n" and process.wait(60) == 3
    with forked_process.start(address, ["import time; time.sleep(600)"], env={**os.environ}) as process:
        assert psutil.Process(process.pid).ppid() == server.pid
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    with forked_process.start(address, ["import time; time.sleep(600)"], env={**os.environ}) as process:
        server.send_signal(signal.SIGSTOP)  # as a student's code can do
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        server.send_signal(signal.SIGCONT)
    with forked_process.start(address, ["import time; time.sleep(600)"], env={**os.environ}) as process:
        server.kill()  # and all that it has forked
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE, 0])
def test_a_request_that_lacks_files_leaves_none_open(stdin: int) -> None:
    """Each call may open one file more than the one before, so each fails at the next of its steps."""
    before = sorted(os.listdir("/proc/self/fd"))
    unused = [number for number in range(1024) if str(number) not in before]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for count in range(9):
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused[count], hard))
        try:
            with pytest.raises(OSError):
                forked_process.ForkedProcess("nobody", ["print()"], {}, None, stdin, joins_stderr=False)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sorted(os.listdir("/proc/self/fd")) == before, f"with {count} files"
