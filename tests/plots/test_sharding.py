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


@pytest.mark.parametrize("ranks", [1, 12])
def test_any_number_of_ranks_can_be_drawn(ranks: int) -> None:
    owner = np.arange(20) % ranks
    figures = [
        sharding.shards({"a": owner}, owner.tolist()),
        sharding.samples_by_step({"a": (np.arange(20) // 4, owner)}),
        sharding.label_counts({"a": np.ones((ranks, 3), int)}),
    ]
    for figure in figures:
        assert png(figure).startswith(b"\x89PNG")
