"""A submission that ends its process, never ends or attacks the check never passes, and does no harm."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from labkit import cores
from labkit.checks import job, judge, judging, launching, sandbox
from labkit.checks.exercise import Verdict
from labkit.exercises import catalogue
from labkit.exercises.nb09 import job_script
from tests.cluster_fixtures import wait_until
from tests.conftest import thorough
from tests.exercises import corpus, hostile

pytestmark = pytest.mark.exercises
ALONE, ON_RANKS = hostile.ALONE, hostile.ON_RANKS
DEADLINE_S = 2.0
SECRET = "4af1c0ffee"
RIGHT = "    return dy @ w.T, x.T @ dy, dy.sum(axis=0)\n"
HEAD = {name: f"{head}\n" for name, head in hostile.HEADS.items()}
ENDS = {
    "sys.exit": ("import sys; sys.exit(0)", "it calls exit"),
    "os._exit": ("import os; os._exit(0)", "exit code 0"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    "recursion": ("f = lambda: f(); f()", "RecursionError"),
    "input": ("input()", "EOFError"),
    "prints": ("while True: print('x' * 1000)", "prints without end"),
    "loop": ("while True: pass", "does not end within 2 s"),
}


def submit(name: str, text: str, deadline_s: float) -> Verdict:
    (found,) = corpus.submit(name, text, deadline_s=deadline_s)
    return found


@pytest.mark.parametrize("how", ENDS)
def test_a_function_that_does_not_return_is_a_finding(how: str) -> None:
    code, words = ENDS[how]
    found = submit(ALONE, f"{HEAD[ALONE]}    {code}\n{RIGHT}", deadline_s=DEADLINE_S)
    assert not found.passed and not found.check_failed
    assert words in found.finding


@pytest.mark.parametrize(
    ("how", "words"), [("os._exit", "exit code 0"), ("SIGKILL", "SIGKILL"), ("loop", "within 4 s")]
)
def test_a_rank_that_does_not_return_is_a_finding(how: str, words: str) -> None:
    code = f"    if comm.rank == 1:\n        {ENDS[how][0]}\n    comm.Barrier()\n"
    found = submit(ON_RANKS, HEAD[ON_RANKS] + code, 4)
    assert not found.passed and not found.check_failed
    assert words in found.finding and "rank 1" in found.finding


def test_a_rank_in_a_loop_is_named_also_if_it_gets_a_core_late() -> None:
    """The rank that loops writes its stack eight seconds after the rank that waits for it.

    It may be stopped before it has left the line that stops it.
    """
    stop = "kill -STOP {os.getpid()}; sleep 12; kill -CONT {os.getpid()}"
    loop = f"import os, subprocess; subprocess.Popen(['sh', '-c', f'{stop}'])\n        while True: pass"
    code = f"    if comm.rank == 1:\n        {loop}\n    comm.Barrier()\n"
    found = submit(ON_RANKS, HEAD[ON_RANKS] + code, 4)
    assert "within 4 s" in found.finding and re.search("rank 1 is at line [34]", found.finding)


# The job reaches a deadline many times. Each time, the deadline's thread ends while the main thread writes
# its stack.
DEADLINES = """\
import os, sys
from labkit.checks import job
job.LEAST_S = 0.0
with open(sys.argv[1], "wb") as stacks:
    job._write_stack_at_deadline(stacks)
    for _ in range(2000):
        deadline = job._Deadline(0.0, 60.0, [os.getpid()])
        with deadline:
            deadline.thread.join()
"""


def test_a_stack_can_be_written_while_other_threads_end(tmp_path: Path) -> None:
    """A rank used to die of SIGSEGV when it read the stack of a thread that was just ending."""
    stacks = tmp_path / "stacks"
    command = [sys.executable, "-c", DEADLINES, str(stacks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    assert stacks.read_text().count('File "<string>"') == 2000  # the main thread's alone


def test_a_rank_that_aborts_accuses_no_other() -> None:
    code = "    if comm.rank == 1:\n        comm.Abort(3)\n    comm.Barrier()\n"
    found = submit(ON_RANKS, HEAD[ON_RANKS] + code, deadline_s=DEADLINE_S)
    assert "it ends its process. A function returns" in found.finding


def test_a_function_that_sleeps_too_long_is_a_finding() -> None:
    sleeps = f"    import time; time.sleep({DEADLINE_S + 5})\n"
    found = submit(ALONE, HEAD[ALONE] + sleeps + RIGHT, deadline_s=DEADLINE_S)
    assert "does not end within 2 s" in found.finding


@pytest.mark.parametrize("gets_a_core", [True, False])
def test_the_time_in_which_a_rank_waits_for_a_core_does_not_count(
    gets_a_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server gives a correct function its core later: the check must not call that an endless loop.

    Nor must it call a rank endless that sleeps while it waits for one that waits for a core.
    """
    has_ended, began, other = threading.Event(), time.monotonic(), -1

    def waited_for_core_s(pid: int) -> float:
        return time.monotonic() - began if pid == other and not gets_a_core else 0.0

    monkeypatch.setattr(cores, "waited_for_core_s", waited_for_core_s)
    monkeypatch.setattr(job, "LEAST_S", 0.2)
    monkeypatch.setattr(job.signal, "pthread_kill", lambda thread, signum: has_ended.set())
    with job._Deadline(0.1, 60.0, [os.getpid(), other]):
        assert has_ended.wait(20.0 if gets_a_core else 0.5) == gets_a_core


def test_a_rank_that_kills_what_forked_it_does_not_pass() -> None:
    code = "    if comm.rank == 1:\n        import os; os.kill(os.getppid(), 9)\n    comm.Barrier()\n"
    assert not submit(ON_RANKS, HEAD[ON_RANKS] + code, deadline_s=DEADLINE_S).passed


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an instructor's folder, with a file that is no submission's business, and set a secret."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "answers").write_text(SECRET)
    monkeypatch.setenv("A_TOKEN", SECRET)
    return folder


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a program on the loopback, to which nothing may connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sandboxed", [True, False], ids=["in a sandbox", "without namespaces"])
@pytest.mark.parametrize("name", hostile.ATTACKS)
def test_an_attack_does_not_pass(name: str, sandboxed: bool, outside: Path, port: int) -> None:
    attack = hostile.ATTACKS[name]
    if sandboxed and sandbox.refusal():
        pytest.skip(sandbox.refusal())
    is_possible = attack.possible and (attack.possible != hostile.NUMBERS or os.getuid() == 0)
    if is_possible and not sandboxed:
        pytest.skip(f"without namespaces, a submission can {attack.possible}")
    exercise = catalogue.find(attack.exercise)
    names = {"OUTSIDE": str(outside), "PORT": str(port), "HOST": os.readlink("/proc/self/ns/pid")}
    names["SOLUTION"] = repr(job_script())
    text = re.sub("|".join(names), lambda found: names[found[0]], attack.text)
    found = judging.grade_text(exercise, text, sandboxed=sandboxed)
    assert not found.passed
    assert not found.check_failed, found.finding
    if attack.words.startswith("!"):
        assert attack.words[1:] not in found.printed
    else:
        assert any(words in found.finding for words in attack.words.split("|")), found
    assert len(found.finding) <= judge.MOST_WORDS
    assert SECRET not in found.finding + found.printed
    assert [path.name for path in outside.iterdir()] == ["answers"]
    assert (outside / "answers").read_text() == SECRET
    # The port is this test's alone, so no other attack under way is counted.
    left = [each for each in psutil.process_iter(["cmdline"]) if str(port) in (each.info["cmdline"] or [])]
    assert not left


AGAINST_THE_NEXT = {
    "patches NumPy": "import numpy as np\nnp.matmul = np.ndarray = np.dot = np.sum = None\n",
    "ends what forks judges": hostile.VERDICT + "import signal\nos.kill(ancestors()[-2], signal.SIGKILL)\n",
    "stops what forks judges": hostile.VERDICT + "import signal\nos.kill(ancestors()[-2], signal.SIGSTOP)\n",
}


@pytest.mark.parametrize("how", [thorough(each) if "stops" in each else each for each in AGAINST_THE_NEXT])
def test_a_submission_changes_nothing_for_the_next_check(how: str) -> None:
    """One process forks the judges of all checks."""
    exercise = catalogue.find(ALONE)
    assert not judging.judge_text(exercise, f"{AGAINST_THE_NEXT[how]}{HEAD[ALONE]}    return 0\n").passed
    found = judging.judge_text(exercise, exercise.text)
    assert found.passed, found


@pytest.mark.parametrize("how", ["stops itself", "computes on"])
def test_a_submission_that_cannot_be_timed_ends(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has switched its timers off: the limit of its computing time and the judge's clock remain."""
    for name, seconds in ("START_S", 10.0), ("EXTRA_S", 1.0):
        monkeypatch.setattr(launching, name, seconds)
    code = (
        "import os, signal\n"
        "for timer in signal.ITIMER_REAL, signal.ITIMER_PROF:\n    signal.setitimer(timer, 0)\n"
    )
    last = "os.kill(os.getpid(), signal.SIGSTOP)\n" if how == "stops itself" else "while True: pass\n"
    assert not submit(ALONE, code + last + HEAD[ALONE] + RIGHT, deadline_s=DEADLINE_S).passed


def test_what_cannot_be_prevented_without_namespaces_is_documented() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/grading.md").read_text().split())
    for attack in hostile.ATTACKS.values():
        assert attack.possible in page


def test_a_judge_that_dies_has_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself has failed if it fails for the reference, too: then nobody gets points, also not 0."""
    found = Verdict(False, "no mpiexec", check_failed=True)
    monkeypatch.setattr(judging, "judge_text", lambda *arguments, **named: found)
    exercise = catalogue.find(ALONE)
    assert judging.grade_text(exercise, "", sandboxed=False).check_failed


@pytest.mark.parametrize("name", catalogue.exercises())
def test_a_job_is_not_told_of_the_references(name: str) -> None:
    exercise = catalogue.find(name)
    given = pickle.dumps((list(exercise.cases()), exercise.wrap, exercise.digest))
    assert b"catalogue" not in given
    assert b"exercises.nb" not in given


NOTEBOOKS = {exercise.notebook: name for name, exercise in catalogue.exercises().items()}


@pytest.mark.parametrize(
    "name", [each if each in NOTEBOOKS.values() else thorough(each) for each in catalogue.exercises()]
)
def test_the_reference_is_correct_in_a_sandbox(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox.refusal():
        pytest.skip(sandbox.refusal())
    monkeypatch.setattr(sandbox, "in_use", True)
    (found,) = corpus.submit(name, catalogue.find(name).text)
    assert found.passed, found.finding


@pytest.mark.parametrize("forks", [True, False])
def test_a_check_and_its_folder_end_with_its_kernel_even_after_sigkill(forks: bool, tmp_path: Path) -> None:
    loop = f"{HEAD[ALONE]}    while True: pass\n"
    code = "from labkit.checks import judging\nfrom labkit.exercises import catalogue\n"
    code += "" if forks else "judging._address_and_folder = lambda: ('', None)\n"
    code += f"judging.judge_text(catalogue.find({ALONE!r}), {loop!r})"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as kernel:
        started = list[psutil.Process]()

        def runs() -> bool:
            started[:] = psutil.Process(kernel.pid).children(recursive=True)
            # A forked job has the command line of the process that forks: what tells is its folder.
            return any(Path(process.cwd()).is_relative_to(tmp_path) for process in started)

        with suppress(psutil.NoSuchProcess):  # one that has just ended
            wait_until(runs, "a job")
        assert list(tmp_path.iterdir())
        kernel.kill()
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert not list(tmp_path.iterdir())
