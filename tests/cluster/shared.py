"""A world and a kernel that all tests of a file share: `from tests.cluster.shared import kernel, world`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import Kernel, World, a_kernel, a_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from a_world(tmp_path_factory.mktemp("shared") / "ipython")


@pytest.fixture(scope="module")
def kernel(world: World) -> Iterator[Kernel]:
    yield from a_kernel(world)
