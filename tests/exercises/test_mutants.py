"""No variant of a reference that does something else is accepted."""

from __future__ import annotations

import pytest

from labkit.exercises import catalogue
from tests.exercises.equivalent import EQUIVALENT
from tests.exercises.mutants import mutants, survivors

EXERCISES = catalogue.exercises()
TEXT = '''
def f(x, n):
    """Return the sum."""
    y = np.zeros(n, dtype="float32")
    for k in range(1, n):
        y[k:] += x[k] * 2
    return y.copy()
'''


def test_the_changes_of_a_function() -> None:
    found = [each.change.partition(": ")[2] for each in mutants(TEXT)]
    for change in (
        "- for k in range(1, n): + for k in range(2, n):",
        "- for k in range(1, n): + for k in range(n, 1):",
        "- y[k:] += x[k] * 2 + y[k:] -= x[k] * 2",
        "- y[k:] += x[k] * 2 + y[:] += x[k] * 2",
        "- y[k:] += x[k] * 2 + pass",
        "- return y.copy() + return y",
        "- y = np.zeros(n, dtype='float32') + y = np.ones(n, dtype='float32')",
        "- y = np.zeros(n, dtype='float32') + y = np.zeros(n)",
    ):
        assert change in found
    assert len(found) > 15


def test_each_equivalent_mutant_is_one() -> None:
    for name, known in EQUIVALENT.items():
        changes = {each.change for each in mutants(EXERCISES[name].text)}
        assert set(known) <= changes, name
        assert all(len(why.split()) > 2 for why in known.values())


@pytest.mark.exercises
@pytest.mark.parametrize("name", ["linear_backward", "softmax_cross_entropy"])
def test_a_sample_of_the_mutants_is_refused(name: str) -> None:
    assert survivors(EXERCISES[name])[1] == []


@pytest.mark.exercises
@pytest.mark.thorough
@pytest.mark.parametrize("name", EXERCISES)
def test_every_mutant_is_refused(name: str) -> None:
    assert survivors(EXERCISES[name])[1] == []
