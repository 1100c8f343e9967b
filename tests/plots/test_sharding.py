"""Figures of shards: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from labkit.plots import sharding


def png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def test_shards_colours_every_sample_by_its_rank() -> None:
    (axes,) = sharding.shards({"a": np.array([0, 1, 0]), "b": np.array([1, 1, 0])}, ["x", "y", "z"]).axes
    colours = [patch.get_facecolor() for patch in axes.patches]
    assert len(colours) == 6 and len(set(colours)) == 2
    assert colours[0] == colours[2] == colours[5] != colours[1] == colours[3] == colours[4]
    assert [text.get_text() for text in axes.texts] == ["x", "y", "z"] * 2
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]


def test_label_counts_writes_every_count() -> None:
    table = np.array([[3, 0], [1, 2]])
    first, second = sharding.label_counts({"a": table, "b": table.T}).axes[:2]
    assert [text.get_text() for text in first.texts] == ["3", "0", "1", "2"]
    assert [text.get_text() for text in second.texts] == ["3", "1", "0", "2"]
    assert (first.get_title(), first.get_xlabel(), first.get_ylabel()) == ("a", "Label", "Rank")


def test_steps_colours_every_sample_by_its_step() -> None:
    (axes,) = sharding.samples_by_step({"one rank": (np.array([0, 0, 1]), np.array([0, 0, 0]))}).axes
    colours = [patch.get_facecolor() for patch in axes.patches]
    assert colours[0] == colours[1] != colours[2]
    assert colours[0][0] < 0.9, "the first step's boxes must stand out from the white background"
    assert [text.get_text() for text in axes.texts] == ["0", "0", "0"]
    assert "rank" in axes.get_xlabel()
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["step 0", "step 1"]


def test_unused_panels_are_hidden_and_their_column_is_labelled() -> None:
    table = np.array([[3, 0], [1, 2]])
    panels = sharding.label_counts(dict.fromkeys("abcd", table), columns=3).axes[:6]
    assert [axes.get_visible() for axes in panels] == [True] * 4 + [False] * 2
    assert [axes.get_xlabel() for axes in panels[:4]] == ["", "Label", "Label", "Label"]
    assert [axes.get_ylabel() for axes in panels[:4]] == ["Rank", "", "", "Rank"]


def test_arrows_lie_head_to_tail_above_their_sum() -> None:
    (axes,) = sharding.gradient_arrows([-1.0, 3.0], "b").axes
    arrows = [(text.xyann, text.xy) for text in axes.texts if text.arrow_patch is not None]
    assert arrows == [((0, 0), (-1, 0)), ((-1, 1), (2, 1)), ((0, 2), (2, 2))]
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["-1.0000", "+3.0000", "+2.0000"]
    assert " b" in axes.get_xlabel()


def test_along_step_draws_each_rank_and_the_global_loss() -> None:
    (axes,) = sharding.loss_along_step(np.arange(3), [[1, 2, 3], [3, 2, 1]], [2, 2, 2], "steps").axes
    assert [line.get_label() for line in axes.lines][:3] == ["rank 0", "rank 1", "all ranks"]
    assert "(steps)" in axes.get_xlabel() and "Loss" in axes.get_ylabel()


def test_contributions_by_scheme_are_in_per_cent() -> None:
    (axes,) = sharding.contributions_by_scheme({"a": [1.1, 0.1], "b": [0.5, 0.6]}, "b").axes
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], [110, 50, 10, 60])
    assert "%" in axes.get_ylabel() and " b " in axes.get_ylabel()


def test_local_and_global_loss_have_scales_of_their_own() -> None:
    local, over_all = sharding.local_and_global_loss([0.01, 0.02], [5.0, 4.0], rank=2).axes
    assert local.get_title() == "Local loss of rank 2" and over_all.get_title() == "Global loss"
    assert local.get_ylim()[1] < 1 < over_all.get_ylim()[0]


def test_times_are_in_milliseconds() -> None:
    wait, transfer = sharding.times_by_rank({"Wait": [0.2, 0.1], "Transfer": [1e-3, 2e-3]}).axes
    assert [line.get_ydata()[0] for line in wait.lines] == pytest.approx([200, 100])
    assert [line.get_ydata()[0] for line in transfer.lines] == pytest.approx([1, 2])
    assert wait.get_ylabel() == "Time (ms)"
    assert wait.get_yscale() == transfer.get_yscale() == "log"


def test_a_linear_time_axis_starts_at_zero() -> None:
    (axes,) = sharding.times_by_rank({"Time": [0.2, 0.1]}, log=False).axes
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0


@pytest.mark.parametrize("ranks", [1, 12])
def test_any_number_of_ranks_can_be_drawn(ranks: int) -> None:
    owner = np.arange(20) % ranks
    figures = [
        sharding.shards({"a": owner}, owner.tolist()),
        sharding.samples_by_step({"a": (np.arange(20) // 4, owner)}),
        sharding.label_counts({"a": np.ones((ranks, 3), int)}),
        sharding.gradient_arrows([0.0] * ranks, "b"),
        sharding.loss_along_step(np.arange(2), [[1, 2]] * ranks, [1, 2], "steps"),
        sharding.contributions_by_scheme({"a": [0.1] * ranks}, "b"),
        sharding.times_by_rank({"Wait": [0.1] * ranks}),
    ]
    for figure in figures:
        assert png(figure).startswith(b"\x89PNG")
