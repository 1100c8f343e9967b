"""Every reference is correct, and every wrong answer gets the finding that it must get: `make exercises`.

`make test` runs a sample: an exercise with ranks and one without, each with one wrong answer.
"""

from __future__ import annotations

import pytest

from labkit.exercises import catalogue
from tests.exercises.corpus import answers, faults


@pytest.mark.parametrize("name", ["linear_backward", "average_by_allgather"])
def test_a_sample_of_the_corpus_gets_its_findings(name: str) -> None:
    assert faults(name, answers(name)[:2]) == []


@pytest.mark.exercises
@pytest.mark.parametrize("name", catalogue.exercises())
def test_the_reference_is_correct_and_wrong_answers_get_their_findings(name: str) -> None:
    assert faults(name, answers(name)) == []
