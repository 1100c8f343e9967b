"""A `%%px` cell shows what its ranks are doing while it runs, and afterwards only their output, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.cluster.cells import output
from labkit.cluster.cells.live_view import SAMPLED_PART, LiveView
from labkit.watch.flight_recorder.report import Activity, CallRecord, RankState
from tests.cluster_fixtures import Kernel, World, a_world

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
    kernel.end()


def views(kernel: Kernel) -> list[dict[str, str]]:
    """Return what the updatable display of the last cell has shown, one state after the other."""
    return [
        message["content"]["data"]
        for message in kernel.messages
        if message["msg_type"] in ("display_data", "update_display_data")
        and message["content"]["transient"].get("display_id")
    ]


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
MPI.COMM_WORLD.Barrier()
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
    shown = kernel.finish(message, until="4 s")
    (tmp_path / "go").touch()
    kernel.finish(message)
    assert "0 of 4 ranks done. The stop button ends the cell." in shown, shown
    assert re.search(r"ranks 0–2: at cell line \d+: `MPI.COMM_WORLD.Barrier\(\)` for 3 s\n", shown), shown
    assert re.search(r"rank 3: at cell line \d+: `time.sleep\(0.05\)` for 3 s\n", shown), shown
    assert "ranks 0, 1: 50 %" in shown
    assert "rank 2: careful" in shown
    assert "rank 3: second" in shown
    states = views(kernel)
    assert all(set(state) == {"text/plain", "text/html"} for state in states)
    assert len(states) <= 9  # twice a second, from the second second on
    long = kernel.saved_outputs()
    kernel.run(cell)  # `go` is there: the cell ends before a view is shown
    assert views(kernel) == []
    assert without_counts(long) == without_counts(kernel.saved_outputs())
    assert [output["output_type"] for output in long] == ["stream", "stream"] + ["display_data"] * 12
    assert long[0]["text"] == (
        "[stdout:0]\nepoch 0\n50 %\n[stdout:1]\nepoch 0\n50 %\n[stdout:2]\nepoch 1\n50 %\n"
        "[stdout:3]\nepoch 1\nfirst\nsecond\n"
    )
    assert long[1]["text"] == "[stderr:2] careful\n"
    texts = [output["data"]["text/plain"] for output in long[2:]]
    assert texts[:8:2] == [f"[output:{rank}]" for rank in range(4)]
    assert all("image/png" in output["data"] for output in long[3:10:2])
    assert [text.split(": ")[1][-1] for text in texts[8:]] == ["0", "1", "4", "9"]


def test_a_cell_without_output_leaves_nothing(kernel: Kernel) -> None:
    kernel.run("%%px --progress-after 0.2\ntime.sleep(0.8)")
    assert views(kernel)
    assert kernel.saved_outputs() == []


def test_a_short_cell_of_single_lines_stays_in_rank_order_without_a_view(kernel: Kernel) -> None:
    kernel.run("%%px\ntime.sleep(0.1 * (size - rank))\nprint('I am', rank)")
    assert views(kernel) == []
    (output,) = kernel.saved_outputs()
    assert output["text"] == "".join(f"[stdout:{rank}] I am {rank}\n" for rank in range(4))
    kernel.run("%%px --targets 2\nprint('I am', rank)")
    (output,) = kernel.saved_outputs()
    assert output["text"] == "I am 2\n"
    kernel.run("%%px --noblock\nprint('I am', rank)")
    assert kernel.run("%pxresult") == "".join(f"[stdout:{rank}] I am {rank}\n" for rank in range(4))


def test_a_line_among_other_output_has_no_view_that_would_delete_it(kernel: Kernel) -> None:
    kernel.run("print('before')\n%pxconfig --progress-after 0.2\n%px time.sleep(0.8)\nprint('after')")
    assert views(kernel) == []
    (output,) = kernel.saved_outputs()
    assert output["text"] == "before\nafter\n"
    kernel.run("%px time.sleep(0.8)")
    assert views(kernel)
    assert kernel.saved_outputs() == []
    kernel.run("%pxconfig --progress-after 2")


def test_a_view_that_cannot_be_made_does_not_matter(kernel: Kernel) -> None:
    kernel.run(
        "import labkit.cluster.cells.live_view as live_view\n"
        "working, live_view.LiveView.bundle = live_view.LiveView.bundle, None"
    )
    said = kernel.run("%%px --progress-after 0.2\ntime.sleep(0.5)\nprint(rank)")
    kernel.run("live_view.LiveView.bundle = working")
    assert said == "".join(f"[stdout:{rank}] {rank}\n" for rank in range(4))


def test_without_a_flight_recorder_the_view_shows_which_ranks_are_done(kernel: Kernel) -> None:
    kernel.run("ranks = get_ipython().magics_manager.registry['RankMagics'].ranks")
    kernel.run("recorder, ranks.recorder = ranks.recorder, None")
    said = kernel.run("%%px --progress-after 0.2\nprint('hello')\nif rank: time.sleep(1.5)")
    kernel.run("ranks.recorder = recorder")
    assert "rank 0: done\n" in said and "ranks 1–3: running\n" in said, said
    assert "ranks 0–3: hello\n" in said


def test_output_that_floods_leaves_the_view_small_and_the_cell_fast(kernel: Kernel) -> None:
    message = kernel.start(
        "%%px --progress-after 0.2\nfor i in range(20_000): print('line', i)\nprint('x' * 10**6, end='')"
    )
    kernel.finish(message)
    states = views(kernel)
    assert states
    assert max(len(str(state)) for state in states) < 10_000
    (output,) = kernel.saved_outputs()
    assert len(output["text"]) < 4 * 510_000
    assert "characters are left out here" in output["text"]


def test_the_stop_button_ends_the_view_and_keeps_what_was_printed(kernel: Kernel) -> None:
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


def test_output_can_be_grouped_by_rank_instead_of_by_kind(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%px --targets [1,0] --group-outputs=engine\nimport sys\nfrom IPython.display import display, HTML\n"
        "print('out', rank)\nprint('err', rank, file=sys.stderr)\ndisplay(HTML(f'<b>{rank}</b>'))\n"
        "HTML(f'<i>{rank}</i>')"
    )
    page = "<IPython.core.display.HTML object>\n"
    one = "[stdout:0] out 0\n[stderr:0] err 0\n[output:0]\n" + page + f"Out[0]: {page}"
    assert re.sub(r"\x1b\[[\d;]*m", "", without_counts(shown)) == one + one.replace("0", "1")


@dataclass
class FakeFuture:
    """What one rank has printed, and whether it has ended the cell."""

    stdout: str
    ended: bool = False
    error: str = ""

    def done(self) -> bool:
        return self.ended

    def result(self) -> SimpleNamespace:
        return SimpleNamespace(ename=self.error)

    @property
    def output(self) -> SimpleNamespace:
        return SimpleNamespace(metadata={"stdout": self.stdout, "stderr": ""})


def view_of(futures: list[FakeFuture], states: list[RankState]) -> LiveView:
    """Return the view of a cell on ranks that have done this so far."""
    report = SimpleNamespace(ranks=states)
    ranks = SimpleNamespace(take_snapshot=lambda lock_timeout_s: report)
    result = SimpleNamespace(_targets=[*range(len(futures))], _children=futures)
    return LiveView(ranks, result, 2.0)  # type: ignore[arg-type]


def test_a_view_of_many_ranks_is_short_and_its_html_is_escaped() -> None:
    states = [RankState(rank, Activity.RUNNING, place="cell line 2: `x <b> y`") for rank in range(64)]
    view = view_of(
        [FakeFuture(f"<i>{rank}</i>\r" + "z" * 1000) for rank in range(60)]
        + [
            FakeFuture("", ended=True),
            FakeFuture("", ended=True, error="ValueError"),
            FakeFuture(""),
            FakeFuture(""),
        ],
        states,
    )
    view.observe(view.began + 1)
    view.observe(view.began + 75)
    bundle = view.bundle(view.began + 75)
    lines = bundle["text/plain"].splitlines()
    assert lines[:4] == [
        "1 min 15 s, 2 of 64 ranks done. The stop button ends the cell.",
        "  ranks 0–59, 62, 63: at cell line 2: `x <b> y` for 1 min 14 s",
        "  rank 60: done",
        "  rank 61: raised ValueError",
    ]
    assert "<code>x &lt;b&gt; y</code>" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"] and "color" not in bundle["text/html"]


def test_lines_that_differ_on_many_ranks_are_counted() -> None:
    view = view_of([FakeFuture(f"loss {rank}\n50 %\r{rank} %\r") for rank in range(30)], [])
    view.observe(view.began)
    lines = view.bundle(view.began)["text/plain"].splitlines()
    assert lines[1:5] == ["  ranks 0–29: running", "Last line printed:", "  rank 0: 0 %", "  rank 1: 1 %"]
    assert lines[-1] == "  … and 18 more"


def test_a_rank_that_calls_or_prints_in_a_loop_does_not_stand_still() -> None:
    def call(number: int) -> RankState:
        record = CallRecord(0, number, "Allreduce", None, 8, "float32", "SUM", "cell", 3)
        return RankState(0, Activity.WAITING_IN_COLLECTIVE, "cell line 3: `step()`", calls=(record,))

    def row(view: LiveView, seconds: float) -> str:
        view.observe(view.began + seconds)
        return view.bundle(view.began + seconds)["text/plain"].splitlines()[1]

    states, future = [call(1)], FakeFuture("")
    view = view_of([future], states)
    assert row(view, 1) == "  rank 0: waiting in Allreduce at cell line 3: `step()`"
    assert row(view, 5) == "  rank 0: waiting in Allreduce at cell line 3: `step()` for 4 s"
    states[0] = call(2)
    assert row(view, 10) == "  rank 0: waiting in Allreduce at cell line 3: `step()`"
    assert row(view, 14) == "  rank 0: waiting in Allreduce at cell line 3: `step()` for 4 s"
    future.stdout = "epoch 2\n"
    assert row(view, 18) == "  rank 0: waiting in Allreduce at cell line 3: `step()`"


def test_ranks_that_do_not_answer_are_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("labkit.cluster.cells.live_view.monotonic", lambda: clock[0])
    view = view_of([FakeFuture("")], [])

    def slow(lock_timeout_s: float) -> None:
        clock[0] += 2

    view.ranks.take_snapshot = slow  # type: ignore[method-assign,assignment]
    clock[0] = 1.0
    view.observe(1.0)
    assert view.next_sample == pytest.approx(1.0 + 2 / SAMPLED_PART)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("", "[stdout:3] \n"),
        ("one", "[stdout:3] one\n"),
        ("one\n", "[stdout:3] one\n"),
        ("one\ntwo\n", "[stdout:3]\none\ntwo\n"),
        ("\ntable\n", "[stdout:3]\n\ntable\n"),
    ],
)
def test_a_tag_stands_before_one_line_and_above_several(printed: str, shown: str) -> None:
    assert output.tagged("[stdout:3]", printed) == shown


def test_a_terminal_overwrites_what_stands_before_a_carriage_return() -> None:
    assert output.after_returns("a\rb\n1 %\r2 %\r\r\nend\r") == "b\n2 %\nend"


def test_a_text_too_long_for_a_browser_is_cut_in_the_middle() -> None:
    text = output.shortened("a" * 10**6 + "b" * 10**6)
    assert len(text) < output.LONGEST_TEXT + 200
    assert text.startswith("aaa") and text.endswith("bbb") and "1,500,000 characters are left out" in text
