"""`check` says what is known, and returns the student's function only if it is correct."""

from __future__ import annotations

import inspect
import linecache
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.checks import judging
from labkit.checks.exercise import Verdict
from labkit.exercises import catalogue, checking, record
from labkit.exercises.checking import is_reference
from labkit.exercises.reference import reference_function
from mpiwatch.processes import LINUX


def linear_backward(dy: Any, x: Any, w: Any) -> Any:
    return dy, x, w


def written() -> Any:
    return linear_backward


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Return a function that sets the verdict."""
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))

    def judge(verdict: Verdict | None) -> None:
        def judge_text(exercise: object, text: str, **options: object) -> Verdict:
            assert verdict is not None, "a job was started"
            return verdict

        monkeypatch.setattr(checking, "judge_text", judge_text)

    return judge


def test_a_correct_function_is_returned_and_a_wrong_one_replaced_by_the_reference(
    judged: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(Verdict(False, "it is None. Does every path return it?", 6))
    checking.check(linear_backward)
    assert "return it? The notebook\nuses" in capsys.readouterr().out
    judged(Verdict(False, "with N = 1: db is wrong", 6, printed="a\na\n\nb\n"))
    assert is_reference(checking.check(linear_backward), catalogue.find("linear_backward"))
    assert capsys.readouterr().out == (
        "linear_backward: not correct yet: with N = 1: db is wrong. The notebook uses the\n"
        "reference until it is. For a hint: hint(linear_backward)\nIt printed:\n  a  (2 times)\n  b\n"
    )
    assert record.load()["linear_backward"]["state"] == "tried"
    judged(Verdict(True, cases=6))
    assert checking.check(linear_backward) is linear_backward
    assert capsys.readouterr().out == "linear_backward: correct (6 cases). 2 points.\n"
    assert record.load()["linear_backward"]["state"] == "done"


def test_a_stub_starts_no_job(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    judged(None)

    def linear_backward(dy: Any, x: Any, w: Any) -> Any:
        """Return the gradients."""
        # Your code here.

    assert is_reference(checking.check(linear_backward), catalogue.find("linear_backward"))
    assert capsys.readouterr().out == "linear_backward: not written yet; the notebook uses the reference.\n"


def test_the_reference_is_never_called_correct(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    judged(None)
    exercise = catalogue.find("linear_backward")
    for reference in exercise.reference, reference_function(exercise):
        assert is_reference(checking.check(reference), exercise)
        assert "this is the reference" in capsys.readouterr().out


def test_a_check_that_fails_says_so(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    judged(Verdict(False, "ValueError: in look", check_failed=True))
    assert is_reference(checking.check(linear_backward), catalogue.find("linear_backward"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "NOT CHECKED, because the check itself failed: ValueError: in look." in printed
    assert "correct (" not in printed
    assert record.load() == {}


def test_an_unknown_exercise_is_not_checked(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    judged(None)
    assert checking.check(written) is written
    assert capsys.readouterr().out.startswith("there is no exercise called written")


def test_a_judge_that_cannot_run_is_a_failed_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(judging.sys, "executable", "/no/such/python")
    monkeypatch.setattr(judging, "_forking", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = judging.judge_text(catalogue.find("linear_backward"), "")
    assert not found.passed and found.check_failed
    assert not list(tmp_path.iterdir())


def test_hints_open_one_at_a_time(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    hints = catalogue.find("linear_backward").hints
    checking.hint(linear_backward)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == f"Hint 1 of {len(hints)} for linear_backward: {hints[0]}"
    for _ in hints:
        checking.hint("linear_backward")
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith(f"Hint {len(hints)} of {len(hints)} (the last) for linear_backward: {hints[-1]}")
    checking.hint("no_such_function")
    assert "no exercise called" in capsys.readouterr().out


def test_the_reference_that_stands_in_uses_the_notebooks_names() -> None:
    exercise = catalogue.find("mlp_gradient")
    names: dict[str, Any] = {"linear": "the student's"}
    reference = reference_function(exercise, names)
    assert reference.__globals__ is names
    assert names["linear"] == "the student's"
    assert callable(names["views"])  # from the exercise's prelude
    assert "mlp_gradient" not in names
    assert is_reference(reference, exercise)
    with pytest.raises(OSError):  # so `mlp_gradient??` does not show it before it is the student's turn
        inspect.getsource(reference)
    assert not is_reference(written, exercise)
    assert checking.whose(written) == "your"
    assert checking.whose(written, reference) == "the reference's"


def test_a_hypothesis_needs_three_fields_and_a_second_attempt_if_its_verdict_is_not_ours(
    judged: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(None)
    for predicts, rejected_by, verdict, begins in (
        ("", "1", "rejected", "Write predicts: "),
        ("a", "the loss", "rejected", "Write rejected_by: "),
        ("a", "blah 1", "rejected", "Write rejected_by: "),
        ("a", "12.3456", "rejected", "Write rejected_by: "),
        ("a", "2.134", "yes", "Write verdict: "),
        ("a", "Not printed", "supported", "Your verdict, supported, is not ours. Ours opens at your next"),
        ("a", "our run", "undecided", "Your verdict, undecided, is not ours. Ours: rejected: "),
        ("a", "-0.3584", "Rejected.", "Your verdict, rejected, is also ours. Ours: rejected: "),
    ):
        checking.answer("10-a-error", predicts=predicts, rejected_by=rejected_by, verdict=verdict)
        assert " ".join(capsys.readouterr().out.split()).startswith(begins)
    assert record.progress().answers["10-a-error"] == "a Rejected by: Not printed Verdict: supported"


def define(number: int, text: str, names: dict[str, Any]) -> None:
    """Run a cell of a notebook."""
    file = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names)


BACKWARD = "def linear_backward(dy, x, w):\n    return {}\n"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["def mul(a, b):\n    return a @ b\n", BACKWARD.format("mul(dy, w.T), mul(x.T, dy), dy.sum(0)")],
         "correct"),
        (["def tail(a):\n    return total(a)\n", "def total(a):\n    return a.sum(0)\n",
          BACKWARD.format("dy @ w.T, x.T @ dy, tail(dy)")], "correct"),
        ([BACKWARD.format("dy @ w.T, x.T @ dy, dy.sum(0)") + "print(rank)\n"],
         "correct .* Below the function, your cell raises NameError: name 'rank' is not defined at line 3"),
        ([BACKWARD.format("dy @ w.T, dy.sum(0), x.T @ dy")], r"you return \(dx, db, dw\); the task asks for"),
        ([BACKWARD.format("dy @ w.T, x.T @ dy, more") + "more = 1\n"], "not correct yet"),
        (["def linear_backward(x, dy, w):\n    return dy @ w.T, x.T @ dy, dy.sum(0)\n"],
         r"Your function takes \(x, dy, w\); the task says \(dy, x, w\)\."),
        (["more = 1\n", BACKWARD.format("dy @ w.T, x.T @ dy, more")], "the name `more` is not defined"),
    ],
)  # fmt: skip
def test_cells_are_judged_as_a_student_runs_them(
    cells: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    names: dict[str, Any] = {"rank": 0}
    for number, text in enumerate(cells):
        define(number, text, names)
    checking.check(names["linear_backward"])
    assert re.search(expected, " ".join(capsys.readouterr().out.split()))


def test_a_function_of_another_exercise_is_not_kept_as_a_part_of_the_answer(judged: Any) -> None:
    judged(Verdict(True, cases=6))
    names: dict[str, Any] = {}
    define(0, "def times(a, b):\n    return a @ b\n", names)
    define(1, "def softmax_cross_entropy(logits, labels):\n    return logits, labels\n", names)
    define(2, BACKWARD.format("times(dy, w.T), softmax_cross_entropy(x, dy), 0"), names)
    checking.check(names["linear_backward"])
    kept = record.load()["linear_backward"]["cell"]
    assert "def times(" in kept and "def softmax_cross_entropy(" not in kept


@pytest.mark.skipif(not LINUX, reason="elsewhere, nothing is forked")
def test_two_threads_start_one_process_that_forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(command: object, **options: object) -> Any:
        time.sleep(0.1)
        return SimpleNamespace(pid=0, poll=lambda: None)

    monkeypatch.setattr(judging, "_forking", {})
    monkeypatch.setattr(judging.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(judging, "start_child", start)
    monkeypatch.setattr(judging.os, "killpg", lambda pid, signum: None)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(judging._address_and_folder) for _ in range(2)]
        assert len({future.result() for future in futures}) == 1
