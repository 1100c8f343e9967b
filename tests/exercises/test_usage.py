"""What all processes of a job use together is found, also where it counts for none of them."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from labkit.checks import usage
from labkit.checks.limits import PROCESSES
from mpiwatch.processes import descendants

pytestmark = [
    pytest.mark.exercises,
    pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc"),
]


@contextmanager
def children(code: str, count: int = 1) -> Iterator[list[int]]:
    """Start processes that run code and then say so; yield their pids."""
    words = [sys.executable, "-I", "-S", "-c", f"{code}\nprint(flush=True)\ninput()"]
    started = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def test_an_idle_process_exceeds_nothing() -> None:
    with children("") as pids:
        assert usage.excess(pids) == ""
    assert usage.excess(pids) == ""  # they have ended
    assert usage.excess(range(1, PROCESSES + 2)).startswith("starts processes without end")


def test_all_processes_below_one_are_found_also_those_of_threads() -> None:
    code = (
        "import subprocess, threading\n"
        "def start(): subprocess.Popen(['sleep', '60'])\n"
        "for _ in range(2):\n"
        "    thread = threading.Thread(target=start)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "child = subprocess.Popen(['sh', '-c', 'sleep 60 & echo; wait'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()"
    )
    with children(code) as (pid,):
        below = usage.below(pid)
        try:
            assert len(below) == 4
            assert below == descendants(pid)
        finally:
            for other in below:
                os.kill(other, signal.SIGKILL)
    assert usage.below(pid) == set()


def test_memory_counts_in_all_processes_and_once_if_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "JOB_MEMORY_BYTES", 100 << 20)
    with children("held = bytearray(60 << 20)", 2) as pids:
        assert "takes memory without end" in usage.excess(pids)
    shared = (
        "import os, time\nheld = bytearray(60 << 20)\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)"
    )
    with children(shared) as pids:
        family = [*pids, *(process.pid for process in psutil.Process(pids[0]).children())]
        try:
            assert sum(map(usage._resident_bytes, family)) > 100 << 20
            assert usage.excess(family) == ""
        finally:
            os.kill(family[1], signal.SIGKILL)


def test_growth_of_memory_makes_a_watch_look_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    memory = {1: 0}
    monkeypatch.setattr(usage, "_resident_bytes", memory.get)
    monkeypatch.setattr(usage, "excess", lambda processes: looks.append(processes) or "everything")
    monkeypatch.setattr(usage, "EVERYTHING_S", 1000.0)
    watch = usage.Watch()
    assert watch.excess([1]) == "everything"
    assert watch.excess([1]) == ""
    memory[1] = usage.GROWTH_BYTES
    assert watch.excess([1]) == ""
    memory[1] += 1
    assert watch.excess([1]) == "everything"
    assert len(looks) == 2
    monkeypatch.setattr(usage, "EVERYTHING_S", 0.0)
    watch = usage.Watch()
    assert [watch.excess([1]), watch.excess([1])] == ["everything", "everything"]


@pytest.mark.parametrize(
    "code",
    [
        "import mmap, os\nheld = mmap.mmap(-1, SIZE)\nheld[:] = bytes(SIZE)",
        "import os\nfile = os.memfd_create('x')\nfor _ in range(4): os.write(file, bytes(SIZE // 4))",
        "import tempfile\nfile = tempfile.TemporaryFile(dir='FOLDER', buffering=0)\nfile.write(bytes(SIZE))",
    ],
    ids=["shared mapping", "anonymous file", "removed file"],
)
def test_what_no_name_leads_to_is_found(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32 << 20
    with tempfile.TemporaryDirectory() as folder:
        code = code.replace("SIZE", str(size)).replace("FOLDER", folder)
        with children(code) as pids:
            assert usage.excess(pids) == ""
            monkeypatch.setattr(usage, "UNNAMED_BYTES", size - mmap.PAGESIZE)
            assert "keeps removed files" in usage.excess(pids)


def test_memory_that_a_process_has_not_touched_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process fills it, another one keeps it: it is in no process's resident memory."""
    monkeypatch.setattr(usage, "UNNAMED_BYTES", 16 << 20)
    code = (
        "import mmap, os, sys\nheld = mmap.mmap(-1, 32 << 20)\n"
        "if os.fork() == 0:\n    held[:] = bytes(32 << 20)\n    os._exit(0)\nos.wait()"
    )
    with children(code) as pids:
        assert usage._own_bytes(pids[0]) < 32 << 20
        assert "keeps removed files" in usage.excess(pids)


def test_open_files_count_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with children("import os\nheld = [os.pipe() for _ in range(40)]", 2) as pids:
        assert usage.excess(pids) == ""
        monkeypatch.setattr(usage, "JOB_OPEN_FILES", 150)
        assert "opens files without end" in usage.excess(pids)
