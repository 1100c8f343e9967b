"""tqdm's bars on ranks and in the notebook's process: drawn as text, without warning or error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.shared import world
from tests.cluster_fixtures import Kernel, World

pytestmark = pytest.mark.clusters

__all__ = ["world"]
MODULES = "tqdm", "tqdm.auto", "tqdm.notebook"
BAR = "from {} import tqdm, trange\nfor i in tqdm(range(3)):\n    pass\nlist(trange(4))"


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[Kernel]:
    kernel = Kernel(world)
    kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    yield kernel
    kernel.end()


@pytest.mark.parametrize("module", MODULES)
def test_a_rank_draws_its_bars_without_a_warning(shared: Kernel, module: str) -> None:
    said = shared.run(f"%%px\n{BAR.format(module)};")
    for rank in 0, 1:
        assert f"[stderr:{rank}]" in said
    assert said.count("100%|██████████| 3/3") == said.count("100%|██████████| 4/4") == 2, said
    assert "Warning" not in said and "Error" not in said


@pytest.mark.parametrize("module", MODULES)
def test_the_notebook_draws_a_bar_without_a_warning(shared: Kernel, module: str) -> None:
    said = shared.run(f"{BAR.format(module)};")
    assert "3/3" in said and "4/4" in said
    assert "Warning" not in said and "Error" not in said
