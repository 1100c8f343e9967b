"""Answers that were written from the notebooks alone get the verdicts that they must get."""

from __future__ import annotations

import pytest

from labkit.exercises import catalogue
from tests.exercises.corpus import submit
from tests.exercises.outside import answers, in_notebook

# Wrong answers that their checks accept, and why.
ACCEPTED = {
    ("ring_reduce_rounds", "wrong 31"): "the check allows several messages to one rank in a round",
    ("shift_right", "wrong 36"): "strict mode does not know whether the receive for an Rsend is posted",
}
SAMPLE = "shift_right", "views", "wait_for_graph"


def misjudged(name: str) -> list[str]:
    """Return the answers to an exercise whose verdicts are wrong, with the findings."""
    tried = [each for each in answers(name) if (name, str(each)) not in ACCEPTED]
    texts = [in_notebook(catalogue.find(name), each.text) for each in tried]
    return [
        f"{answer} ({answer.about}): {verdict.finding or 'accepted'}"
        for answer, verdict in zip(tried, submit(name, *texts), strict=True)
        if verdict.check_failed or verdict.passed != answer.is_right
    ]


@pytest.mark.exercises
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_answers_from_outside(name: str) -> None:
    assert misjudged(name) == []


@pytest.mark.exercises
@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in catalogue.exercises() if name not in SAMPLE])
def test_the_answers_from_outside(name: str) -> None:
    assert misjudged(name) == []


def test_every_exercise_has_answers_from_outside() -> None:
    for name in catalogue.exercises():
        found = answers(name)
        assert sum(each.is_right for each in found) >= 2, name
        assert sum(not each.is_right for each in found) >= 5, name
        assert len({str(each) for each in found}) == len(found), name
