"""A `%%px` cell shows what its ranks are doing while it runs, and afterwards only their output, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.engine_guards import MOST_CHARACTERS
from labkit.cluster.live_view import ALONE
from tests.cluster_fixtures import Kernel, World, a_world, by_rank

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4, deadline_s=60)"
WAIT = "import os, time\ndef wait_for(path):\n    while not os.path.exists(path):\n        time.sleep(0.05)\n"
FIGURE = """
from mpi4py import MPI
import matplotlib
matplotlib.use("module://matplotlib_inline.backend_inline")
import matplotlib.pyplot as plt
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel as JupyterLab starts one; each test leaves it connected."""
    for world in a_world(tmp_path_factory.mktemp("live") / "ipython"):
        yield from connected(world)


def connected(world: World) -> Iterator[Kernel]:
    world.env["IPP_NONINTERACTIVE"] = "0"  # a view, as in JupyterLab
    kernel = Kernel(world)
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run(f"%%px\n{WAIT}{FIGURE}")
    yield kernel
    world.look()  # afterwards, the ranks that the kernel's end kills do not tell
    kernel.end()


def views(kernel: Kernel) -> list[dict[str, str]]:
    """Return what the updatable display of the last cell has shown, one state after the other."""
    return [
        message["content"]["data"]
        for message in kernel.messages
        if message["msg_type"] in ("display_data", "update_display_data")
        and message["content"]["transient"].get("display_id")
    ]


def run_until_shown(kernel: Kernel, cell: str, go: Path, words: str = "ranks done.") -> str:
    """Run a cell that waits for the file `go`, made once its view shows the words; return what is shown."""
    message = kernel.start(cell)
    shown = kernel.finish(message, until=words)
    go.touch()
    return shown + kernel.finish(message)


def without_counts(outputs: object) -> str:
    """Return outputs as text, without the number of cells that an engine has run."""
    return re.sub(r"Out\[(\d):\d+\]", r"Out[\1]", str(outputs))


CELL = """%%px
print("epoch", rank // 2)
print("first\\nsecond" if rank == 3 else "50 %", end="" if rank == 3 else "\\r")
if rank == 2:
    import sys
    print("careful", file=sys.stderr)
if rank == 3:
    wait_for({path!r})
MPI.Intracomm(comm).Barrier()
plt.figure(figsize=(0.5, 0.5))
plt.axes()
plt.show()
rank ** 2
"""


def test_a_long_cell_shows_what_the_ranks_do_and_leaves_only_their_output(
    kernel: Kernel, tmp_path: Path
) -> None:
    cell = CELL.format(path=str(tmp_path / "go"))
    message = kernel.start(cell)
    shown = kernel.finish(message, until="Barrier()`") + kernel.finish(message, until="(0.05)`")
    (tmp_path / "go").touch()
    kernel.finish(message)
    assert "0 of 4 ranks done. The stop button ends the cell." in shown, shown
    assert re.search(
        r"ranks 0–2: in Barrier at cell line \d+: `MPI.Intracomm\(comm\).Barrier\(\)`\n", shown
    ), shown
    assert re.search(
        r"rank 3: at cell line 8: `wait_for.* via cell \[2\] line \d+: `time.sleep\(0.05\)`\n", shown
    ), shown
    assert "ranks 0, 1: 50 %" in shown
    assert "rank 2: careful" in shown
    assert "rank 3: second" in shown
    assert all(set(state) == {"text/plain", "text/html"} for state in views(kernel))
    long = kernel.saved_outputs()
    kernel.run(cell.replace("%%px", "%%px --progress-after 100"))  # `go` is there
    assert views(kernel) == []
    assert without_counts(long) == without_counts(kernel.saved_outputs())
    assert [output["output_type"] for output in long] == ["stream", "stream"] + ["display_data"] * 12
    assert long[0]["text"] == (
        "[ranks 0, 1]\nepoch 0\n50 %\n[stdout:2]\nepoch 1\n50 %\n[stdout:3]\nepoch 1\nfirst\nsecond\n"
    )
    assert long[1]["text"] == "[stderr:2] careful\n"
    texts = [output["data"]["text/plain"] for output in long[2:]]
    assert texts[:8:2] == [f"[output:{rank}]" for rank in range(4)]
    assert all("image/png" in output["data"] for output in long[3:10:2])
    assert [text.split(": ")[1][-1] for text in texts[8:]] == ["0", "1", "4", "9"]


@pytest.mark.parametrize("kind", ["%%px\n", "%px "])
def test_a_cell_without_output_leaves_nothing(kernel: Kernel, tmp_path: Path, kind: str) -> None:
    kernel.run("%pxconfig --progress-after 0.2")
    run_until_shown(kernel, f"{kind}wait_for('{tmp_path}/go')", tmp_path / "go")
    assert kernel.saved_outputs() == []
    kernel.run("%pxconfig --progress-after 2")


def test_a_short_cell_of_single_lines_stays_in_rank_order_without_a_view(kernel: Kernel) -> None:
    kernel.run("%%px --progress-after 100\ntime.sleep(0.1 * (size - rank))\nprint('I am', rank)")
    assert views(kernel) == []
    (output,) = kernel.saved_outputs()
    assert output["text"] == "".join(f"[stdout:{rank}] I am {rank}\n" for rank in range(4))
    kernel.run("%%px --targets 2\nprint('I am', rank)")
    (output,) = kernel.saved_outputs()
    assert output["text"] == "I am 2\n"
    kernel.run("%%px --noblock\nprint('I am', rank)")
    assert kernel.run("%pxresult") == "".join(f"[stdout:{rank}] I am {rank}\n" for rank in range(4))


@pytest.mark.parametrize(
    ("cell", "is_alone"),
    [
        ("%%px\nx = 1", True),
        ("# A comment above, which the lab allows.\n\n  # another\n%%px\nx = 1", True),
        ("%%replay\n%%px\nx = 1", True),
        ("%px x = 1", True),
        ("x = 1\n%px x", False),
        ("# %%px\nx = 1", False),
    ],
)
def test_a_cell_of_the_ranks_alone_is_recognised(cell: str, is_alone: bool) -> None:
    assert (ALONE.match(cell) is not None) == is_alone


def test_a_line_among_other_output_has_no_view_that_would_delete_it(kernel: Kernel) -> None:
    kernel.run("print('before')\n%pxconfig --progress-after 0.2\n%px time.sleep(0.8)\nprint('after')")
    assert views(kernel) == []
    (output,) = kernel.saved_outputs()
    assert output["text"] == "before\nafter\n"
    kernel.run("%pxconfig --progress-after 2")


def test_output_that_floods_leaves_the_view_small_and_the_cell_fast(kernel: Kernel, tmp_path: Path) -> None:
    cell = (
        "%%px --progress-after 0.2\nfor i in range(20_000): print('line', i)\n"
        f"print('x' * 10**6, end='')\nwait_for('{tmp_path}/go')"
    )
    run_until_shown(kernel, cell, tmp_path / "go", "time.sleep(0.05)`")
    assert max(len(str(state)) for state in views(kernel)) < 10_000
    (output,) = kernel.saved_outputs()
    assert len(output["text"]) < 4 * (MOST_CHARACTERS + 200)
    assert by_rank(output["text"]).count("more: a cell shows at most 200 KiB of each rank") == 4


# The stop button is pressed while output is shown, too.
PRESS = """
import os, signal
from labkit.cluster.magics import RankMagics

show_output = RankMagics.show_output

def show_when_pressed(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    show_output(*arguments)

RankMagics.show_output = show_when_pressed
"""
PRESS_NO_MORE = "RankMagics.show_output = show_output"


def test_the_stop_button_ends_the_view_and_keeps_what_was_printed(kernel: Kernel) -> None:
    """A second press changes nothing."""
    kernel.run(PRESS)
    message = kernel.start(
        "%%px --progress-after 0.2\nprint('before', rank)\nif rank != 1:\n    comm.Barrier()"
    )
    shown = kernel.finish(message, until="ranks 0, 2, 3: waiting in Barrier at ")
    kernel.manager.interrupt_kernel()
    kernel.finish(message)
    assert "rank 1: done" in shown, shown
    assert "`comm.Barrier()`" in shown, shown
    outputs = kernel.saved_outputs()
    assert [output["output_type"] for output in outputs] == ["stream", "error"], outputs
    assert outputs[0]["text"] == "".join(f"[stdout:{rank}] before {rank}\n" for rank in range(4))
    assert outputs[1]["ename"] == "CellStopped"
    kernel.run(PRESS_NO_MORE)


def test_the_stop_button_after_the_end_of_a_cell_keeps_its_output(kernel: Kernel) -> None:
    """The cells after it do not run, as *Run All* promises."""
    kernel.run(PRESS)
    kernel.run("%%px\nprint('after', rank)")
    outputs = kernel.saved_outputs()
    assert outputs[0]["text"] == "".join(f"[stdout:{rank}] after {rank}\n" for rank in range(4))
    assert outputs[1]["ename"] == "KeyboardInterrupt"
    kernel.run(PRESS_NO_MORE)
    assert "[ranks 0–3] 4" in kernel.run("%px print(comm.allreduce(1))")


def test_output_can_be_grouped_by_rank_instead_of_by_kind(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%px --targets [1,0] --group-outputs=engine\nimport sys\nfrom IPython.display import display, HTML\n"
        "print('out', rank)\nprint('err', rank, file=sys.stderr)\ndisplay(HTML(f'<b>{rank}</b>'))\n"
        "HTML(f'<i>{rank}</i>')"
    )
    page = "<IPython.core.display.HTML object>\n"
    one = "[stdout:0] out 0\n[stderr:0] err 0\n[output:0]\n" + page + f"Out[0]: {page}"
    assert re.sub(r"\x1b\[[\d;]*m", "", without_counts(shown)) == one + one.replace("0", "1")
