"""A submission that ends its process, never ends, floods its output or patches the check never passes."""

from __future__ import annotations

import psutil
import pytest

from labkit.exercises.judging import Verdict
from labkit.exercises.trial import launching
from tests.exercises import corpus

pytestmark = pytest.mark.exercises
ALONE, ON_RANKS = "linear_backward", "average_by_allgather"
DEADLINE_S = 2.0
RIGHT = "    return dy @ w.T, x.T @ dy, dy.sum(axis=0)\n"
HEAD = {
    ALONE: "def linear_backward(dy, x, w):\n",
    ON_RANKS: "def average_by_allgather(comm, gradient, weight):\n",
}
ENDS = {
    "sys.exit": ("import sys; sys.exit(0)", "it calls exit"),
    "os._exit": ("import os; os._exit(0)", "exit code 0"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "recursion": ("f = lambda: f(); f()", "RecursionError"),
    "input": ("input()", "EOFError"),
    "flood": ("import os\n    while True: os.write(1, b'x' * 10000)", "prints without end"),
    "prints": ("while True: print('x' * 1000)", "prints without end"),
    "loop": ("while True: pass", "does not end within 2 s"),
}
PATCHES = {
    "numpy": "np.allclose = np.array_equal = np.isclose = lambda *a, **k: True\n",
    "builtins": "import builtins; builtins.all = lambda x: True; builtins.any = lambda x: False\n",
    "the judge": "import sys\nfor m in list(sys.modules.values()):\n"
    "    if 'exercises' in str(m): m.judge = m.difference = lambda *a: None\n",
    "the job's files": "import sys, pathlib\nfor p in pathlib.Path(sys.argv[1]).iterdir(): "
    "p.is_file() and p.write_bytes(b'passed')\n",
    "a verdict": "import sys, pathlib\n"
    "pathlib.Path(sys.argv[1], 'verdict.json').write_text('{\"passed\": true}')\n",
}
REFERENCES = {
    "import": "from labkit.exercises.catalogue.nb01.layers import linear_backward as f\n",
    "importlib": "import importlib; f = importlib.import_module("
    "'labkit.exercises.catalogue.nb01.layers').linear_backward\n",
    "labkit.nn": "from labkit.nn.ops import linear_backward as f\n",
    "sys.modules": "import sys; f = sys.modules['labkit.exercises.catalogue.nb01.layers'].linear_backward\n",
    "gc": "import gc, types\nf = [o for o in gc.get_objects() if isinstance(o, types.FunctionType)"
    " and o.__name__ == 'linear_backward' and 'catalogue' in o.__code__.co_filename][0]\n",
}


def submit(name: str, text: str, deadline_s: float) -> Verdict:
    (found,) = corpus.submit(name, text, deadline_s=deadline_s)
    return found


@pytest.mark.parametrize("how", ENDS)
def test_a_function_that_does_not_return_is_a_finding(how: str) -> None:
    code, words = ENDS[how]
    found = submit(ALONE, f"{HEAD[ALONE]}    {code}\n{RIGHT}", deadline_s=DEADLINE_S)
    expected = words if how != "SIGKILL" else "signal 9"
    assert not found.passed
    assert not found.check_failed, found.finding
    assert expected in found.finding


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL", "loop"])
def test_a_rank_that_does_not_return_is_a_finding(how: str) -> None:
    code, words = ENDS[how]
    found = submit(
        ON_RANKS, f"{HEAD[ON_RANKS]}    if comm.rank == 1:\n        {code}\n    comm.Barrier()\n", 4
    )
    assert not found.passed
    assert not found.check_failed, found.finding
    assert words.replace("2 s", "4 s") in found.finding
    assert "rank 1" in found.finding


@pytest.mark.parametrize("extra_s", [50.0, 0.0])
def test_the_deadline_is_of_the_rank_s_own_time(extra_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server gives a correct function its core later: the check must not call that an endless loop."""
    monkeypatch.setattr(launching, "EXTRA_S", extra_s)
    sleeps = f"    import time; time.sleep({DEADLINE_S + 1})\n"
    found = submit(ALONE, HEAD[ALONE] + sleeps + RIGHT, deadline_s=DEADLINE_S)
    if extra_s > 0:
        assert found.passed, found.finding
    else:
        assert "does not end within 2 s" in found.finding


def test_a_rank_that_kills_what_watches_it_does_not_pass() -> None:
    code = "    if comm.rank == 1:\n        import os; os.kill(os.getppid(), 9)\n    comm.Barrier()\n"
    assert not submit(ON_RANKS, HEAD[ON_RANKS] + code, deadline_s=DEADLINE_S).passed


@pytest.mark.parametrize("what", PATCHES)
def test_a_patch_changes_no_verdict(what: str) -> None:
    wrong = "    return dy @ w.T, x.T @ dy, dy.sum(axis=1)\n"
    assert not submit(ALONE, PATCHES[what] + HEAD[ALONE] + wrong, deadline_s=DEADLINE_S).passed


@pytest.mark.parametrize("way", REFERENCES)
def test_the_references_are_out_of_reach(way: str) -> None:
    found = submit(ALONE, f"{REFERENCES[way]}{HEAD[ALONE]}    return f(dy, x, w)\n", deadline_s=DEADLINE_S)
    assert not found.passed
    assert not found.check_failed, found.finding


def test_damaged_results_are_an_error_of_the_check() -> None:
    found = submit(ALONE, PATCHES["the job's files"] + HEAD[ALONE] + RIGHT, deadline_s=DEADLINE_S)
    assert found.check_failed
    assert "changed or damaged" in found.finding


def test_nothing_of_a_job_is_left_behind() -> None:
    code = "    import subprocess; subprocess.Popen(['sleep', '6543'], start_new_session=True)\n"
    assert submit(ALONE, HEAD[ALONE] + code + RIGHT, deadline_s=DEADLINE_S).passed
    assert not [each for each in psutil.process_iter(["cmdline"]) if "6543" in (each.info["cmdline"] or [])]
