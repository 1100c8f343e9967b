"""Hostile submissions, as root and as an ordinary user: none passes, none does harm.

`make test-grading` runs all of them, and this file a part.
"""

from __future__ import annotations

import os

import pytest

from labkit.checks import sandbox
from tests.exercises import hostile_run
from tests.exercises.submissions import SUBMISSIONS

pytestmark = pytest.mark.exercises
QUICK = [name for name, submission in SUBMISSIONS.items() if submission.is_quick]
WITHOUT_A_SANDBOX = (
    "writes a verdict to every pipe it can open",
    "traces its ancestors",
    "forges records, requests and reports",
    "sends pickles",
    "replaces the comparison and everything else",
    "fills memory in eight children",
    "fills anonymous files",
    "hides memory in mappings that no process has touched",
    "fills files without a name",
    "fills folders whose names are too long",
)


@pytest.fixture(autouse=True)
def _needs_a_sandbox() -> None:
    if sandbox.refusal():
        pytest.skip(sandbox.refusal())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", hostile_run.USERS)
@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_submission_does_no_harm(name: str, user: str) -> None:
    seen = hostile_run.grade(SUBMISSIONS[name], user)
    assert seen.harm == [], seen


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    os.getuid() != 0, reason="the tests' own user has other processes, which a submission could reach"
)
@pytest.mark.parametrize("name", WITHOUT_A_SANDBOX)
def test_what_is_held_off_without_a_sandbox_too(name: str) -> None:
    """An ordinary user's grader keeps the verdict and the limits of memory and files."""
    seen = hostile_run.grade(SUBMISSIONS[name], "user", sandboxed=False)
    assert seen.harm == [], seen
