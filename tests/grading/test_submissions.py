"""All hostile submissions, as root and as an ordinary user: none passes, none does harm."""

from __future__ import annotations

import pytest

from labkit.checks import sandbox
from tests.exercises import hostile_run
from tests.exercises.submissions import SUBMISSIONS

pytestmark = pytest.mark.grading


@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", hostile_run.USERS)
@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_hostile_submission_does_no_harm(name: str, user: str) -> None:
    if sandbox.refusal():
        pytest.skip(sandbox.refusal())
    seen = hostile_run.grade(SUBMISSIONS[name], user)
    assert seen.harm == [], seen
