"""`%debug` after a `%%px` cell that has failed, and `breakpoint()` on the ranks."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster_fixtures import DEADLINE_S, Kernel, a_kernel, a_world

pytestmark = pytest.mark.clusters

FAILS = """%%px
def f(x):
    y = x - rank
    return 1 / y

f(2)"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    for world in a_world(tmp_path_factory.mktemp("debugging") / "ipython"):
        for kernel in a_kernel(world):
            assert "4 ranks" in kernel.run("from labkit.cluster import connect\nrc = connect(4)")
            yield kernel


def typed(
    kernel: Kernel, cell: str, answers: Sequence[str], stop: bool = False, stop_at: Path | None = None
) -> str:
    """Run a cell in a notebook in which a person can type; return its output.

    Each of the answers is typed when the cell asks. With `stop`, the stop button follows the last one; with
    `stop_at`, it is pressed once this file exists.
    """
    message = kernel.client.execute(cell, allow_stdin=True)
    waiting, said = list(answers), []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if stop_at is not None and stop_at.exists():
            kernel.manager.interrupt_kernel()
            stop_at = None
        if kernel.client.stdin_channel.msg_ready():
            kernel.client.stdin_channel.get_msg(timeout=1)
            if waiting:
                kernel.client.input(waiting.pop(0))
            else:
                assert stop, "".join(said)
                kernel.manager.interrupt_kernel()
        try:
            reply = kernel.client.get_iopub_msg(timeout=0.05)
        except queue.Empty:
            continue
        if reply["parent_header"].get("msg_id") != message:
            continue
        content = reply["content"]
        said.append(content.get("text", "") + "\n".join(content.get("traceback", [])))
        if content.get("execution_state") == "idle":
            return "".join(said)
    pytest.fail(f"the cell did not end: {said}")


def test_debug_opens_the_frame_of_the_rank_that_failed(notebook: Kernel) -> None:
    assert "ZeroDivisionError on rank 2" in notebook.run(FAILS)
    said = typed(notebook, "%debug", ["p x, y", "rank * 10", "u", "p y", "l", "q"])
    lines = said.splitlines()
    assert lines[0].startswith("Rank 2, where it failed."), said
    assert "(4)f()" in lines[1] and lines[2] == "-> return 1 / y", said
    assert "(2, 0)" in lines and "20" in lines, said
    assert "-> f(2)" in lines and "*** NameError: name 'y' is not defined" in lines, said
    assert notebook.run("%px print(comm.allreduce(1))") == "[ranks 0–3] 4\n"


def test_commands_that_would_go_on_are_refused_and_the_stop_button_ends_it(notebook: Kernel) -> None:
    notebook.run(FAILS)
    said = typed(notebook, "%debug 2", ["c", "interact", "1 / 0"], stop=True)
    assert said.count("The cell has ended, so it cannot go on.") == 2, said
    assert "*** ZeroDivisionError: division by zero" in said and said.endswith("%debug has ended.\n"), said
    assert notebook.run("%px print(comm.allreduce(1))") == "[ranks 0–3] 4\n"


def test_a_command_that_is_stopped_ends_with_the_report_of_what_the_ranks_did(
    notebook: Kernel, tmp_path: Path
) -> None:
    notebook.run(FAILS)
    sleeps = f"open({str(tmp_path / 'begun')!r}, 'w').close(), __import__('time').sleep({DEADLINE_S})"
    said = typed(notebook, "%debug", [sleeps], stop_at=tmp_path / "begun")
    assert "KeyboardInterrupt: the cell was stopped." in said and "%debug has ended." not in said, said
    assert notebook.run("%px print(comm.allreduce(1))") == "[ranks 0–3] 4\n"


def test_the_cause_of_a_hang_is_opened_first_and_others_by_number(notebook: Kernel) -> None:
    notebook.run("%%px\nif rank == 3:\n    culprit = 'rank 3'\n    1 / 0\ncomm.Barrier()")
    said = typed(notebook, "%debug", ["p culprit", "q"])
    assert said.startswith("Rank 3, where it failed.") and "'rank 3'" in said, said
    assert "`%debug 0` opens rank 0." in said
    assert "comm.Barrier()" in typed(notebook, "%debug 0", ["q"])
    assert "expected a rank that has failed: ranks 0–3." in notebook.run("%debug 7")


def test_debug_says_so_where_nobody_can_type_and_is_as_before_after_other_errors(notebook: Kernel) -> None:
    notebook.run(FAILS)
    assert "no way to type commands here" in notebook.run("%debug")
    assert "%debug without %px" in notebook.run("%px %debug")
    notebook.run("here = 5\nint('seven')")
    said = typed(notebook, "%debug", ["p here", "q"])
    assert "5\n" in said and "Rank" not in said, said


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_breakpoint_ends_the_cell_and_debug_opens_it(notebook: Kernel, call: str) -> None:
    said = notebook.run(f"%%px\ninside = rank + 10\n{call}\ncomm.Barrier()")
    assert said.startswith("Breakpoint on ranks 0–3: the cell stops here"), said
    assert f"----> 3 {call}" in said and "pdb.py" not in said and "failed_frame" not in said, said
    assert "\n11\n" in typed(notebook, "%debug 1", ["p inside", "q"])
    said = notebook.run(f"%%px\nif rank == 1:\n    {call}\ncomm.Barrier()")
    assert "rank 1 never joined" in said and "Breakpoint on rank 1" in said, said
    assert notebook.run("%px print(comm.allreduce(1))") == "[ranks 0–3] 4\n"
