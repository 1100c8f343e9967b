"""How the output of a `%%px` cell is shown, on real ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import Kernel, a_kernel, a_world

pytestmark = pytest.mark.clusters

WRONG = """%%px
from labkit.exercises import check

def my_items(n, rank, size):
    return [rank]

my_items = check(my_items)"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    for world in a_world(tmp_path_factory.mktemp("output") / "ipython"):
        world.env["IPP_NONINTERACTIVE"] = "0"  # verdicts as in JupyterLab
        for kernel in a_kernel(world):
            assert "4 ranks" in kernel.run("from labkit.cluster import connect\nrc = connect(4)")
            yield kernel


def test_lines_warnings_and_results_that_are_alike_are_shown_once(notebook: Kernel) -> None:
    said = notebook.run(
        "%%px\nimport warnings\nwarnings.warn('careful')\n"
        "for epoch in range(40):\n    print('epoch', epoch)\nsize"
    )
    assert said.count("epoch 39") == 1 and said.startswith("[ranks 0–3]\nepoch 0\n")
    assert re.search(r"\[ranks 0–3\]\nCell In\[\d+\], line 3: UserWarning: careful\n", said), said
    assert said.count("careful") == 2, said  # the message and its line
    assert re.findall(r"Out\[(.*?):\d+\]: \S*?(\d)\n", said) == [("0–3", "4")]


def test_lines_of_some_ranks_name_these(notebook: Kernel) -> None:
    said = notebook.run("%%px\nif rank != 1:\n    print('here')\nprint(rank)")
    assert said == "[stdout:0]\nhere\n0\n[stdout:1] 1\n[stdout:2]\nhere\n2\n[stdout:3]\nhere\n3\n"
    said = notebook.run("%%px\nprint('here' if rank != 1 else 'there')")
    assert said == "[ranks 0, 2, 3] here\n[stdout:1] there\n"
    assert notebook.run("%%px --targets 1,2\nprint('same')") == "[ranks 1, 2] same\n"
    assert notebook.run("%%px --targets 1\nprint('same')") == "same\n"


def test_output_by_engine_is_not_merged(notebook: Kernel) -> None:
    said = notebook.run("%%px --group-outputs engine\nprint('same')")
    assert said == "".join(f"[stdout:{rank}] same\n" for rank in range(4))
    assert notebook.run("%pxresult") == "[ranks 0–3] same\n"


def test_a_verdict_has_no_tag(notebook: Kernel) -> None:
    notebook.run(WRONG)
    shown = [output["data"] for output in notebook.saved_outputs() if "data" in output]
    assert len(shown) == 1 and "not correct yet" in shown[0]["text/html"], shown
    picture = "display({'text/html': '<hr>', 'text/plain': ''}, raw=True)"
    assert "[output:2]" in notebook.run(f"%%px\nif rank == 2:\n    {picture}")
