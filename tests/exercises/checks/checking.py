"""`check` on ranks: rank 0 works, and all ranks go on with the same kind of function."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from labkit.checks.exercise import Verdict
from labkit.exercises import catalogue, checking, record
from labkit.exercises.checking import is_reference

NAME = "linear_backward"


def linear_backward(dy: np.ndarray, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
    return dy, x, w


@contextmanager
def judged(comm: MPI.Intracomm, verdict: Verdict | BaseException) -> Iterator[io.StringIO]:
    """Let this be the verdict, for rank 0 alone; give what a rank prints. Nothing is recorded."""

    def judge_text(exercise: object, text: str, **options: object) -> Verdict:
        assert comm.rank == 0
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    before = checking.judge_text, record.note
    checking.judge_text, record.note = judge_text, lambda *arguments: None
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            yield printed
    finally:
        checking.judge_text, record.note = before


def check_a_correct_function_is_used_on_every_rank(comm: MPI.Intracomm) -> None:
    with judged(comm, Verdict(True, cases=3)) as printed:
        assert checking.check(linear_backward) is linear_backward
    assert ("correct (3 cases)" in printed.getvalue()) == (comm.rank == 0)


def check_the_reference_is_used_on_every_rank_otherwise(comm: MPI.Intracomm) -> None:
    for verdict in Verdict(False, "db is wrong"), Verdict(False, "no MPI", check_failed=True):
        with judged(comm, verdict) as printed:
            used = checking.check(linear_backward)
        assert is_reference(used, catalogue.find(NAME))
        assert (verdict.finding in printed.getvalue()) == (comm.rank == 0)


def check_an_error_on_rank_0_leaves_no_rank_waiting(comm: MPI.Intracomm) -> None:
    with judged(comm, RuntimeError("disk full")) as printed:
        used = checking.check(linear_backward)
    assert is_reference(used, catalogue.find(NAME))
    assert ("NOT CHECKED" in printed.getvalue()) == (comm.rank == 0)


def check_an_interrupt_of_rank_0_leaves_the_ranks_in_step(comm: MPI.Intracomm) -> None:
    with judged(comm, KeyboardInterrupt()), contextlib.suppress(KeyboardInterrupt):
        checking.check(linear_backward)
    with judged(comm, Verdict(True)):
        assert checking.check(linear_backward) is linear_backward


def check_only_rank_0_prints_hints(comm: MPI.Intracomm) -> None:
    before = record.open_hint
    record.open_hint = lambda name, count: 1
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            checking.hint(linear_backward)
    finally:
        record.open_hint = before
    assert ("Hint 1 of" in printed.getvalue()) == (comm.rank == 0)
