"""Every reference is correct, and every wrong answer gets the finding that it must get: `make exercises`.

`make test` runs a sample: an exercise with ranks and one without, each with one wrong answer.
"""

from __future__ import annotations

import pytest

from labkit.exercises import catalogue
from tests.exercises.corpus import Answer, answers, faults

IN_FLOAT64 = """
def accumulate(comm, micro_batches, total):
    whole = np.zeros(total.size + 1)  # the last value: the number of samples
    for gradient, count in micro_batches:
        whole += count * np.append(gradient, 1.0)
    comm.Allreduce(MPI.IN_PLACE, whole)
    total[...] = whole[:-1] / whole[-1]
"""


@pytest.mark.parametrize("name", ["linear_backward", "average_by_allgather"])
def test_a_sample_of_the_corpus_gets_its_findings(name: str) -> None:
    assert faults(name, answers(name)[:2]) == []


@pytest.mark.exercises
@pytest.mark.parametrize("name", catalogue.exercises())
def test_the_reference_is_correct_and_wrong_answers_get_their_findings(name: str) -> None:
    assert faults(name, answers(name)) == []


@pytest.mark.exercises
def test_a_sum_in_float64_is_right_for_float32() -> None:
    assert faults("accumulate", [Answer(None, IN_FLOAT64)]) == []
