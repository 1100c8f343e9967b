"""Figures of a training run: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io

import pytest

from labkit import plots

LOCAL = [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]


def test_losses_draws_each_rank_and_all() -> None:
    (axes,) = plots.losses(LOCAL, [2.0, 1.9, 1.8]).axes
    assert [line.get_label() for line in axes.lines] == ["rank 0", "rank 1", "all ranks"]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3] and list(axes.lines[1].get_ydata()) == LOCAL[1]
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.get_xlabel() == "Epoch" and "Loss" in axes.get_ylabel()


@pytest.mark.parametrize("ranks", [1, 12])
def test_any_number_of_ranks_can_be_drawn(ranks: int) -> None:
    picture = io.BytesIO()
    plots.losses([[1.0]] * ranks, [1.0]).savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
