"""A job's cgroup holds all of its processes together to a limit; it goes when they have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.checks import cgroup, judging, sandbox, usage
from labkit.exercises import catalogue

pytestmark = pytest.mark.exercises
LIMIT_BYTES = 200 << 20
DEADLINE_S = 120.0
# Together, the children take four times the limit; each takes less than it. The first one says how they end.
CHILDREN = """
import os, signal
def child():
    held = []
    for _ in range(10):
        held.append(bytearray(20 << 20))
    signal.pause()
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        child()
    pids.append(pid)
pid, status = os.wait()
print(os.WTERMSIG(status), flush=True)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
"""
FORKS = """
import os, time
def linear_backward(dy, x, w):
    held = []
    for _ in range(8):
        if os.fork() == 0:
            for _ in range(30):
                held.append(bytearray(20 << 20))
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    made = cgroup.make(LIMIT_BYTES)
    if made is None:
        pytest.skip("this user may make no cgroups here")
    yield made
    cgroup.remove(made)


def run(group: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a cgroup."""
    words = [*cgroup.joining(group), sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_processes_together_are_held_to_the_limit(group: Path) -> None:
    assert run(group, "print('out')").stdout == "out\n"
    assert not cgroup.has_ended_members(group)
    assert run(group, CHILDREN).stdout == "9\n"
    assert cgroup.has_ended_members(group)


def test_a_cgroup_is_removed_with_its_last_process(group: Path) -> None:
    run(group, "")
    cgroup.remove(group)
    assert not group.exists()
    cgroup.remove(group)


def test_what_killed_processes_have_left_is_removed(group: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left = group.with_name(f"{cgroup.PREFIX}{ended.pid}-x")
    left.mkdir()
    another = cgroup.make(LIMIT_BYTES)
    assert another is not None
    cgroup.remove(another)
    assert not left.exists()
    assert group.exists()


def test_no_job_leaves_a_cgroup_and_a_finding_names_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cgroup.parent()
    if sandbox.refusal() or folder is None:
        pytest.skip("this user may make no sandbox, or no cgroups here")
    verdict = judging.grade_text(catalogue.find("linear_backward"), FORKS, sandboxed=True)
    assert usage.MEMORY_EXCESS in verdict.finding, verdict
    processes = {path.name for path in Path("/proc").iterdir()}
    left = [path for path in folder.glob(f"{cgroup.PREFIX}*") if path.name.split("-")[2] not in processes]
    assert left == []


def test_a_user_who_may_make_no_cgroup_gets_none(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        cgroup.make_in(tmp_path / "missing", LIMIT_BYTES)
    if os.getuid() != 0:
        with pytest.raises(OSError):
            cgroup.make_in(Path("/sys/fs/cgroup"), LIMIT_BYTES)
    assert cgroup.joining(None) == []
