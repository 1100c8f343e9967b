"""A hang report as a figure."""

from __future__ import annotations

import io

import pytest

from labkit.plots.hang import hang
from mpiwatch.report import Activity, CallRecord, MessageRecord, RankState, Reason, Report, title


def call(number: int, operation: str) -> CallRecord:
    return CallRecord(0, number, operation, 10, "float32", None, None, "cell", 3 + number)


def missing(ranks: int) -> Report:
    """Return the report of a collective that rank 1 never joins, because it has raised an error."""
    first, second = call(1, "Bcast"), call(2, "Allreduce")
    states = [RankState(rank, Activity.WAITING_IN_COLLECTIVE, calls=(first, second)) for rank in range(ranks)]
    states[1] = RankState(1, Activity.RAISED, calls=(first,))
    return Report(Reason.RANK_ENDED, 2.0, tuple(states), 0, reporter=0, world_size=ranks)


def message() -> Report:
    """Return the report of a message that rank 1 never sends."""
    waiting = RankState(0, Activity.WAITING_FOR_MESSAGE, message=MessageRecord("recv", 1, 7))
    return Report(Reason.TIMED_OUT, 2.0, (waiting, RankState(1, Activity.RUNNING)), None, reporter=0)


def test_the_figure_shows_the_table() -> None:
    figure = hang(missing(3))
    figure.savefig(io.BytesIO())
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [
        *("done", "waiting", "done", "raised", "done", "waiting")
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]


@pytest.mark.parametrize("report", [missing(3), missing(256), message()])
def test_the_title_is_the_reports_and_the_figure_fits_a_screen(report: Report) -> None:
    figure = hang(report)
    figure.savefig(io.BytesIO())
    assert figure.get_figheight() < 12 and figure.axes[0].get_title().lower() == title(report).lower()
