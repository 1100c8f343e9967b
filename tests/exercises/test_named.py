"""Answers that were once judged wrongly get the right verdicts, and notebooks give nothing away."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from labkit.checks.exercise import ORIGINALS, Verdict
from labkit.exercises import catalogue
from tests.exercises.corpus import submit
from tests.exercises.named import NAMED, Named, fault, records, verdicts_of

BY_EXERCISE = [named for name in catalogue.exercises() for named in records(name)]
LEAKS = re.compile(r"\b(catalogue|mistaken|reference_function)\b|\.reference\b|\bon_call\.drawn\b")

judged = cache(verdicts_of)  # all records of an exercise share a job


def verdict_on(named: Named) -> Verdict:
    """Return the verdict on a record's answer."""
    return judged(named.exercise)[records(named.exercise).index(named)]


@pytest.mark.exercises
@pytest.mark.parametrize("named", BY_EXERCISE, ids=str)
def test_an_answer_that_was_judged_wrongly(named: Named) -> None:
    assert not fault(named, verdict_on(named))


@pytest.mark.exercises
def test_no_warning_of_another_case_stands_below_a_finding() -> None:
    """The mean is forgotten in the first case; exp overflows in a later one only."""
    text = """
def softmax_cross_entropy(z, labels):
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    n = np.arange(len(labels))
    dz = p.copy()
    dz[n, labels] -= 1
    return float(-np.log(p[n, labels]).mean()) * 2, dz / len(labels)
"""
    (verdict,) = submit("softmax_cross_entropy", text)
    assert "1 sample, 3 classes" in verdict.finding
    assert "overflow" not in verdict.printed


def test_every_record_is_of_an_exercise_and_says_what_went_wrong() -> None:
    assert len(BY_EXERCISE) == len(NAMED)
    assert len({str(named) for named in NAMED}) == len(NAMED)


@pytest.mark.parametrize("path", sorted(ORIGINALS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_cell_of_a_notebook_holds_a_reference_or_a_planted_fault(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not [text for text in code if LEAKS.search(text)]
