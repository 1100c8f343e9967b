"""Every reference is correct, and every wrong answer gets the finding that it must get: `make exercises`.

`make test` runs a sample: the first exercise with ranks and the first without, each with a wrong answer.
"""

from __future__ import annotations

import pytest

from labkit.exercises import catalogue
from tests.exercises.corpus import Answer, fault, references, wrong_answers

SAMPLE = "linear_backward", "average_by_allgather"


def sample() -> list[Answer]:
    answers = [answer for answer in references() if answer.name in SAMPLE]
    return answers + [next(each for each in wrong_answers() if each.name == name) for name in SAMPLE]


@pytest.mark.parametrize("answer", sample(), ids=lambda answer: answer.label)
def test_a_sample_of_the_corpus_gets_its_findings(answer: Answer) -> None:
    assert fault(answer) == ""


@pytest.mark.exercises
@pytest.mark.parametrize("answer", references(), ids=lambda answer: answer.label)
def test_a_reference_is_correct(answer: Answer) -> None:
    assert fault(answer) == ""


@pytest.mark.exercises
@pytest.mark.parametrize("answer", wrong_answers(), ids=lambda answer: answer.label)
def test_a_wrong_answer_gets_its_finding(answer: Answer) -> None:
    assert catalogue.find(answer.name)
    assert fault(answer) == ""
