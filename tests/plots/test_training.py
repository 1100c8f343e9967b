"""Figures of a training run: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io

import numpy as np
import pytest

from labkit import plots

LOCAL = [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]


def test_losses_draws_each_rank_and_all() -> None:
    (axes,) = plots.losses(LOCAL, [2.0, 1.9, 1.8]).axes
    assert [line.get_label() for line in axes.lines] == ["rank 0", "rank 1", "all ranks"]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3] and list(axes.lines[1].get_ydata()) == LOCAL[1]
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.get_xlabel() == "Epoch" and "Loss" in axes.get_ylabel()


def test_contributions_are_in_per_cent() -> None:
    (axes,) = plots.contributions([[0.1, 0.2], [1.1, 1.0]], "b").axes
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [110, 100])
    assert "%" in axes.get_ylabel() and " b " in axes.get_ylabel()


def test_waiting_and_transfer_times_are_in_milliseconds() -> None:
    wait, transfer = plots.sync_times([[1e-3, 2e-3]], [[1e-5, 2e-5]]).axes
    assert (wait.get_ylabel(), transfer.get_ylabel()) == ("Wait (ms)", "Transfer (ms)")
    np.testing.assert_allclose(wait.lines[0].get_ydata(), [1, 2])
    np.testing.assert_allclose(transfer.lines[0].get_ydata(), [0.01, 0.02])


@pytest.mark.parametrize("ranks", [1, 12])
def test_any_number_of_ranks_can_be_drawn(ranks: int) -> None:
    picture = io.BytesIO()
    plots.losses([[1.0]] * ranks, [1.0]).savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
