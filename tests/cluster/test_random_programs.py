"""After any program that fails at any call, a correct one in the same session gives the right results."""

from __future__ import annotations

import pytest

from tests.cluster.random_programs import fail_then_succeed, start
from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel
from tests.conftest import thorough

__all__ = ["kernel", "world"]
pytestmark = pytest.mark.clusters


@pytest.mark.parametrize("number", [6, thorough(200)])
def test_a_correct_program_after_a_random_fault_is_right(kernel: Kernel, number: int) -> None:
    start(kernel)
    assert [wrong for seed in range(number) if (wrong := fail_then_succeed(kernel, seed)[1])] == []
