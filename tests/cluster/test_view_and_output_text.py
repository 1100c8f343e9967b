"""The text of a live view and of the cells to run again, made without ranks."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from labkit.cluster import live_view
from labkit.cluster.live_view import LiveView
from labkit.cluster.magics import RUNS_SHOWN, cells_phrase
from labkit.cluster.output import after_returns
from mpiwatch.report import Activity, RankState


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
    ranks = SimpleNamespace(take_snapshot=lambda *_: report, recorder=object())
    result = SimpleNamespace(_targets=[*range(len(futures))], _children=futures)
    return LiveView(ranks, result, 2.0)  # type: ignore[arg-type]


def test_a_line_that_is_about_to_be_replaced_shows_the_view_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        live_view, "publish_display_data", lambda data, **more: shown.append(data["text/plain"])
    )
    for text in "checking f …", "checking f …\r":
        view_of([FakeFuture(text)], []).update()
    (only,) = shown
    assert only.endswith("rank 0: checking f …")
    assert after_returns("checking f …\r            \r") == ""


def test_a_view_of_many_ranks_is_short_and_its_html_is_escaped() -> None:
    states = [RankState(rank, Activity.RUNNING, place="cell line 2: `x <b> y`") for rank in range(64)]
    printed = [FakeFuture(f"<i>{rank}</i>\r" + "z" * 1000) for rank in range(60)]
    ended = [FakeFuture("", ended=True), FakeFuture("", ended=True, error="ValueError")]
    view = view_of([*printed, *ended, FakeFuture(""), FakeFuture("")], states)
    view.ranks.recorder = None
    view.observe()
    bundle = view.bundle(view.began + 75)
    title, *lines = bundle["text/plain"].splitlines()
    assert title.startswith(
        "1 min 15 s, 2 of 64 ranks done. The stop button ends the cell. The ranks are on other"
    )
    assert lines[:3] == [
        "  ranks 0–59, 62, 63: at cell line 2: `x <b> y`",
        "  rank 60: done",
        "  rank 61: raised ValueError",
    ]
    assert "<code>x &lt;b&gt; y</code>" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"] and "color" not in bundle["text/html"]


def test_lines_that_differ_on_many_ranks_are_counted() -> None:
    view = view_of([FakeFuture(f"loss {rank}\n50 %\r{rank} %\r") for rank in range(30)], [])
    view.observe()
    lines = view.bundle(view.began)["text/plain"].splitlines()
    assert lines[1:5] == ["  ranks 0–29: running", "Last line printed:", "  rank 0: 0 %", "  rank 1: 1 %"]
    assert lines[-1] == "  …: and 18 more"


def test_cells_to_run_again_are_listed_by_runs_of_their_numbers() -> None:
    assert cells_phrase([]) == ""
    assert cells_phrase([3, 5, 6, 7]) == "the %%px cells [3], [5] to [7]"
    many = list(range(4, 4 + 2 * (RUNS_SHOWN + 1), 2))
    assert cells_phrase(many[:-1]).count("[") == RUNS_SHOWN
    assert cells_phrase(many) == f"all %%px cells from [4] to [{many[-1]}], except those that failed,"
